"""Paired measurement: all arms of a setting alternate, unit by unit, in one process.

A unit is a prompt (for batch > 1, a batch of different prompts) that every arm runs, in random order. A pair is two
arms' runs of one unit, and its value is the ratio of their seconds per token. Before each unit a draft and its
controller forget what they learnt; a draft that declares that it ``learns`` forgets before each pass over the units.
"""

from __future__ import annotations

import random
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import log
from typing import Literal

import torch
from torch import Tensor

from benchsuite.judge import fidelity, ties
from benchsuite.judge.agreement import Agreement
from benchsuite.judge.favour import favour
from benchsuite.judge.fidelity import Fidelity
from benchsuite.judge.judgement import Judgement, Output
from benchsuite.judge.sources import Tokens
from benchsuite.judge.ties import Difference, Judge
from benchsuite.machine import memory
from benchsuite.measure.arms import Arm, PeerName
from benchsuite.measure.bystanders import Bystanders
from benchsuite.measure.peers import PeerRunner
from benchsuite.measure.runners import EngineRunner, Guessed, Outcome, Runner, raised_text
from benchsuite.measure.units import Unit
from benchsuite.measure.watchdog import RunTimeout
from specdec.errors import RAISED, SpecdecError
from specdec.interfaces import Contract
from specdec.ranks import on_all_ranks
from specdec.request import Request

WARM_UP = 8
"""Tokens that every arm without twins decodes before its first timed run of a workload."""

LEARNT = 0.1
"""The share of an output that a draft may guess more at a second time without having learnt: its forwards may round
otherwise than before."""


Promise = Contract | Literal["own"]
"""A contract, or of a peer with arithmetic of its own: its tokens are compared with plain's and not judged."""


@dataclass
class Series:
    """One arm's outcomes over the units, plain's outcomes of the same units, and the result of the contract check.

    ``error``: why it could not be measured; ``ended``: the kind of that, ``refused``, ``crashed`` or ``timeout``.
    ``repeats`` is False where the controller reads the clock: a second run may propose and count differently.
    ``learns``: the draft declares that ended requests change its proposals; ``learnt``: after ``forget`` it still
    proposed better for a prompt that it had seen. ``twins``: how much it guessed of prompts that no run can have seen,
    each by the first request's id of the unit that is like it. ``conditions`` as in ``Runner.conditions``. ``judged``:
    of its outputs, if the run has a judge. ``engine``: of a peer, its engine's name, which is that of its plain
    decoding; ``agreed``: with plain's outputs, where the contract is ``own``; ``referred``: with those of
    ``reference``, its engine's own plain decoding or the server that the user names first, by its label, where that
    runs too.
    """

    arm: Arm
    contract: Promise
    units: list[Unit] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    plain: list[Outcome] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    compared: int = 0
    equal: int = 0
    tokens: int = 0
    fidelity: Fidelity = field(default_factory=Fidelity)
    error: str | None = None
    ended: str | None = None
    repeats: bool = True
    learns: bool = False
    learnt: bool = False
    twins: dict[int, Guessed] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    checked: int = 0
    judged: Judgement | None = None
    engine: str = ""
    agreed: Agreement = field(default_factory=Agreement)
    referred: Agreement = field(default_factory=Agreement)
    reference: str = ""

    @property
    def outputs(self) -> list[Output]:
        """Each prompt with its output, in the order of the runs."""
        return [
            (request.prompt, tokens)
            for unit, outcome in zip(self.units, self.outcomes, strict=True)
            for request, tokens in zip(unit.requests, outcome.tokens, strict=True)
        ]

    @property
    def failure(self) -> str | None:
        """Why the row shows no speed: the arm could not run, or an output broke its contract. Otherwise None."""
        return self.error or "\n".join(broken([self])) or None

    @property
    def failed(self) -> str | None:
        """The kind of the failure: ``contract``, or how the measurement ended; None without one."""
        return self.ended if self.error else "contract" if broken([self]) else None


def broken(every: Sequence[Series]) -> list[str]:
    """Return every way in which the outputs of one arm, over one or several series, break its contract."""
    differences = [difference for series in every for difference in series.differences]
    found = [str(difference) for difference in differences if not difference.tie]
    if every[0].contract == "exact":
        certified = sum(difference.tie for difference in differences)
        found += [ties.too_many(certified, sum(series.tokens for series in every), every[0].dtype) or ""]
    if every[0].contract == "distribution":
        found += [sum((series.fidelity for series in every), Fidelity()).failure or ""]
    return [sentence for sentence in found if sentence]


