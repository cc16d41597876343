"""Only the unmodified model can certify a difference as a tie; a corrupt arena cannot."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from benchsuite.conformance.models.tiny import prompts, registry
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import MEASURED, MOST_FLOAT32, TOO_MANY, Judge, equal_text, rate, too_many, upper_limit
from benchsuite.measure import workloads
from benchsuite.tests.rig import Make, pairs_in_turn
from specdec import Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_kernels.reference import Reference

PROOF = Path(__file__).parents[3] / "docs" / "proof.md"
ARMS = (("oracle(0.8)", 6), ("ngram", 1), ("garbage", 4))
"""A draft and the rows of its batch; its K is 8."""

REQUEST = Request(0, prompts(1)[0], SamplingParams(max_new_tokens=6))


@dataclass
class ScriptedSource:
    """One output, and logits near the unmodified model's."""

    output: tuple[int, ...]
    logits: Tensor | None

    def tokens(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        # After a forced prefix both sources continue with the same tokens.
        return [self.output[len(requests[0].prompt) - len(REQUEST.prompt) :]]

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        return self.logits


def near_tie(assemble: Make) -> tuple[Judge, tuple[int, ...], Tensor, int]:
    """A judge, plain's output, the model's logits at token 2 and the runner-up there."""
    build = assemble()
    judge = Judge(build.target, range(40))
    output = build.plain(REQUEST)
    logits = judge.logits((*REQUEST.prompt, *output[:2]))
    return judge, output, logits, int(logits.topk(2).indices[1])


def _lifted(logits: Tensor, token: int, lift: float) -> Tensor:
    """The model's logits with ``token``'s set to ``lift`` above the maximum."""
    changed = logits.clone()
    changed[token] = logits.max() + lift
    return changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lift", "tie", "reason"),
    [(1e-6, True, "both within the bound"), (1.0, False, "the other's logits lie 1"), (-1.0, False, "lie 1")],
)
def test_a_difference_is_a_tie_only_within_the_bound(
    lift: float, tie: bool, reason: str, assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, output, logits, second = near_tie(assemble)
    # In the unmodified model the two logits are nearly equal.
    level = _lifted(logits, second, -1e-6)
    monkeypatch.setattr(judge, "logits", lambda prefix: level)
    other = (*output[:2], second, *output[3:])
    runners = ScriptedSource(output, level), ScriptedSource(other, _lifted(level, second, lift))
    found = judge.compare([REQUEST], REQUEST, *runners, (output, other))
    assert [difference.tie for difference in found] == [tie], found
    assert reason in found[0].reason
    assert found[0].index == 2


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.9, 1.1])
@pytest.mark.parametrize("lift", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("arm", [0, 1], ids=["plain", "the other"])
def test_any_logit_of_either_arm_beyond_the_bound_is_a_bug(
    arm: int, lift: int, share: float, assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine tenths of the bound pass, eleven do not: at a token that neither arm chose, upwards or downwards."""
    judge, output, logits, second = near_tie(assemble)
    level = _lifted(logits, second, -1e-6)
    monkeypatch.setattr(judge, "logits", lambda prefix: level)
    seen = [level, _lifted(level, second, 1e-6)]
    seen[arm] = seen[arm].clone()
    seen[arm][level.argmin()] += lift * share * judge.bound
    other = (*output[:2], second, *output[3:])
    runners = ScriptedSource(output, seen[0]), ScriptedSource(other, seen[1])
    [found] = judge.compare([REQUEST], REQUEST, *runners, (output, other))
    assert found.tie is (share < 1), found
    assert found.tie or f"{('plain', 'the other')[arm]}'s logits lie" in found.reason


def test_a_token_of_plain_that_its_own_logits_do_not_give_is_a_bug(assemble: Make) -> None:
    judge, output, logits, second = near_tie(assemble)
    plain = (*output[:2], second, *output[3:])
    found = judge.compare(
        [REQUEST], REQUEST, ScriptedSource(plain, logits), ScriptedSource(output, logits), (plain, output)
    )
    assert not found[0].tie
    assert "plain's token does not follow from its own logits" in found[0].reason


def test_a_token_that_its_own_logits_do_not_give_is_a_bug(assemble: Make) -> None:
    judge, output, logits, second = near_tie(assemble)
    other = (*output[:2], second, *output[3:])
    found = judge.compare(
        [REQUEST], REQUEST, ScriptedSource(output, logits), ScriptedSource(other, logits), (output, other)
    )
    assert not found[0].tie
    assert "the other's token does not follow from its own logits" in found[0].reason


def test_every_difference_after_a_tie_is_counted_from_the_outputs_first_token(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both arms go on from plain's prefix; what they emit then differs again, and a third time."""
    judge, _, logits, second = near_tie(assemble)
    first = int(logits.argmax())
    monkeypatch.setattr(judge, "logits", lambda prefix: _lifted(logits, second, -1e-6))

    @dataclass
    class Forking(ScriptedSource):
        """Its own token at every second place, and the others' elsewhere."""

        own: int = 0

        def tokens(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
            done = len(requests[0].prompt) - len(REQUEST.prompt)
            return [tuple(self.own if place % 2 else first for place in range(done, 6))]

    plain = Forking((), _lifted(logits, second, -1e-6), own=first)
    other = Forking((), _lifted(logits, second, 1e-6), own=second)
    outputs = plain.tokens([REQUEST])[0], other.tokens([REQUEST])[0]
    found = judge.compare([REQUEST], REQUEST, plain, other, outputs)
    assert [(one.index, one.tie) for one in found] == [(1, True), (3, True), (5, True)]


def test_a_tie_of_two_exact_arms_is_a_bug(assemble: Make) -> None:
    judge, output, logits, second = near_tie(assemble)
    other = (*output[:2], second, *output[3:])
    judge.logits = lambda prefix: _lifted(logits, second, -1e-6)  # type: ignore[method-assign]
    runners = ScriptedSource(output, logits), ScriptedSource(other, _lifted(logits, second, 1e-6))
    outputs = output, other
    [_, bug] = (judge.compare([REQUEST], REQUEST, *runners, outputs, exact)[0] for exact in (False, True))
    assert not bug.tie
    assert "both are exact" in bug.reason


@torch.inference_mode()
def test_the_judges_logits_of_half_precision_are_not_rounded_and_the_peers_are_transformers_own(
    assemble: Make,
) -> None:
    target = assemble(dtype=torch.bfloat16).target
    logits = Judge(target, range(40)).logits(REQUEST.prompt)
    assert not torch.equal(logits, logits.bfloat16().float())
    assert target.twin()(torch.tensor([REQUEST.prompt]), use_cache=False).logits.dtype == torch.bfloat16


def test_entropy_is_that_of_the_models_own_distribution(assemble: Make) -> None:
    judge, output, _, _ = near_tie(assemble)
    distributions = [judge.logits((*REQUEST.prompt, *output[:i])).double().softmax(dim=0) for i in range(len(output))]
    expected = sum(float(-(distribution * distribution.log2()).sum()) for distribution in distributions) / len(
        distributions
    )
    assert judge.entropy(REQUEST.prompt, output) == pytest.approx(expected, rel=1e-4)


def test_an_output_that_ends_early_is_a_bug(assemble: Make) -> None:
    judge, output, logits, _ = near_tie(assemble)
    found = judge.compare(
        [REQUEST], REQUEST, ScriptedSource(output, logits), ScriptedSource(output[:3], logits), (output, output[:3])
    )
    assert "one output ends where the other goes on" in found[0].reason


class Leaky(Reference):
    """A planted fault: every query also sees a cell that must be hidden."""

    name = "leaky"

    def tree_attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        scaling: float,
        softcap: float | None,
        used: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        mask = mask.clone()
        mask[..., -1] = 0
        return super().tree_attention(query, keys, values, mask, scaling, softcap, used, sinks)


@pytest.mark.slow
def test_a_corrupt_arena_cannot_certify_itself(assemble: Make) -> None:
    build = assemble(backend="reference")  # no op of a whole layer hides its attention
    judge = Judge(build.target, range(40))
    sound, broken = build.engine(None), build.engine(None)
    work = [replace(REQUEST, params=SamplingParams(max_new_tokens=40))]
    expected = EngineSource(sound).tokens(work)[0]
    build.target.ops = Leaky()
    got = EngineSource(broken).tokens(work)[0]
    assert expected != got, "the planted fault changed nothing"
    runners = EngineSource(sound), EngineSource(broken)
    # Both arms now run on the corrupt arena and their logits agree; the model without the arena disagrees.
    found = judge.compare(work, work[0], *runners, (expected, got))
    assert not found[-1].tie
    assert "from the unmodified model's" in found[-1].reason or "did not repeat" in found[-1].reason


def test_the_bound_is_measured_small_and_capped(assemble: Make) -> None:
    bound = Judge(assemble().target, range(40)).bound
    assert 0 < bound <= MOST_FLOAT32
    assert Judge(assemble(dtype=torch.bfloat16).target, range(40)).bound > bound


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_bound_is_four_times_what_the_model_differs_from_itself(dtype: torch.dtype, assemble: Make) -> None:
    """Between the last eight tokens of 24 at once and one by one; in half precision at least a rounding step."""
    judge = Judge(assemble(dtype=dtype).target, range(5))
    ids = torch.arange(24)[None] % 5
    whole, single = DynamicCache(config=judge.model.config), DynamicCache(config=judge.model.config)
    for cache in (whole, single):
        judge.model(ids[:, :16], past_key_values=cache)
    at_once = judge.model(ids[:, 16:], past_key_values=whole).logits[0].double()
    far = largest = 0.0
    for place in range(8):
        alone = judge.model(ids[:, 16 + place, None], past_key_values=single).logits[0, 0].double()
        far = max(far, float((alone - at_once[place]).abs().max()))
        largest = max(largest, float(at_once[place].abs().max()))
    least = 0.0 if dtype == torch.float32 else 2.0**-7 * largest
    assert judge.bound == pytest.approx(4 * max(far, least), rel=1e-6)


@pytest.mark.parametrize(("count", "of"), [(0, 50), (3, 50), (50, 50)])
def test_the_upper_limit_is_where_so_few_events_have_the_probability_left(count: int, of: int) -> None:
    limit = Fraction(upper_limit(count, of, 0.99))
    few = sum(comb(of, i) * limit**i * (1 - limit) ** (of - i) for i in range(count + 1))
    assert float(few) == pytest.approx(1.0 if count == of else 0.01, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [0, 1, 24, 300])
def test_ties_are_too_many_from_the_count_that_the_rate_makes_rare(tokens: int, dtype: torch.dtype) -> None:
    chance = Fraction(rate(dtype))
    least = next(count for count in range(tokens + 2) if count > tokens or too_many(count, tokens, dtype))

    def as_many(count: int) -> Fraction:
        return sum(comb(tokens, i) * chance**i * (1 - chance) ** (tokens - i) for i in range(count, tokens + 1))  # type: ignore[return-value]

    assert as_many(least) < TOO_MANY <= as_many(least - 1)
    said = too_many(tokens + 1, tokens, dtype) or ""
    assert f"{tokens + 1} certified ties in {tokens} compared tokens, expected are at most {least - 1}" in said


def test_double_precision_ties_as_seldom_as_single_and_half_precision_oftener() -> None:
    assert rate(torch.float64) == rate(torch.float32) < rate(torch.bfloat16) == rate(torch.float16)


def test_a_row_says_how_many_outputs_are_equal_and_how_many_ties_the_others_hold() -> None:
    assert (equal_text(18, 18, 0), equal_text(17, 18, 1), equal_text(17, 18, 2)) == (
        "18/18",
        "17/18, 1 tie",
        "17/18, 2 ties",
    )


def test_the_rates_are_those_of_the_documented_table() -> None:
    """Of each precision the row with the most ties a token; where none has any, all rows together."""
    table = re.findall(r"^\|.*\| (float32|bfloat16) +\|.*\| +(\d+) \| +(\d+) \|$", PROOF.read_text(), re.MULTILINE)
    rows = defaultdict[str, list[tuple[int, int]]](list)
    for dtype, ties, tokens in table:
        rows[dtype].append((int(ties), int(tokens)))
    for dtype, documented in zip(("float32", "bfloat16"), MEASURED.values(), strict=True):
        most = max(Fraction(*row) for row in rows[dtype])
        chosen = [row for row in rows[dtype] if Fraction(*row) == most]
        assert documented == tuple(map(sum, zip(*chosen, strict=True))), rows[dtype]


def ties_in(
    build: Assembly, arms: tuple[str, int], judge: Judge, work: Sequence[Request], seen: tuple[int, int]
) -> tuple[int, int]:
    """Certified ties and tokens of plain decoding one by one beside a draft, added to those seen; no bugs."""
    plain = EngineSource(build.engine(None, max_rows=1))
    other = EngineSource(build.engine(arms[0], k=8, max_rows=arms[1]))
    ties, tokens = seen
    for request, expected, got in zip(work, plain.tokens(work), other.tokens(work), strict=True):
        found = judge.compare(work, request, plain, other, (expected, got))
        assert all(difference.tie for difference in found), found[-1]
        ties, tokens = ties + len(found), tokens + len(expected)
    return ties, tokens


BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
EITHER = pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "dtype"), pairs_in_turn(["auto", "reference"], [torch.float32, torch.bfloat16], 1))
@EITHER
def test_ties_of_tiny_models_are_no_more_than_documented(
    backend: str, temperature: float, dtype: torch.dtype, seeds: range
) -> None:
    """``-s --specdec-deep`` prints rows of the table in docs/proof.md.

    Each seed has weights, prompts and one arm of its own: arms over one text would find the same ties.
    """
    seen = (0, 0)
    for seed in seeds:
        loaded = catalog.load("tiny", torch.device("cpu"), dtype, seed=seed)
        target = ArenaModel(loaded.model, registry().backend(backend))
        build = Assembly(registry(), target, loaded.tokenizer, max_rows=6, max_length=160)
        work = [
            Request(i, prompt, SamplingParams(temperature=temperature, seed=seed, max_new_tokens=20 + 5 * i))
            for i, prompt in enumerate(prompts(6, seed=seed))
        ]
        seen = ties_in(build, ARMS[seed % len(ARMS)], Judge(target, range(40)), work, seen)
    print(f"tiny, {dtype}, temperature {temperature:g}, {backend}: {seen[0]} ties in {seen[1]} tokens")
    assert not too_many(*seen, dtype)


@pytest.mark.slow
@BOTH
@EITHER
def test_ties_of_smollm2_are_no_more_than_documented(temperature: float, dtype: torch.dtype, seeds: range) -> None:
    """The same for the ends of the workloads' prompts; torch has no fast bfloat16 on some processors."""
    if len(seeds) == 1:
        pytest.skip("minutes in float32, up to an hour in bfloat16: --specdec-deep")
    loaded = catalog.load("smollm2-135m", torch.device("cpu"), dtype, rows=6, max_length=160)
    target = ArenaModel(loaded.model, registry().backend())
    kinds = [workloads.load_workload(kind).first(3) for kind in workloads.KINDS]
    encoded = [prompt for kind in kinds for prompt in kind.encode(loaded.tokenizer)]
    texts = [prompt[-(32 + 5 * (i % 5)) :] for i, prompt in enumerate(encoded)]
    batches, rows, most = (3, 6, 64) if dtype == torch.float32 else (7, 2, 48)
    build = Assembly(registry(), target, loaded.tokenizer, max_rows=rows, max_length=52 + most)
    judge, seen = Judge(target, max(texts, key=len)), (0, 0)
    for batch in range(batches):
        work = [
            Request(
                i,
                texts[(batch * rows + i) % len(texts)],
                SamplingParams(temperature=temperature, seed=batch, max_new_tokens=most - 7 * (i % 3), eos=(2,)),
            )
            for i in range(rows)
        ]
        seen = ties_in(build, ("oracle(0.8)", rows), judge, work, seen)
    print(f"SmolLM2, {dtype}, temperature {temperature:g}: {seen[0]} ties in {seen[1]} tokens, bound {judge.bound:.1e}")
    assert not too_many(*seen, dtype)
