"""The bounds of an engine, its arena and its processors: the first value that is refused and the last that is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchsuite.conformance.models.tiny import prompts
from benchsuite.tests.rig import Make
from specdec import Request, SamplingParams, SpecdecError
from specdec.arena import Arena, LayerShape
from specdec.ledger import stacked
from specdec.messages import Window
from specdec.processors import adjusted, process
from specdec.request import Capacity
from specdec_kernels.reference import Reference


def test_an_engine_has_room_for_its_widest_window_and_no_more(assemble: Make) -> None:
    build = assemble()
    plain, drafted = build.engine(None), build.engine("ngram", k=4)
    assert (plain.max_window, drafted.max_window) == (1, 5)
    for engine in (plain, drafted):
        assert engine.rows.tokens.shape == (1, engine.max_length + engine.max_window)
        assert engine.stats.counts == {"allocations": engine.arena.allocations + engine.rows.allocations}
        assert engine.rows.allocations == 5 + engine.rows.ledger.allocations == 10
        assert engine.exact is False


@pytest.mark.parametrize("field", ["prompt", "logit_bias", "bad_words"])
def test_the_first_token_id_past_the_vocabulary_is_refused_and_the_last_in_it_is_not(
    field: str, assemble: Make
) -> None:
    engine = assemble().engine(None)

    def asked(token: int) -> Request:
        if field == "prompt":
            return Request(3, (0, token))
        given: Any = {"logit_bias": {token: 1.0, 0: 1.0}, "bad_words": ((0,), (1, token))}
        return Request(3, (1, 2), SamplingParams(**{field: given[field]}))

    engine.refuse_unfit(asked(257))
    with pytest.raises(SpecdecError) as refused:
        engine.refuse_unfit(asked(258))
    assert str(refused.value) == (
        f"the {field} of request 3 has the token id 258; the target's vocabulary ends at 257: was it made by another "
        "tokenizer?"
    )


def test_a_prompt_leaves_room_for_one_token_at_least(assemble: Make) -> None:
    engine = assemble().engine(None)
    engine.refuse_unfit(Request(0, (0,)))
    engine.refuse_unfit(Request(0, (1,) * 191))
    with pytest.raises(SpecdecError) as refused:
        engine.refuse_unfit(Request(5, (1,) * 192))
    assert str(refused.value) == (
        "the prompt of request 5 has 192 tokens and at most 191 fit (the engine was built for 192, the model has 512 "
        "positions); shorten it or raise max_length"
    )
    with pytest.raises(SpecdecError, match="at most 511 fit .*; shorten it or take a model with more positions$"):
        Capacity(600, 512, 258).refuse(Request(5, (1,) * 512))
    with pytest.raises(SpecdecError, match="^the prompt of request 5 is empty; give it at least one token$"):
        engine.refuse_unfit(Request(5, ()))


def test_a_run_of_one_request_counts_each_of_its_forwards_once(assemble: Make) -> None:
    engine = assemble().engine(None)
    [done] = engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=3))])
    assert done.kinds == ("plain",) * 3
    found = {name: count for name, count in engine.stats.counts.items() if count}
    assert found == {
        "allocations": engine.arena.allocations + engine.rows.allocations,
        "target_forwards": 3,
        "prefill_forwards": 1,
        "host_reads": 3,
        "num_emitted_tokens": 3,
        "kv_appended_tokens_total": len(prompts(1)[0]) - 1 + 3,
    }
    assert [(step.k, step.width, step.rows) for step in engine.stats.steps] == [(0, 1, 1)] * 3


@pytest.mark.parametrize(
    ("width", "longest", "fits"), [(4, 0, True), (5, 0, False), (4, 60, True), (4, 61, False), (1, 63, True)]
)
def test_a_window_fits_an_arena_up_to_its_widest_and_to_the_last_cell(width: int, longest: int, fits: bool) -> None:
    arena = Arena(
        [LayerShape(1, 4, None)],
        rows=1,
        max_length=61,
        max_window=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    arena.committed.fill_(longest)
    window = Window.chain(torch.tensor([1]), torch.zeros(1, width - 1).long(), torch.tensor([width - 1]))
    if fits:
        plan = arena.plan(window, Reference(), slice(0, 1), longest)
        assert plan.position.tolist() == [list(range(longest, longest + width))]
        assert plan.used.tolist() == [longest + width]
        assert plan.mask[None].shape == (1, 1, width, 64)
        return
    with pytest.raises(SpecdecError) as refused:
        arena.plan(window, Reference(), slice(0, 1), longest)
    assert str(refused.value) == (
        f"a window of {width} slots after {longest} committed tokens does not fit the arena (widest window 4, 64 "
        "cells); build it with a larger max_length"
    )


def _params(*asked: SamplingParams) -> Any:
    return stacked([Request(row, (1, 2), one) for row, one in enumerate(asked)], 4, torch.device("cpu"))


def test_a_greedy_row_without_its_temperature_keeps_neither_filter_nor_temperature() -> None:
    warm = SamplingParams(temperature=0.5, top_k=3, top_p=0.75, min_p=0.25)
    cold = SamplingParams(top_k=3, top_p=0.75, min_p=0.25)
    found = _params(cold, warm).ungreedy()
    assert found.temperature.tolist() == [1.0, 0.5]
    assert found.top_k.tolist() == [0, 3]
    assert found.top_p.tolist() == [1.0, 0.75]
    assert found.min_p.tolist() == [0.0, 0.25]
    assert (found.greedy, _params(cold).ungreedy().greedy, _params(cold).greedy) == (False, False, True)


def test_where_one_row_forbids_everything_the_bans_of_the_others_stay() -> None:
    asked = [SamplingParams(bad_words=tuple((token,) for token in range(4))), SamplingParams(bad_words=((2,),))]
    logits, paths = torch.tensor([[[0.0, 1.0, 2.0, 3.0]]]).expand(2, 1, 4), torch.zeros(2, 1, 0).long()
    adjustments = _params(*asked).adjustments
    never = float("-inf")
    assert adjusted(logits, adjustments, paths).tolist() == [[[0.0, 1.0, 2.0, 3.0]], [[0.0, 1.0, never, 3.0]]]
    assert adjusted(logits, adjustments, paths, strict=True).tolist() == [[[never] * 4], [[0.0, 1.0, never, 3.0]]]
    assert process(logits, _params(*asked), paths).argmax(dim=-1).tolist() == [[3], [3]]
