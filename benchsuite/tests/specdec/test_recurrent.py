"""Recurrent and convolutional layers: a state after each slot of a window, and speculation that changes no token."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import requests
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import Make, assert_same, peer_runner, slow_after
from specdec import SamplingParams, SpecdecError, Window
from specdec.states import StateKey, StateRings, StateShape

GREEDY = SamplingParams(max_new_tokens=14)
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_new_tokens=14)

CHAINED = ("draft_model", "oracle(0.8)", "ngram")
BRANCHED = ("tree(beam=2, depth=3)", "ngram(branches=3)")


@pytest.mark.parametrize("family", slow_after(1, families.RECURRENT))
def test_recurrent_targets_decode_as_generate_does(family: str, assemble: Make) -> None:
    build = assemble(family)
    judge = Judge(build.target, range(40))
    plain = EngineSource(build.engine(None))
    assert_same(judge, peer_runner("transformers", judge.model), plain, requests(GREEDY))


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


@pytest.mark.parametrize("draft", [*CHAINED, *slow_after(1, BRANCHED)])
@pytest.mark.parametrize("family", slow_after(1, families.RECURRENT))
def test_speculation_over_recurrent_targets_emits_plain_s_tokens(family: str, draft: str, assemble: Make) -> None:
    """Three rows at once, of different lengths; chains and trees."""
    build = assemble(family, max_rows=3)
    judge, plain = Judge(build.target, range(40)), EngineSource(build.engine(None, max_rows=1))
    for params in (GREEDY, SAMPLED):
        assert_same(judge, plain, EngineSource(build.engine(draft, k=4)), requests(params))