def checked(every: Sequence[Series]) -> str | None:
    """Return the result of one arm's contract checks, over one or several series; None if no token was examined."""
    first = every[0]
    if first.arm.plain:
        return "baseline"
    if any(series.error for series in every):
        return "FAILED: could not be measured"
    failed = "FAILED: " if any(series.failure for series in every) or broken(every) else ""
    if first.contract == "exact":
        differences = [difference for series in every for difference in series.differences]
        compared, equal = (sum(counts) for counts in zip(*((s.compared, s.equal) for s in every), strict=True))
        bugs, certified = (sum(difference.tie is tie for difference in differences) for tie in (False, True))
        if bugs:
            return f"FAILED: {bugs} of {compared} differ"
        return failed + ties.equal_text(equal, compared, certified)
    if first.contract == "own":
        return agreements(every)
    whole = sum((series.fidelity for series in every), Fidelity())
    if not whole.tokens:
        return None
    if first.contract == "distribution":
        return failed + whole.summary
    ours, plain = whole.perplexities
    return f"{whole.agreed / whole.tokens:.0%} agree; ppl {ours:.2f} for {plain:.2f}"


def agreements(every: Sequence[Series]) -> str | None:
    """Return how far the outputs of a peer with arithmetic of its own agree with plain's and with its reference's."""
    plain = sum((series.agreed for series in every), Agreement())
    own = sum((series.referred for series in every), Agreement())
    names = " and ".join(dict.fromkeys(series.reference for series in every if series.referred.runs))
    return (plain.summary + (f"; with {names} {own.summary}" if own.runs else "")) if plain.runs else None


Cost = Callable[[Outcome], float | None]
"""The cost of a run that decoded something, in seconds per token; None where it is not known."""


def logs(ours: Series, base: Series, cost: Cost) -> list[float]:
    """Return ln(cost of base / cost of ours) for each independent unit of which both are known, as a mean over its
    runs.

    Example: ``logs(series, plain, lambda outcome: outcome.seconds_per_token)``
    """
    found: dict[int, list[float]] = defaultdict(list)
    for unit, mine, theirs in zip(ours.units, ours.outcomes, base.outcomes, strict=False):
        if mine.decoded and theirs.decoded:
            one, other = cost(theirs), cost(mine)
            if one is not None and other is not None:
                found[unit.number].append(log(one / other))
    return [sum(values) / len(values) for values in found.values()]


Limit = Callable[[str], AbstractContextManager[None]]
"""Makes a context that ends a run which takes too long; its argument says what runs."""


