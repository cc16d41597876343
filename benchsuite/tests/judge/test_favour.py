"""Whether outputs favour their draft: the law of the test by enumeration, its reading by brute force, its findings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import prompts
from benchsuite.judge.favour import SHARES, Favour, continuation, favour, guessed, weighed
from benchsuite.judge.fidelity import FALSE_ALARM, Fidelity, evenness, examine
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm
from benchsuite.measure.paired import Comparison, checked
from benchsuite.measure.runners import EngineRunner
from benchsuite.measure.units import Unit
from benchsuite.tests.faulty_acceptance import SameTenth
from benchsuite.tests.rig import SETTING, Make
from specdec import Context, Draft, Engine, Request, SamplingParams, Window
from specdec.assembly import Assembly

SAMPLED = SamplingParams(temperature=1.0, seed=2, max_new_tokens=60)


def laws(rows: int, vocabulary: int, seed: int) -> Tensor:
    """Random distributions, float64 [rows, vocabulary], without zeros."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)).softmax(dim=-1)


def every_token(p: Tensor, q: Tensor) -> list[Favour]:
    """What each token of the vocabulary says, emitted where the target has ``p`` [V] and the draft ``q`` [V]."""
    return [weighed(p[None], q[None], [token]) for token in range(len(p))]


@pytest.mark.parametrize("certain", [False, True])
def test_a_token_of_the_target_raises_no_likelihood_and_one_of_the_mixture_as_much_as_is_said(certain: bool) -> None:
    """By enumeration: under p each ratio has the expectation 1; under the mixture its log has the gain and spread."""
    p, q = laws(2, 6, seed=4)
    p[4] = 0
    p /= p.sum()
    q = torch.eye(6, dtype=q.dtype)[2] if certain else q
    able = torch.where(p > 0, q, 0)
    able /= able.sum()
    found = every_token(p, q)
    for place, share in enumerate(SHARES):
        logs = torch.tensor([one.ratios[place] for one in found], dtype=p.dtype)
        assert float((p * logs.exp()).sum()) == pytest.approx(1, abs=1e-12)
        mixed = (1 - share) * p + share * able
        gain = float((mixed * logs).sum())
        assert found[0].gains[place] == pytest.approx(gain, abs=1e-12)
        assert found[0].spreads[place] == pytest.approx(float((mixed * logs**2).sum()) - gain**2, abs=1e-12)
    assert [one.kept for one in found] == pytest.approx(able.tolist())
    assert [one.due for one in found] == pytest.approx([float((p * able).sum())] * 6)


def test_what_the_target_cannot_emit_and_what_is_no_number_is_no_proposal() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[math.nan, 0.1, 0.9, 0.0]], dtype=torch.float64)
    assert weighed(p, q, [1]) == weighed(p, torch.eye(4, dtype=torch.float64)[None, 1], [1])
    assert weighed(p, torch.eye(4, dtype=torch.float64)[None, 2], [1]) == Favour()
    assert weighed(p, q, [2]).ratios == pytest.approx([math.log(1 - share) for share in SHARES]), "an outside token"


def test_rows_together_say_what_they_say_one_by_one() -> None:
    p, q = laws(5, 7, seed=1), laws(5, 7, seed=2)
    q[1], q[3] = torch.eye(7, dtype=q.dtype)[3], 0
    q[2, :4] = 0
    tokens = [0, 3, 5, 1, 6]
    whole = weighed(p, q, tokens)
    apart = sum((weighed(p[n : n + 1], q[n : n + 1], tokens[n : n + 1]) for n in range(5)), Favour())
    assert (whole.outputs, whole.tokens) == (0, 4) == (apart.outputs, apart.tokens)
    for name in ("kept", "due", "ratios", "gains", "spreads"):
        assert getattr(whole, name) == pytest.approx(getattr(apart, name), rel=1e-12), name


def test_the_p_value_is_one_over_the_mean_of_the_ratios_and_at_most_one() -> None:
    ratios = [20.0, 21.0, 3.0, -800.0, -2.0, 0.0]
    by_hand = 6 / sum(map(math.exp, ratios))
    assert Favour(1, 9, ratios=ratios).p_value == pytest.approx(by_hand, rel=1e-12)
    assert Favour().p_value == Favour(1, 9, ratios=[-5.0] * 6).p_value == 1.0


def test_the_least_share_that_is_found_reaches_the_threshold_at_its_99th_percentile() -> None:
    threshold = math.log(6 / 1e-6)
    spread = 4.0
    just = threshold + 2.3263478740408408 * 2
    gains = [0.0, just - 1e-9, just + 1e-9, 99.0, 99.0, 99.0]
    one = Favour(1, 9, gains=gains, spreads=[spread] * 6)
    assert one.found(1e-6, 0.99) == SHARES[2]
    assert one.found(2e-6, 0.99) == SHARES[1]
    assert Favour().found(1e-6, 0.99) is None


