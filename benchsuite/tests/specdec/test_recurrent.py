"""The states of recurrent and convolutional layers: one after each slot of a window."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import Make
from benchsuite.workshop.sweep.battery import spread_model
from specdec import ArenaModel, SpecdecError, Window
from specdec.catalog import byte_tokenizer
from specdec.states import StateKey, StateRings, StateShape
from specdec_plugins.openvino_ir import save_ir


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("rwkv", "a rwkv model takes the states of its layers as an argument of its own, state, and asks no cache"),
        ("recurrent_gemma", "has layers of kind linear_attention that keep their states in their own modules"),
    ],
)
def test_a_model_whose_states_no_cache_has_is_refused_by_where_they_are(kind: str, reason: str) -> None:
    with pytest.raises(SpecdecError, match=reason):
        ArenaModel(spread_model(kind), registry().backend())


def test_openvino_refuses_a_model_with_states(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="Lfm2ForCausalLM has layers without keys and values"):
        save_ir(families.build_model("lfm2"), byte_tokenizer(), tmp_path)


RINGS = {
    StateKey(0, "conv", 0): StateShape((2, 3), torch.float32),
    StateKey(1, "recurrent", 0): StateShape((2,), torch.float64),
}


@pytest.mark.parametrize("seed", range(4))
def test_rings_hold_the_states_of_the_last_counts(seed: int) -> None:
    """Beside lists of all states: random windows, commits, trees, moves, and texts that are kept."""
    draw = torch.Generator().manual_seed(seed)
    window = 3
    rings = StateRings(RINGS, rows=3, window=window, device=torch.device("cpu"))
    texts: list[list[dict[StateKey, torch.Tensor]]] = [[], [], []]  # for each row the states after 1, 2, … tokens
    zeros = {key: torch.zeros(shape.size, dtype=shape.dtype) for key, shape in RINGS.items()}

    def number(most: int) -> int:
        return int(torch.randint(most + 1, (1,), generator=draw))

    def check() -> None:
        for key in RINGS:
            count = torch.tensor([len(text) for text in texts])
            got = rings.read(key, slice(0, 3), count)
            for row, text in enumerate(texts):
                assert torch.equal(got[row], (text[-1] if text else zeros)[key]), (seed, key, row)

    for _ in range(60):
        width, count = 1 + number(window - 1), torch.tensor([len(text) for text in texts])
        made: list[dict[StateKey, torch.Tensor]] = []
        for slot in range(width):
            made.append(
                {key: torch.randn(3, *shape.size, generator=draw, dtype=shape.dtype) for key, shape in RINGS.items()}
            )
            for key, state in made[-1].items():
                rings.write(key, slice(0, 3), count + 1 + slot, state)
        check()  # nothing is committed yet
        accepted = [number(width - 1) for _ in texts]
        last = [taken + number(width - 1 - taken) for taken in accepted]  # the slot of the last one kept, as in a tree
        rings.compact(slice(0, 3), count + 1 + torch.tensor(last), count + 1 + torch.tensor(accepted))
        for row, text in enumerate(texts):
            text += [{key: made[slot][key][row] for key in RINGS} for slot in (*range(accepted[row]), last[row])]
        check()
        source, row = number(2), number(2)
        if number(3) == 0:
            assert rings.move(source, row) == rings.row_bytes
            texts[row] = [*texts[source]]
        if number(3) == 0:
            kept = rings.keep(source, len(texts[source]))
            assert rings.restore(row, len(texts[source]), kept) == rings.state_bytes
            texts[row] = [*texts[source]]
        if number(9) == 0:
            texts[row] = []
        check()


def test_a_window_wider_than_the_rings_is_refused(assemble: Make) -> None:
    target = assemble("lfm2").target
    window = Window.chain(torch.tensor([5]), torch.tensor([[6, 7, 8]]), torch.tensor([3]))
    with torch.inference_mode(), pytest.raises(SpecdecError, match="4 slots leaves more states .* of a row, 3; build"):
        target.forward(target.arena(1, 16, 3), window, slice(0, 1), 0)
