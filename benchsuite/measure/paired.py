"""Paired measurement: all arms of a setting alternate, prompt by prompt, in one process.

The unit is a prompt (for batch > 1, a batch of prompts). Within a unit the arms run in random order. A pair is (plain,
arm) of one unit, and its value is the ratio of their seconds per token. A speedup is the median of these ratios, with a
bootstrap interval over units.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from benchsuite.measure import fidelity
from benchsuite.measure.fidelity import FALSE_ALARM, Fidelity
from benchsuite.measure.matrix import Arm
from benchsuite.measure.runners import EngineRunner, Outcome, Runner
from benchsuite.measure.ties import Difference, Judge
from specdec.errors import SpecdecError
from specdec.interfaces import Contract
from specdec.request import Request

WARM_UP = 8
"""Tokens that every arm decodes before its first timed run of a workload."""

RESAMPLES = 2000
"""Bootstrap resamples of a median."""


@dataclass
class Series:
    """One arm's outcomes over the units, plain's outcomes of the same units, and the result of the contract check.

    ``repeats`` is False where the controller reads the clock: a second run may propose and count differently.
    """

    arm: Arm
    contract: Contract
    outcomes: list[Outcome] = field(default_factory=list)
    plain: list[Outcome] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    compared: int = 0
    fidelity: Fidelity = field(default_factory=Fidelity)
    error: str | None = None
    repeats: bool = True

    @property
    def failure(self) -> str | None:
        """Why the row shows no speed: the arm could not run, or an output broke its contract. Otherwise None."""
        bugs = [str(difference) for difference in self.differences if not difference.tie]
        if self.contract == "distribution" and self.fidelity.p_value < FALSE_ALARM:
            bugs.append(
                f"its {self.fidelity.tokens} tokens do not follow the target's distribution: the probability integral "
                f"transforms, counted in {len(self.fidelity.bins)} equal bins, are {self.fidelity.bins}; tokens of the "
                f"target itself would be as uneven with probability {self.fidelity.p_value:.1e}"
            )
        return self.error or "\n".join(bugs) or None

    @property
    def checked(self) -> str | None:
        """The result of the contract check, as text."""
        return checked([self])

    @property
    def ratios(self) -> list[float]:
        """Paired speedups: plain's seconds per token over this arm's, for each unit in which both decoded tokens."""
        pairs = zip(self.plain, self.outcomes, strict=True)
        return [p.seconds_per_token / o.seconds_per_token for p, o in pairs if p.decoded and o.decoded]


def checked(every: Sequence[Series]) -> str | None:
    """Return the result of one arm's contract checks, over one or several series; None if no token was examined."""
    first = every[0]
    if first.arm.plain:
        return "baseline"
    if any(series.error for series in every):
        return "FAILED: could not be measured"
    if first.contract == "exact":
        differences = [difference for series in every for difference in series.differences]
        compared = sum(series.compared for series in every)
        bugs, ties = (sum(difference.tie is tie for difference in differences) for tie in (False, True))
        if bugs:
            return f"FAILED: {bugs} of {compared} differ"
        return f"equal {compared}/{compared}" + (f", {ties} ties" if ties else "")
    whole = sum((series.fidelity for series in every), Fidelity())
    if not whole.tokens:
        return None
    if first.contract == "distribution":
        failed = "FAILED: " if any(series.failure for series in every) else ""
        return f"{failed}p={whole.p_value:.2g}"
    ours, plain = whole.perplexities
    return f"{whole.agreed / whole.tokens:.0%} agree; ppl {ours:.2f} for {plain:.2f}"


def interval(values: Sequence[float], seed: int = 0, level: float = 0.95) -> tuple[float, float, float]:
    """Return the median of ``values`` and its percentile-bootstrap interval (seeded; for one value, that value)."""
    generator = random.Random(seed)
    medians = sorted(median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - level) / 2)
    return median(values), medians[cut], medians[-1 - cut]


def units(prompts: Sequence[tuple[int, ...]], arm: Arm, eos: tuple[int, ...]) -> list[list[Request]]:
    """Return one unit for each prompt: a batch that starts there and wraps around; ids are unique over all units."""
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
    passes: int = 1,
) -> Iterator[Series]:
    """Run every arm on every unit in random order, then check the contracts. Yields each arm's series.

    ``passes`` repeats all units, for more pairs; the drafts forget earlier outputs before each pass. ``prime`` is
    called with every request before its unit is timed. The timed outputs are the ones that are checked.
    """
    plain = next(arm for arm in runners if arm.plain)
    series = {arm: Series(arm, contract_of(runner), repeats=repeats(runner)) for arm, runner in runners.items()}
    order = random.Random(plain.setting.seed)
    first = work[0][0]
    short = replace(first, params=replace(first.params, max_new_tokens=WARM_UP))
    for arm in runners:
        progress(f"warming up {arm.label}")
        with _isolated(series[arm]):
            runners[arm].run([short])
    whole = [*work] * passes
    for number, requests in enumerate(whole):
        if number % len(work) == 0:
            for runner in runners.values():
                runner.forget()
        for request in requests:
            prime(request)
        shuffled = list(runners)
        order.shuffle(shuffled)
        outcomes = {}
        for arm in shuffled:
            progress(f"prompt {number + 1}/{len(whole)}: {arm.label}")
            if not series[arm].error:
                with _isolated(series[arm]):
                    outcomes[arm] = runners[arm].run(requests)
        for arm, outcome in outcomes.items():
            series[arm].outcomes.append(outcome)
            series[arm].plain.append(outcomes[plain])
    for arm, measured in series.items():
        progress(f"checking {arm.label}")
        if not arm.plain and not measured.error:
            with _isolated(measured):
                _check(measured, runners[plain], runners[arm], whole, judge)
        yield measured


@contextmanager
def _isolated(series: Series) -> Iterator[None]:
    """Record an arm's exception in its series, so that the other arms continue; plain's exception is raised."""
    try:
        yield
    except Exception as error:
        if series.arm.plain:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SpecdecError) else f" ({type(error).__name__}, {where.filename}:{where.lineno})"
        series.error = f"{series.arm.label} could not be measured: {error}{place}"


def contract_of(runner: Runner) -> Contract:
    """Return the arm's contract: its policy's or, for a peer, "exact" if greedy and "distribution" if sampled."""
    params = runner.arm.setting.sampling(())
    if isinstance(runner, EngineRunner):
        return runner.engine.policy.contract(params)
    return "exact" if params.temperature == 0 else "distribution"


def repeats(runner: Runner) -> bool:
    """Whether the arm's counters are the same whenever its tokens are."""
    return not isinstance(runner, EngineRunner) or runner.engine.controller.deterministic


def _check(series: Series, plain: Runner, runner: Runner, work: Sequence[list[Request]], judge: Judge) -> None:
    for requests, theirs, ours in zip(work, series.plain, series.outcomes, strict=True):
        for request, expected, got in zip(requests, theirs.tokens, ours.tokens, strict=True):
            series.compared += 1
            if series.contract != "exact":
                series.fidelity += fidelity.examine(judge, request, expected, got)
            elif expected != got:
                series.differences += judge.compare(requests, request, plain, runner, (expected, got))