def one_of_each(chances: Tensor, generator: torch.Generator) -> Tensor:
    """One token of each row."""
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


def test_honest_rejection_rarely_looks_unlike_the_target_and_would_beside_its_own_proposals() -> None:
    """300 runs of 80 tokens: no more p-values below each level than Ville allows. Beside the proposals of the run,
    to which the emitted tokens are tied, an honest run fails."""
    runs, length, generator = 300, 80, torch.Generator().manual_seed(7)
    p, q = laws(runs * length, 8, seed=5), laws(runs * length, 8, seed=6)
    proposed, coin = one_of_each(q, generator), torch.rand(len(p), generator=generator, dtype=p.dtype)
    at = proposed[:, None]
    kept = coin < p.gather(1, at)[:, 0] / q.gather(1, at)[:, 0]
    emitted = torch.where(kept, proposed, one_of_each((p - q).clamp(min=0), generator))
    values = []
    for run in range(runs):
        rows = slice(run * length, (run + 1) * length)
        values.append(weighed(p[rows], q[rows], emitted[rows].tolist()).p_value)
    for level in (0.2, 0.05, 0.01):
        assert sum(value <= level for value in values) <= level * runs + 3 * (level * runs) ** 0.5
    tied = torch.nn.functional.one_hot(proposed[:2000], 8).double()
    assert weighed(p[:2000], tied, emitted[:2000].tolist()).p_value < FALSE_ALARM


class Named(Draft):
    """Proposes two tokens that follow from the pending one, as a chain or as siblings, certain or ``drawn``."""

    branches = True

    def __init__(self, siblings: bool, drawn: bool = False) -> None:
        self._siblings, self._drawn = siblings, drawn

    def propose(self, context: Context) -> Window:
        """Those of ``after``, as many as there is room for."""
        asked = zip(context.pending.tolist(), context.max_proposals_host.tolist(), strict=True)
        rows = [self.after(token)[:most] for token, most in asked]
        parents = [[0] * len(row) if self._siblings else [*range(len(row))] for row in rows]
        window = Window.ragged(context, rows, parents)
        q = self.law(window.tokens[:, 1:]).float() if self._drawn else None
        return replace(window, q=q)

    @staticmethod
    def after(token: int) -> list[int]:
        """What it proposes after a token."""
        return [(7 * token + 3) % 30, (11 * token + 1) % 30]

    @staticmethod
    def law(tokens: Tensor) -> Tensor:
        """The q of each proposal: float64, one more dimension."""
        uniform = torch.arange(258) < 30
        return 0.75 * torch.nn.functional.one_hot(tokens, 258) + uniform.double() / 120


def guesses(request: Request, output: tuple[int, ...], siblings: bool) -> Iterator[tuple[int, list[int]]]:
    """The index of each output token for which ``Named`` proposes something, and what."""
    at = 0
    while at < len(output):
        named = Named.after((*request.prompt, *output)[len(request.prompt) + at - 1])
        named = named[: request.params.max_new_tokens - at - 1]
        if siblings:
            if named:
                yield at, named
            at += 2 if output[at] in named else 1
            continue
        right = True
        for guess in named:
            if right and at < len(output):
                yield at, [guess]
                right = output[at] == guess
                at += 1
        at += right  # the token after a whole chain


@pytest.mark.parametrize("siblings", [False, True])
@pytest.mark.parametrize("certain", [False, True])
def test_each_token_is_held_against_what_the_draft_proposes_after_the_text_before_it(
    siblings: bool, certain: bool, assemble: Make
) -> None:
    """Outputs are made up: one often follows the draft, one never, and one ends early, at a token that was proposed."""
    draft = Named(siblings, drawn=not certain)
    build = assemble("llama", max_rows=2, max_length=120, extra=(("draft", "named", lambda env: draft),))
    engine, judge = build.engine("named", "match", k=2), Judge(build.target, range(40))
    ways = [(13, ()), (12, ()), (20, (Named.after(50)[0],))]
    work = [
        Request(n, prompt, replace(SAMPLED, temperature=0.7, max_new_tokens=most, eos=eos))
        for n, (prompt, (most, eos)) in enumerate(zip(prompts(3), ways, strict=True))
    ]
    last = work[0].prompt[-1]
    a, b = Named.after(last)
    c, d = Named.after(99)
    outputs = [
        (a, b, 99, c, d, c, 5, *Named.after(5), 8, 9, Named.after(9)[1], 1),
        (40,) * 12,
        (50, Named.after(50)[0]),
    ]
    p, q, came = list[Tensor](), list[Tensor](), list[int]()
    for request, output in zip(work, outputs, strict=True):
        for at, named in guesses(request, output, siblings):
            p.append((judge.logits((*request.prompt, *output[:at])).double() / 0.7).softmax(dim=0))
            proposed = torch.tensor(named)
            law = torch.nn.functional.one_hot(proposed, len(p[-1])).double() if certain else Named.law(proposed)
            q.append(law.sum(dim=0))
            came.append(output[at])
    expected = weighed(torch.stack(p), torch.stack(q), came)
    found = favour(engine, work, outputs)
    assert (found.outputs, found.tokens) == (3, expected.tokens)
    by_hand = sum(float(row[token] / row.sum()) for row, token in zip(q, came, strict=True))
    assert found.kept == pytest.approx(expected.kept) == pytest.approx(by_hand)
    for name in ("due", "ratios", "gains", "spreads"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4), name