class Comparison:
    """All arms of one setting on one workload. ``series`` grows with each call of ``measure``; ``whole`` is False while
    it runs, and after plain decoding failed: the series then hold outputs that were not checked.

    ``prime`` is called with every request before its unit is timed; ``progress`` with a text before each run. The
    outputs that were timed are the ones that are checked. ``debug``: the error of an arm has its traceback.
    ``bystanders`` looks after each run for work that goes on: it fails the arm whose it is, by name, and what was timed
    beside it is timed again. ``twins`` returns requests like those of the first units that no run can have seen, for
    each draft others: it decodes them before it is timed, and the first of them again afterwards, which shows whether
    it forgets.
    """

    def __init__(
        self,
        runners: Mapping[Arm, Runner],
        judge: Judge,
        prime: Callable[[Request], object],
        progress: Callable[[str], None],
        limit: Limit = lambda what: nullcontext(),
        debug: bool = False,
        bystanders: Bystanders | None = None,
        twins: Callable[[Arm], Mapping[int, Sequence[Request]]] = lambda arm: {},
    ) -> None:
        self.runners, self.judge, self.debug = runners, judge, debug
        self._prime, self._progress, self._limit = prime, progress, limit
        self._bystanders, self._make_twins = bystanders or Bystanders(), twins
        self._plain = next(arm for arm in runners if arm.plain)
        self.series: dict[Arm, Series] = {}
        for arm, runner in runners.items():
            promised: Promise = "exact" if arm.setting.sampling.temperature == 0 else "distribution"
            series = self.series[arm] = Series(arm, promised, dtype=judge.model.dtype)
            with self._isolated(series):
                series.contract, series.repeats, series.learns = contract_of(runner), repeats(runner), runner.learns
                series.conditions, series.engine = self._conditions(arm), engine_of(runner)
        self._order = random.Random(self._plain.setting.sampling.seed)
        self._warm = False
        self._twins: dict[Arm, Mapping[int, Sequence[Request]]] = {}
        self.whole = True

    def measure(self, units: Sequence[Unit], enough: Callable[[], bool] = lambda: False) -> None:
        """Run every arm on every unit in random order, then check the contracts; ends early once ``enough`` is true.

        Raises the error of plain decoding, and SpecdecError if the process does not become idle; the error of another
        arm fails its series.
        """
        self.whole = False
        if not self._warm:
            self._warm_up(units[0].requests[0])
        self._forget_learnt()
        for number, unit in enumerate(units):
            # A budget ends nothing before there is something to show.
            if self.series[self._plain].outcomes and enough():
                break
            self._run(unit, f"prompt {number + 1}/{len(units)}")
        for arm, measured in self.series.items():
            self._progress(f"checking {arm.label}")
            if not arm.plain and not measured.error:
                with self._isolated(measured):
                    self._refer(measured)
                    self._check(measured)
                    self._ask_again(arm)
        self.whole = True

    def _forget_learnt(self) -> None:
        """Have every draft that declares that it learns forget."""
        for arm, series in self.series.items():
            if series.learns and not series.error:
                with self._work_of(arm, f"{arm.label}, forgetting"):
                    self.runners[arm].forget()

    def _run(self, unit: Unit, place: str) -> None:
        for request in unit.requests:
            with self._limit(f"plain decoding of {place}"):
                self._prime(request)
        shuffled, device = list(self.runners), self.judge.model.device
        self._order.shuffle(shuffled)
        outcomes = {}
        for arm in shuffled:
            self._progress(f"{place}: {arm.label}")
            if self.series[arm].error:
                continue
            with self._work_of(arm, f"{arm.label}, {place}", timed=True) as others:
                if not self.series[arm].learns:
                    self.runners[arm].forget()
                memory.begin(device)
                outcome = self.runners[arm].run(unit.requests)
                outcomes[arm] = replace(outcome, memory=memory.used(device))
            if others:
                # What was timed beside another's work is timed again without it; learners have seen these prompts.
                self._forget_learnt()
                return self._run(unit, place)
        for arm, outcome in outcomes.items():
            series = self.series[arm]
            if series.error:
                continue
            with self._isolated(series):
                series.conditions = self._conditions(arm)  # which a part that cannot be recorded changes
            series.units.append(unit)
            series.outcomes.append(outcome)
            series.plain.append(outcomes[self._plain])

    @contextmanager
    def _work_of(self, arm: Arm, what: str, timed: bool = False) -> Iterator[list[Arm]]:
        """Work of an arm, which ``what`` names, with the limit, and a pause after it until the process is idle; yields
        a list that has afterwards the other arms that worked beside it. Each of them fails, and so does this arm if it
        is ``timed`` and works on."""
        others = list[Arm]()
        self._bystanders.begin()
        with self._isolated(self.series[arm]), self._limit(what):
            yield others
        for owner, why in self._bystanders.end(arm.strategy, timed).items():
            found = next((one for one in self.series if one.strategy == owner), self._plain)
            if found is not arm:
                others.append(found)
            if found is not arm and self.series[found].error:
                raise SpecdecError(f"nothing can be timed beside {owner}, which has failed: {why}; leave it out")
            if not self.series[found].error:
                with self._isolated(self.series[found]):
                    raise SpecdecError(why if found.strategy == owner else f"{owner}: {why}")

    def _conditions(self, arm: Arm) -> dict[str, str]:
        return {**self.runners[arm].conditions(), "threads": str(torch.get_num_threads())}

    def _warm_up(self, first: Request) -> None:
        self._warm, brief = True, replace(first, params=replace(first.params, max_new_tokens=WARM_UP))
        # Peers first: torch.compile's recordings clear cuBLAS's workspaces, which graphs of engines would still use.
        for arm, runner in sorted(self.runners.items(), key=lambda one: one[0].peer is None):
            if self.series[arm].error:
                continue
            self._progress(f"warming up {arm.label}")
            with self._work_of(arm, f"{arm.label}, warming up"):
                runner.warm_up(brief)
                if isinstance(runner, EngineRunner) and arm.draft:
                    made = self._twins[arm] = self._make_twins(arm)
                    self.series[arm].twins = {place: runner.guessed(requests) for place, requests in made.items()}
                if not self.series[arm].twins:
                    runner.run([brief])

    def _ask_again(self, arm: Arm) -> None:
        """Mark a draft that guesses more of its first twin than at first, although it was told to forget it."""
        runner, series = self.runners[arm], self.series[arm]
        if isinstance(runner, EngineRunner) and series.twins and not runner.learns:
            place, requests = next(iter(self._twins[arm].items()))
            with self._limit(f"{arm.label}, asked again"):
                series.learnt |= runner.guessed(requests).share - series.twins[place].share > LEARNT

    @contextmanager
    def _isolated(self, series: Series) -> Iterator[None]:
        """Record an arm's exception in its series, so that the other arms continue; plain's exception is raised.

        Several ranks continue after a refusal that all of them met; any other error ends them.
        """
        try:
            with on_all_ranks(series.arm.label):
                yield
        except RAISED as error:
            if series.arm.plain:
                raise
            known = isinstance(error, SpecdecError)
            series.ended = "timeout" if isinstance(error, RunTimeout) else "refused" if known else "crashed"
            told = "\n" + "".join(traceback.format_exception(error)) if self.debug else ""
            series.error = f"{series.arm.label} could not be measured: {raised_text(error)}{told}"

    def _refer(self, series: Series) -> None:
        """Compare a peer's outputs with those of its own engine's plain decoding, if that is among the arms: of a
        server, of the one that its option ``plain`` names, or the first."""
        own = [one for arm, one in self.series.items() if arm.peer and PeerName(arm.peer).name == series.engine]
        name = PeerName(series.arm.peer or "")
        if name.given and name.given in {PeerName(arm.peer).own_plain for arm in self.series if arm.peer}:
            return  # it is the plain decoding of others itself
        own = [one for one in own if name.own_plain in (None, PeerName(one.arm.peer or "").given)]
        if own and own[0] is not series:
            series.referred, series.reference = Agreement(), own[0].arm.label
            for mine, theirs in zip(series.outcomes, own[0].outcomes, strict=False):
                for got, expected in zip(mine.tokens, theirs.tokens, strict=True):
                    series.referred += Agreement.of(expected, got)

    def _check(self, series: Series) -> None:
        new = slice(series.checked, None)
        plain, runner = (_Limited(self.runners[arm], self._limit) for arm in (self._plain, series.arm))
        exact = all(self.runners[arm].conditions().get("exact") == "yes" for arm in (self._plain, series.arm))
        for unit, theirs, ours in zip(series.units[new], series.plain[new], series.outcomes[new], strict=True):
            for request, expected, got in zip(unit.requests, theirs.tokens, ours.tokens, strict=True):
                series.compared += 1
                series.equal += expected == got
                series.tokens += len(expected)
                if series.contract == "own":
                    if request.params.temperature == 0:  # others draw with numbers of their own
                        series.agreed += Agreement.of(expected, got)
                elif series.contract != "exact":
                    promised = series.contract == "distribution" and series.arm.peer is not None
                    series.fidelity += fidelity.examine(self.judge, request, expected, got, looked_up=promised)
                elif expected != got:
                    pair = expected, got
                    series.differences += self.judge.compare(unit.requests, request, plain, runner, pair, exact)
            if series.contract == "distribution" and isinstance(own := self.runners[series.arm], EngineRunner):
                with self._limit(f"{series.arm.label}, its draft asked again for the check"):
                    series.fidelity += Fidelity(favour=favour(own.engine, unit.requests, ours.tokens))
        series.checked = len(series.outcomes)


