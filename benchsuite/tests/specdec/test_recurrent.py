"""The states of recurrent and convolutional layers: one after each slot of a window."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import Make
from benchsuite.workshop.sweep.battery import spread_model
from specdec import ArenaModel, SpecdecError, Window
from specdec.catalog import byte_tokenizer
from specdec.recurrent import scan_from, state_keepers
from specdec.states import StateKey, StateRings, StateShape
from specdec.trial import WIDTH
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


@pytest.mark.parametrize("family", families.RECURRENT)
def test_a_chunk_behind_a_text_runs_each_recurrent_layer_once(family: str) -> None:
    """Its products count their calls, and the window behind the chunk has the logits of the unmodified model."""
    model = families.build_model(family)
    keepers = state_keepers(model)
    target, calls = ArenaModel(model, registry().backend()), Counter[nn.Module]()
    for keeper in keepers:
        for part in keeper.children():
            part.register_forward_hook(lambda module, given, output: calls.update([module]))
    text = torch.arange(60)[None] * 7 % 251
    arena = target.arena(1, 64, 4)
    with torch.inference_mode():
        expected = target.twin()(text, use_cache=False).logits
        for start, end in ((0, 9), (9, 54), (54, 57)):
            calls.clear()
            target.extend(arena, text[:, start:end], 0, start)
            assert set(calls.values()) == {1}
            assert all(set(keeper.children()) & set(calls) for keeper in keepers)
        window = Window.chain(text[:, 57], text[:, 58:], torch.tensor([2]))
        logits, _ = target.forward(arena, window, slice(0, 1), 57)
    assert torch.allclose(logits, expected[:, 57:], atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("biased", [True, False])
def test_a_scan_from_a_state_goes_on_where_the_scan_before_it_ended(biased: bool) -> None:
    """Beside transformers' own scan of the whole text."""
    draw = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    batch, channels, size, length, first = 2, 6, 4, 23, 9
    inputs, step, gate = (random(batch, channels, length) for _ in range(3))
    written, read = (random(batch, size, length) for _ in range(2))
    decay, skip = -random(channels, size).exp(), random(channels)
    more: dict[str, Any] = {"D": skip, "delta_bias": random(channels) if biased else None}
    more |= {"delta_softplus": True, "return_last_state": True}

    def part(start: int, end: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
        inside = [one[..., start:end] for one in (inputs, step, written, read, gate)]
        return [*inside[:2], decay, *inside[2:4]], {**more, "z": inside[4]}

    def scan(start: int, end: int) -> Any:
        given, named = part(start, end)
        return mamba_selective_scan(*given, **named)

    given, named = part(first, length)
    got = scan_from(scan(0, first)[1], mamba_selective_scan, *given, **named)
    outputs, last = scan(0, length)
    torch.testing.assert_close(got[0], outputs[..., first:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1], last, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(scan(first, length)[0], outputs[..., first:], atol=1e-2)


@pytest.mark.parametrize("family", families.RECURRENT)
def test_an_error_of_a_thousandth_in_a_recurrent_model_is_refused(family: str) -> None:
    """Planted where a layer runs over the arena alone; the model without it is accepted."""
    model = families.build_model(family)
    ArenaModel(copy.deepcopy(model), registry().backend())
    layer = next(part for part in model.modules() if isinstance(part, nn.ModuleList))[0]
    text, share = torch.arange(WIDTH)[None] * 7 % 251, [0.0]

    def err(module: Any, given: Any, output: Any) -> Any:
        states = output[0] if isinstance(output, tuple) else output
        return output if states.shape[1] != WIDTH else output * (1 + share[0])

    layer.register_forward_hook(err)
    with torch.inference_mode():
        own = model(text, use_cache=False).logits
        share[0] = 1e-4
        moved = float((model(text, use_cache=False).logits - own).abs().max() / own.abs().max())
        share[0] *= 1e-3 / moved
        moved = float((model(text, use_cache=False).logits - own).abs().max() / own.abs().max())
    assert moved == pytest.approx(1e-3, rel=0.2)
    with pytest.raises(SpecdecError, match="its logits over the arena are not its own"):
        ArenaModel(model, registry().backend())


def test_a_model_whose_own_steps_are_not_its_whole_text_s_is_refused() -> None:
    """Dory may keep the keys of its last loop alone, and its earlier loops then attend to others."""
    model = spread_model("dory")
    ArenaModel(copy.deepcopy(model), registry().backend())
    model.config.recurrent_kv_cache_mode = "last_loop"
    with pytest.raises(SpecdecError, match="its own cache gives other logits token by token than the whole text has"):
        ArenaModel(model, registry().backend())


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