def sampled_by_both(build: Assembly, engine: Engine, params: SamplingParams = SAMPLED) -> Fidelity:
    """Twelve outputs of 60 tokens, by both tests."""
    work = [Request(i, prompt, params) for i, prompt in enumerate(prompts(6) + prompts(6, seed=1))]
    outputs, judge = [done.tokens for done in engine.run(work)], Judge(build.target, range(40))
    whole = Fidelity(favour=favour(engine, work, outputs))
    for request, output in zip(work, outputs, strict=True):
        whole += examine(judge, request, output, output)
    return whole


TENTHS = (("policy", "same_tenth", lambda env: SameTenth(env)),)


@pytest.mark.parametrize("draft", ["ngram(n_min=1)", pytest.param("suffix(min_match=1)", marks=pytest.mark.slow)])
def test_a_policy_that_keeps_proposals_of_the_same_tenth_is_found_although_its_transforms_are_uniform(
    draft: str, assemble: Make
) -> None:
    """The likelier of two tokens comes first in the transforms, so that what stays in its bin is not seen there."""
    build = assemble("llama", max_rows=12, max_length=140, extra=TENTHS)
    whole = sampled_by_both(build, build.engine(draft, "same_tenth", k=4))
    asked, even = whole.favour, evenness(whole.bins)
    print(f"{draft}: p={even:.2g}, {asked.p_value:.0e}: {asked.kept:.0f} of {asked.tokens} tokens, due {asked.due:.0f}")
    assert evenness(whole.bins) > 1e-3
    assert whole.favour.kept > whole.favour.due
    assert whole.p_value < FALSE_ALARM
    assert "favour the draft's proposals" in (whole.failure or "")


def test_a_row_whose_policy_keeps_proposals_of_the_same_tenth_has_broken_its_contract(assemble: Make) -> None:
    """Beside the same row of an honest policy, over the same prompts."""
    build = assemble("llama", max_rows=12, max_length=140, extra=TENTHS)
    setting = replace(SETTING, sampling=SAMPLED, batch=12)
    arms = [Arm(setting), *(Arm(setting, draft="ngram", policy=policy, k=4) for policy in ("same_tenth", "rejection"))]
    engines = [build.engine(None, k=0)]
    engines += [build.engine("ngram(n_min=1)", arm.policy, k=4) for arm in arms[1:]]
    runners = {arm: EngineRunner(arm, engine) for arm, engine in zip(arms, engines, strict=True)}
    made = Comparison(runners, Judge(build.target, range(40)), lambda request: None, lambda text: None)
    work = [Request(i, prompt, SAMPLED) for i, prompt in enumerate(prompts(6) + prompts(6, seed=1))]
    made.measure([Unit(tuple(work), 0)])
    broken, honest = (made.series[arm] for arm in arms[1:])
    assert (broken.failed, honest.failed, honest.failure) == ("contract", None, None)
    assert evenness(broken.fidelity.bins) > 1e-3
    assert (checked([broken]) or "").startswith("FAILED: p<1e-12, finds")
    assert re.fullmatch(r"p=[\d.e-]+, finds 16 %, drafted \d+ %", checked([honest]) or "")


@pytest.mark.parametrize(
    ("draft", "policy"),
    [
        ("ngram(n_min=1)", "rejection"),
        *(
            pytest.param(draft, policy, marks=pytest.mark.slow)
            for draft, policy in [
                ("draft_model", "rejection"),
                ("draft_model", "block"),
                ("draft_model", "match"),
                ("suffix(min_match=1)", "block"),
                ("ngram(n_min=1, branches=3)", "tree_rejection"),
                ("draft_model", "tree_rejection"),
            ]
        ),
    ],
)
@pytest.mark.parametrize("top_k", [0, 40])
def test_honest_policies_favour_no_draft(draft: str, policy: str, top_k: int, assemble: Make) -> None:
    """Also one that learns: of an output that it has seen it knows every token, unless it forgets."""
    build = assemble("llama", max_rows=12, max_length=140)
    whole = sampled_by_both(build, build.engine(draft, policy, k=4), replace(SAMPLED, top_k=top_k))
    assert whole.favour.outputs == 12
    assert whole.favour.tokens >= 50
    assert whole.failure is None, whole.failure


