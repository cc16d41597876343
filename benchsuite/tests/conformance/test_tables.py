"""The kit's tables: what a target of tables sees, how far a policy's outputs are from it, and the keys of a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import chain
from benchsuite.conformance.exact.exact_runs import PROMPTS, one, run_distance
from benchsuite.conformance.exact.keys import ASKED, in_common, keys_of
from benchsuite.conformance.exact.table_target import History, TableDraft, Tabular, random_table
from benchsuite.conformance.models.tiny import policy_named
from benchsuite.judge.sources import Always
from specdec import Context, Engine, Purpose, Request, SamplingParams, Verdict, Window, sampling
from specdec_kernels.reference import Reference
from specdec_plugins.policies.match import Match
from specdec_plugins.policies.rejection import Rejection


class FirstKept(Match):
    """Keeps the first proposal, whatever the target says."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        choices = context.choose(logits, context.length[:, None] + window.depth, Purpose.TARGET)
        if window.tokens.shape[1] > 1:
            choices = torch.cat([window.tokens[:, 1:2], choices[:, 1:]], dim=1)
        return context.ops.verify_prefix(window, choices)


class Looking(Rejection):
    """Notes the smallest share of p and of q that it is given, and whether it is given a q."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.least_p, self.least_q, self.told = 1.0, 1.0, False

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        self.least_p = min(self.least_p, float(logits.softmax(dim=-1).min()))
        if window.q is not None:
            self.least_q, self.told = min(self.least_q, float(window.q.min())), True
        return super().accept(logits, window, context)


class LowNumbers(Rejection):
    """Draws by noise of the lower half of a request's id alone."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        context.params.stream[:] = sampling.stream(torch.full_like(context.request, 3), context.request % 2**32)
        return super().accept(logits, window, context)


class Forgetful(Reference):
    """Does not write the cells of the third call."""

    def __init__(self, lost: int | None) -> None:
        self._calls, self._lost = 0, lost

    def kv_append(self, *given: Any) -> None:
        """See ``Backend``."""
        self._calls += 1
        if self._calls != self._lost:
            super().kv_append(*given)


def engine_of_tables(ops: Reference, asked: list[History], k: int = 2) -> tuple[Engine, Tabular]:
    """An engine over tables of three tokens; every history that its target is asked for is added to the list."""
    table = random_table("p", 3)

    def noted(history: History) -> Any:
        asked.append(history)
        return table(history)

    target = Tabular(noted, 3, ops)
    draft = TableDraft(random_table("q", 3), chain(k))
    engine = Engine(
        target,
        draft=draft,
        policy=policy_named("rejection"),
        controller=Always(k),
        ops=ops,
        max_rows=1,
        max_length=40,
    )
    return engine, target


def test_a_target_of_tables_is_asked_for_each_slots_text_and_counts_its_forwards() -> None:
    asked: list[History] = []
    engine, target = engine_of_tables(Reference(), asked)
    assert (target.forwards, target.dtype) == (0, torch.float64)
    [done] = engine.run([Request(0, (0, 1, 2), SamplingParams(temperature=1.0, max_new_tokens=12))])
    assert target.forwards == len(engine.stats.steps) > 1
    whole = (0, 1, 2, *done.tokens)
    assert {whole[:length] for length in range(3, len(whole))} <= {*asked}, "the text so far, of each token"
    assert all(history[:3] == (0, 1, 2) and len(history) < len(whole) + 2 for history in asked)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_cell_that_was_not_written_is_seen_as_a_gap(lost: int) -> None:
    """A history that begins with -1, which no text does: its distribution is another."""
    asked: list[History] = []
    engine, _ = engine_of_tables(Forgetful(lost), asked)
    engine.run([Request(0, (0, 1, 2), SamplingParams(temperature=1.0, max_new_tokens=8))])
    gaps = [history for history in asked if -1 in history]
    assert gaps
    assert all(history[0] == -1 and {*history[1:]} <= {0, 1, 2} for history in gaps)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_first_token_that_is_kept_as_it_was_drawn_is_as_far_off_as_the_draft_is_from_the_target(seed: int) -> None:
    """The second token is the target's own, so that the total variation is that of p and q after the prompt."""
    p, q = (random_table((name, seed), 3)(PROMPTS[0]) for name in "pq")
    apart = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    named: dict[str, Any] = {"seed": seed} if seed else {}
    kept: Any = FirstKept(None)  # type: ignore[arg-type]
    assert run_distance(kept, 3, chain(1), one(2), **named) == pytest.approx(apart, abs=1e-12)
    assert apart > 0.1


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("certain", [False, True])
def test_with_zeros_both_tables_have_impossible_tokens_and_a_certain_draft_tells_no_q(
    zeros: bool, certain: bool
) -> None:
    policy = Looking()
    seed = next(n for n in range(99) if 0.0 in random_table(("q", n), 3, zeros=True)(PROMPTS[0]))
    named: dict[str, Any] = {name: True for name, value in {"zeros": zeros, "certain": certain}.items() if value}
    assert run_distance(policy, 3, chain(1), one(2), seed=seed, **named) < 1e-12
    assert (policy.least_p == 0) == zeros
    assert policy.told != certain
    assert (policy.least_q == 0) == (zeros and not certain)


@pytest.mark.parametrize("policy", ["rejection", "block"])
def test_the_keys_of_a_run_are_those_of_a_shorter_one_but_for_its_end_and_more(policy: str) -> None:
    longest = ASKED.params.max_new_tokens
    runs = [
        keys_of(
            policy_named(policy),
            chain(2),
            Request(ASKED.id, ASKED.prompt, SamplingParams(temperature=1.0, seed=3, max_new_tokens=length)),
        )
        for length in (1, longest - 4, longest)
    ]
    assert len(runs[0]) < len(runs[1]) < len(runs[2])
    assert len(runs[1] - runs[2]) < 6 < len(runs[1] & runs[2]), "all but those of its last step"
    assert len(runs[2]) > longest
    assert runs[2] == keys_of(policy_named(policy), chain(2), ASKED)
    greedy = Request(0, (0, 1), SamplingParams(max_new_tokens=longest))
    assert len(keys_of(policy_named(policy), chain(2), greedy)) < len(runs[2])


def test_a_request_whose_id_differs_in_its_high_bits_alone_is_another_one() -> None:
    found = in_common(LowNumbers(None), chain(2))  # type: ignore[arg-type]
    assert found["another request"] > 0
    assert in_common(policy_named("rejection"), chain(2)) == {"another seed": 0, "another request": 0}
