"""Only the unmodified model can certify a difference as a tie; a corrupt arena cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from benchsuite.measure.sources import EngineSource
from benchsuite.measure.ties import MOST_FLOAT32, Judge
from benchsuite.prove.tiny import prompts
from benchsuite.tests.rig import Make
from specdec import Request, SamplingParams
from specdec_kernels.reference import Reference

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


def test_a_token_that_its_own_logits_do_not_give_is_a_bug(assemble: Make) -> None:
    judge, output, logits, second = near_tie(assemble)
    other = (*output[:2], second, *output[3:])
    found = judge.compare(
        [REQUEST], REQUEST, ScriptedSource(output, logits), ScriptedSource(other, logits), (output, other)
    )
    assert not found[0].tie
    assert "the other's token does not follow from its own logits" in found[0].reason


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
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        mask = mask.clone()
        mask[..., -1] = 0
        return super().tree_attention(query, keys, values, mask, scaling, softcap)


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