def test_a_lookup_proposes_what_followed_the_same_two_tokens_last() -> None:
    text = (1, 2, 3, 1, 2, 4, 1, 2, 5, 5, 5, 5)
    assert continuation(text, 0) == [None, None, None, None, None, 3, None, None, 4, None, None, 5]
    assert continuation(text, 10) == [None, 5]
    assert continuation((7,), 1) == []


def test_a_guess_is_a_draft_that_is_sure() -> None:
    chances, right = [0.25, 0.0, 1.0, 0.5], [True, False, True, False]
    p = torch.tensor([[0.25, 0.5, 0.25], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25]], dtype=torch.float64)
    expected = weighed(p, torch.tensor([1.0, 0.0, 0.0]).double().expand(4, 3), [0, 1, 0, 2])
    found = guessed(chances, right)
    assert (found.tokens, found.kept, found.due) == (3, 2.0, 1.75)
    for name in ("ratios", "gains", "spreads"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12), name
    assert guessed([], []) == Favour()


def test_another_engine_is_held_against_a_lookup(assemble: Make) -> None:
    """It cannot be asked again: what two tokens were followed by is what it may have proposed."""
    build = assemble("llama", max_rows=1, max_length=140)
    judge, request = Judge(build.target, range(40)), Request(0, (5, 6, 7), SAMPLED)
    output = (9, 5, 6, 7, 5, 6, 8)
    guesses_at = {3: 7, 4: 9, 6: 7}  # by hand
    laws_at = {at: judge.logits((*request.prompt, *output[:at])).double().softmax(dim=0) for at in guesses_at}
    chances = [float(laws_at[at][guess]) for at, guess in guesses_at.items()]
    found = examine(judge, request, output, output, looked_up=True).favour
    expected = guessed(chances, [True, False, False])
    assert (found.outputs, found.tokens, found.kept) == (1, 3, 1.0)
    assert found.ratios == pytest.approx(expected.ratios, rel=1e-4)
    assert examine(judge, request, output, output).favour == Favour()


def test_a_draft_that_replays_and_an_engine_without_one_are_not_asked(assemble: Make) -> None:
    build = assemble("llama", max_rows=2, max_length=140)
    work = [Request(0, prompts(1)[0], replace(SAMPLED, max_new_tokens=6))]
    for draft in (None, "oracle"):
        engine = build.engine(draft, "rejection", k=2 if draft else 0)
        assert favour(engine, work, [done.tokens for done in engine.run(work)]) == Favour()


class NotingSeeds(Named):
    """Notes the seeds of its requests, and when it forgets."""

    def __init__(self) -> None:
        super().__init__(siblings=False)
        self.noted = list[object]()

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Note the seed."""
        self.noted.append(request.params.seed)

    def forget(self) -> None:
        """Note it."""
        self.noted.append("forget")


@pytest.mark.parametrize("seed", [0, 3, 2**63 - 1])
def test_a_draft_is_asked_again_with_a_seed_that_the_run_did_not_have_and_without_what_it_learnt(
    seed: int, assemble: Make
) -> None:
    draft = NotingSeeds()
    build = assemble("llama", max_rows=2, max_length=140, extra=(("draft", "noting", lambda env: draft),))
    engine = build.engine("noting", "match", k=2)
    work = [Request(i, prompt, replace(SAMPLED, seed=seed, max_new_tokens=4)) for i, prompt in enumerate(prompts(2))]
    outputs = [done.tokens for done in engine.run(work)]
    favour(engine, work, outputs)
    before, again, *rest = (draft.noted[:2], draft.noted[3:5], draft.noted[2], *draft.noted[5:])
    assert rest == ["forget", "forget"]
    assert before == [seed] * 2
    assert len(set(again)) == 1
    assert seed not in again


def test_an_engine_decodes_on_as_before_it_was_asked(assemble: Make) -> None:
    build = assemble("llama", max_rows=2, max_length=140)
    engine = build.engine("suffix(min_match=1)", "rejection", "adaptive", k=3)
    before = engine.policy, engine.controller, engine.runtime
    work = [Request(i, prompt, replace(SAMPLED, max_new_tokens=20)) for i, prompt in enumerate(prompts(3))]
    outputs = [done.tokens for done in engine.run(work)]
    favour(engine, work, outputs)
    assert (engine.policy, engine.controller, engine.runtime) == before
    assert [done.tokens for done in engine.run(work)] == outputs
