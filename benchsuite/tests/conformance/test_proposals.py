"""What the kit records of a draft's windows, and with which K it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchsuite import conformance
from benchsuite.conformance import drafts, policies
from benchsuite.conformance.claims import Failed
from benchsuite.conformance.drafts import CHUNK, LENGTHS_IN_CHUNKS, shortest
from benchsuite.conformance.proposals import Proposal, proposals
from benchsuite.tests.rig import Make
from specdec import Engine, Request, SamplingParams, Verdict, Window
from specdec.model import PREFILL_CHUNK

PROMPT = tuple(b"one two one two one two one two ")


@pytest.mark.slow
def test_each_step_is_asked_with_the_k_of_its_number_and_never_more_than_the_largest(assemble: Make) -> None:
    steps: list[int] = []

    def ks(step: int) -> int:
        steps.append(step)
        return (1, 9, 2)[step % 3]

    engine = assemble().engine("garbage", k=3)
    found = proposals(engine, [Request(0, PROMPT, SamplingParams(max_new_tokens=20))], ks)
    assert steps == [*range(len(steps))]
    assert {seen.asked for seen in found} == {1, 3, 2}
    assert found[0].asked == 1
    assert all(len(seen.tokens) <= seen.asked for seen in found)
    everywhere = proposals(assemble().engine("garbage", k=3), [Request(0, PROMPT, SamplingParams(max_new_tokens=20))])
    assert {seen.asked for seen in everywhere} == {3}


def test_a_failed_claim_says_three_things_and_shows_none_of_our_code() -> None:
    failed = Failed("it repeats", "it does not", "a request")
    assert str(failed).split("\n")[1:] == ["  claimed:  it repeats", "  measured: it does not", "  example:  a request"]
    assert failed.pytrace is False


def test_an_engine_that_was_asked_for_a_few_steps_is_left_empty_and_as_it_was(assemble: Make) -> None:
    """The next question must not begin beside rows of the last."""
    engine = assemble().engine("garbage", k=3)
    assert engine.draft
    before = engine.draft.propose, engine.controller.next_k
    found = proposals(engine, [Request(5, PROMPT, SamplingParams(max_new_tokens=90))], most=2)
    assert len(found[0].text) == len(PROMPT)
    assert len(found) == 2
    assert engine.rows.live == []
    assert (engine.draft.propose, engine.controller.next_k) == before


def test_prompts_in_chunks_are_of_the_lengths_around_whole_chunks() -> None:
    whole = [1, 2 * CHUNK + 1]
    assert CHUNK < PREFILL_CHUNK
    assert [(length - 1) % CHUNK for length in LENGTHS_IN_CHUNKS] == [0, 1, CHUNK - 1, 0, 1, 0, 1, 1]
    assert [(length - 1) // CHUNK for length in LENGTHS_IN_CHUNKS] == [0, 0, 0, 1, 1, 2, 2, 5]
    assert {*whole} < {*LENGTHS_IN_CHUNKS}
    assert drafts.SLACK == 1 / 50  # of fifty windows one may differ


def test_a_draft_is_asked_for_all_of_its_k_for_none_and_for_parts_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """None comes twice in a row, and all again afterwards; a part of a token counts as one."""
    asked: list[list[int]] = []

    def recorded(engine: Engine, requests: list[Request], ks: Callable[[int], int], see: object) -> list[object]:
        asked.append([ks(step) for step in range(10)])
        return [see]

    monkeypatch.setattr(drafts, "proposals", recorded)
    for k in (4, 2):
        conformance.draft("garbage", k=k)().records("match", drafts.GREEDY)
    assert asked == [[4, 4, 0, 4, 1, 0, 0, 4, 2, 4], [2, 2, 0, 2, 1, 0, 0, 2, 1, 2]]


def seen(text: int, tokens: int) -> Proposal:
    request = Request(0, PROMPT, SamplingParams())
    return Proposal(request, PROMPT[:text], 4, 4, PROMPT[:tokens], tuple(range(tokens)), None)


def test_the_smallest_example_has_the_shortest_text_then_the_fewest_tokens() -> None:
    found = [seen(5, 1), seen(3, 2), seen(3, 1), seen(4, 1)]
    assert shortest(found) is found[2]


def test_a_malformed_window_is_told_by_what_is_wrong() -> None:
    request = Request(0, PROMPT, SamplingParams())

    def wrong(
        tokens: tuple[int, ...], parents: tuple[int, ...] | None = None, q: object = None, room: int = 2
    ) -> object:
        rows = None if q is None else torch.tensor(q)
        chain = tuple(range(len(tokens))) if parents is None else parents
        return drafts._malformed(Proposal(request, PROMPT, room, 4, tokens, chain, rows), 3)

    half = [[0.5, 0.5, 0.0]]
    assert wrong((0, 2)) is None
    assert wrong((0,), (0,), half) is None
    assert wrong((0, 1), (0, 0)) is None
    assert wrong((0, 1, 2)) == "3 proposals where 2 were asked for"
    assert wrong((0, 3)) == wrong((-1, 0)) == "a token id outside 0 … 2"
    assert (
        wrong((0, 1), (0, 2)) == wrong((0, 1), (-1, 0)) == wrong((0, 1), (1, 0)) == "a parent that is no earlier slot"
    )
    for bad in (float("nan"), float("inf"), -0.5):
        assert wrong((0,), (0,), [[0.5, 0.5, bad]]) == "q is not finite, or negative somewhere"
    assert wrong((0,), (0,), [[0.5, 0.4, 0.0]]) == "rows of q sum to [0.9]"
    assert wrong((0,), (0,), [[0.5, 0.50005, 0.0]]) is None
    assert wrong((0,), (0,), [[0.5, 0.6, 0.0]]) == "rows of q sum to [1.1]"
    assert wrong((2,), (0,), half) == "a token that its own q calls impossible"


VERDICTS = [
    ([0, 1, -1, -1], 1, 0, True),
    ([0, 2, -1, -1], 1, 4, True),
    ([0, -1, -1, -1], 0, 2, True),
    ([1, -1, -1, -1], 0, 2, False),
    ([0, 1, 2, -1], 2, 2, False),
    ([0, 1, 3, -1], 2, 2, False),
    ([0, 1, 0, -1], 1, 2, False),
    ([0, 1, -1, -1], 1, 5, False),
    ([0, 1, -1, -1], 1, -1, False),
]


@pytest.mark.parametrize(("path", "kept", "following", "fine"), VERDICTS)
def test_a_verdict_is_a_path_from_the_root_of_valid_slots_and_a_token(
    path: list[int], kept: int, following: int, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(torch.zeros(1, 4).long(), torch.tensor([[-1, 0, 0, 1]]), torch.tensor([3]))
    verdict = Verdict(torch.tensor([path]), torch.tensor([kept]), torch.tensor([following]))
    monkeypatch.setattr(policies, "_random_windows", lambda trees: (window, torch.zeros(1, 4, 5)))
    kit = conformance.policy("planted", greedy="exact", sampled="exact", trees=True)
    monkeypatch.setattr(kit, "_judge", lambda self, window, logits: verdict)
    if fine:
        kit().test_a_verdict_is_a_path_of_its_window()
        return
    with pytest.raises(Failed) as failed:
        kit().test_a_verdict_is_a_path_of_its_window()
    assert str(failed.value) == (
        "\n  claimed:  planted returns a path from the root, -1 past its end"
        f"\n  measured: path {path} with num_accepted {kept}, next {following}"
        "\n  example:  parents [-1, 0, 0, 1], width 3"
    )


@pytest.mark.parametrize("name", ["trees", "coupled"])
def test_a_policy_that_is_not_what_is_claimed_is_told_by_the_name_of_the_claim(name: str) -> None:
    claimed: dict[str, Any] = {"trees": True, "coupled": True}
    conformance.policy("match", greedy="exact", sampled="exact", **claimed)().test_it_is_what_it_claims()
    claimed[name] = False
    with pytest.raises(Failed) as failed:
        conformance.policy("match", greedy="exact", sampled="exact", **claimed)().test_it_is_what_it_claims()
    assert str(failed.value) == (
        f"\n  claimed:  match has {name}=False\n  measured: {name}=True\n  example:  the class says so"
    )


@pytest.mark.parametrize("trees", [False, True])
def test_the_kits_random_windows_are_ragged_and_such_as_a_draft_may_propose(trees: bool) -> None:
    window, logits = policies._random_windows(trees)
    assert window.tokens.shape == (8, 5)
    assert set(window.width.tolist()) == {1, 2, 3, 4, 5}
    assert len({tuple(row) for row in logits.flatten(1).tolist()}) == 8, "no two rows have the same law"
    for tokens, parents in zip(window.tokens.tolist(), window.parents.tolist(), strict=True):
        assert parents[0] == -1
        assert all(0 <= parents[slot] < slot for slot in range(1, 5))
        children = [(parents[slot], tokens[slot]) for slot in range(1, 3 if trees else 5)]
        assert len(set(children)) == len(children), "siblings are drawn without replacement"
    if trees:
        assert window.q is None
        assert len({tuple(row) for row in window.parents.tolist()}) > 1, "not all rows have the same tree"
    else:
        assert window.q is not None
        assert torch.allclose(window.q.sum(dim=-1), torch.ones(8, 4))
        assert window.parents.tolist() == [[-1, 0, 1, 2, 3]] * 8