class _Limited:
    """A runner as a source of tokens, each of whose runs has the limit."""

    def __init__(self, runner: Runner, limit: Limit) -> None:
        self._runner, self._limit = runner, limit

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        with self._limit(f"{self._runner.arm.label}, repeated for the check"):
            return self._runner.tokens(requests)

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        with self._limit(f"{self._runner.arm.label}, repeated for the check"):
            return self._runner.logits_at(requests, request, index)


def contract_of(runner: Runner) -> Promise:
    """Return the arm's contract: its policy's or, for a peer, "own" if its arithmetic is, else "exact" if greedy and
    "distribution" if sampled.
    """
    params = runner.arm.setting.params(())
    if isinstance(runner, EngineRunner):
        return runner.engine.policy.contract(params)
    if isinstance(runner, PeerRunner) and runner.peer.own_arithmetic:
        return "own"
    return "exact" if params.temperature == 0 else "distribution"


def engine_of(runner: Runner) -> str:
    """Return the name of a peer's engine, which is that of its plain decoding; empty for our own."""
    if not isinstance(runner, PeerRunner):
        return ""
    return runner.peer.reference or PeerName(runner.arm.peer or "").name


def repeats(runner: Runner) -> bool:
    """Whether the arm's counters are the same whenever its tokens are."""
    return not isinstance(runner, EngineRunner) or runner.engine.controller.deterministic
