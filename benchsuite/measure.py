"""Paired measurement: all arms of a setting alternate, prompt by prompt, in one process.

The unit is a prompt (a batch of prompts for batch > 1). Within a unit the arms run in random order; each
arm's pair is (plain, arm) of the same unit, its value the ratio of seconds per token, and a speedup is
the median of the ratios with a bootstrap interval over units.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from benchsuite.arms import EngineRunner, Outcome, Runner
from benchsuite.matrix import Arm
from benchsuite.ties import Difference, Judge
from specdec.errors import SpecdecError
from specdec.interfaces import Contract
from specdec.messages import Request

WARM_UP = 8
"""Tokens that every arm decodes before its first timed run of a workload."""

RESAMPLES = 2000
"""Bootstrap resamples of a median."""


@dataclass
class Series:
    """One arm's outcomes over the units, beside plain's of the same units, and how it kept its contract."""

    arm: Arm
    contract: Contract
    outcomes: list[Outcome] = field(default_factory=list)
    plain: list[Outcome] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    compared: int = 0
    error: str | None = None

    @property
    def failure(self) -> str | None:
        """Why the row shows no speed: the arm could not be run, or some output broke its contract."""
        bugs = [str(difference) for difference in self.differences if not difference.tie]
        return self.error or "\n".join(bugs) or None

    @property
    def checked(self) -> str | None:
        """What the contract check found; None where token-by-token equality is not promised."""
        if self.arm.plain:
            return "baseline"
        if self.error:
            return "FAILED: could not be measured"
        if self.contract != "exact":
            return None
        if self.failure:
            bugs = sum(not difference.tie for difference in self.differences)
            return f"FAILED: {bugs} of {self.compared} differ"
        ties = len(self.differences)
        return f"equal {self.compared}/{self.compared}" + (f", {ties} ties" if ties else "")

    @property
    def ratios(self) -> list[float]:
        """Paired speedups: plain's seconds per token over this arm's, one for each unit that can be timed."""
        pairs = zip(self.plain, self.outcomes, strict=True)
        return [p.seconds_per_token / o.seconds_per_token for p, o in pairs if p.decoded and o.decoded]


def interval(values: Sequence[float], seed: int = 0, level: float = 0.95) -> tuple[float, float, float]:
    """The median of ``values`` and its percentile-bootstrap interval (seeded; with one value, that value)."""
    generator = random.Random(seed)
    medians = sorted(median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - level) / 2)
    return median(values), medians[cut], medians[-1 - cut]


def units(prompts: Sequence[tuple[int, ...]], arm: Arm, eos: tuple[int, ...]) -> list[list[Request]]:
    """One unit for each prompt: a batch that starts at it and goes round; ids are unique over all units."""
    params, batch = arm.setting.sampling(eos), arm.setting.batch
    return [
        [Request(first * batch + offset, prompts[(first + offset) % len(prompts)], params) for offset in range(batch)]
        for first in range(len(prompts))
    ]


def alternate(
    runners: dict[Arm, Runner],
    work: Sequence[list[Request]],
    judge: Judge,
    prime: Callable[[Request], object],
    progress: Callable[[str], None],
) -> Iterator[Series]:
    """Run every arm on every unit in random order, then check contracts; yields each arm's series.

    ``prime`` is called with every request before its unit is timed. The outputs that are checked are those
    that were timed.
    """
    plain = next(arm for arm in runners if arm.plain)
    series = {arm: Series(arm, contract(runner)) for arm, runner in runners.items()}
    order = random.Random(plain.setting.seed)
    first = work[0][0]
    short = replace(first, params=replace(first.params, max_new_tokens=WARM_UP))
    for arm in runners:
        progress(f"warming up {arm.label}")
        with _kept_apart(series[arm]):
            runners[arm].run([short])
    for number, requests in enumerate(work, 1):
        for request in requests:
            prime(request)
        shuffled = list(runners)
        order.shuffle(shuffled)
        outcomes = {}
        for arm in shuffled:
            progress(f"prompt {number}/{len(work)}: {arm.label}")
            if not series[arm].error:
                with _kept_apart(series[arm]):
                    outcomes[arm] = runners[arm].run(requests)
        for arm, outcome in outcomes.items():
            series[arm].outcomes.append(outcome)
            series[arm].plain.append(outcomes[plain])
    for arm, one in series.items():
        progress(f"checking {arm.label}")
        if not arm.plain and not one.error and one.contract == "exact":
            with _kept_apart(one):
                _check(one, runners[plain], runners[arm], work, judge)
        yield one


@contextmanager
def _kept_apart(one: Series) -> Iterator[None]:
    """One arm's failure is noted in its row and takes no other arm along; without plain there is no row at all."""
    try:
        yield
    except Exception as error:
        if one.arm.plain:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SpecdecError) else f" ({type(error).__name__}, {where.filename}:{where.lineno})"
        one.error = f"{one.arm.label} could not be measured: {error}{place}"


def contract(runner: Runner) -> Contract:
    """What an arm promises: its policy's contract; a peer's plain greedy output is the same text."""
    params = runner.arm.setting.sampling(())
    if isinstance(runner, EngineRunner):
        return runner.engine.policy.contract(params)
    return "exact" if params.temperature == 0 else "distribution"


def _check(one: Series, plain: Runner, runner: Runner, work: Sequence[list[Request]], judge: Judge) -> None:
    for requests, theirs, ours in zip(work, one.plain, one.outcomes, strict=True):
        for request, expected, got in zip(requests, theirs.tokens, ours.tokens, strict=True):
            one.compared += 1
            if expected != got:
                one.differences += judge.compare(requests, request, plain, runner, (expected, got))
