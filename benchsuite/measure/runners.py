"""Runners: each runs an arm on requests, and all are timed alike. This is the engine's; ``peers`` has the others."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from statistics import mean
from typing import TYPE_CHECKING, ClassVar, Protocol

from benchsuite.judge.sources import Always, EngineSource, Tokens, TokenSource
from specdec.choices import BITS
from specdec.devices import synchronize
from specdec.draft_counts import DraftCounts
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.queue import Completion
from specdec.request import Request
from specdec.stats import Stats, Step, StepTimes

if TYPE_CHECKING:
    from torch import Tensor

    from benchsuite.measure.arms import Arm

Emission = tuple[float, int]
"""Tokens that arrived together: seconds since their request was handed over, and their number."""


@dataclass(frozen=True)
class Guessed:
    """How much of an output a draft guessed: accepted proposals, output tokens, and the most proposals of a step."""

    accepted: int
    tokens: int
    most: int

    @property
    def share(self) -> float:
        """Of what is possible: 1 if every proposal of every step was accepted, whatever K is."""
        return self.accepted * (self.most + 1) / (self.most * self.tokens) if self.most * self.tokens else 0.0


@dataclass(frozen=True)
class Outcome:
    """One run of one unit: the outputs in request order, and their times in seconds.

    ``wall_s``: from handing over the requests to the last token of the last, with everything between: prefill,
    decoding, every call into the draft. ``decode_s``: the same without prefill; it covers ``decoded`` tokens, of all
    rows. ``emissions``: of each request. ``forwards`` counts decoding forwards, over ``mean_length`` tokens of context
    each, None if a peer does not say; ``draft_bytes`` are the weights that the draft's forwards read. ``replays``
    counts how often the strategy has asked for plain's output since it was built: an answer may have been kept.
    ``forgetting_s``, part of ``wall_s``, are the seconds in which draft and controller forgot before the run.
    ``memory``: ``machine.memory.used`` after it. ``warm``: a peer may have had a prompt in a cache, so that nothing is
    known of the time to the first token and from prompt to last token. ``stats`` is None for a
    peer; ``counts``: what it counted of its own speculation, None if it does not say.
    """

    tokens: list[Tokens]
    wall_s: float
    decode_s: float
    decoded: int
    emissions: list[list[Emission]]
    forwards: int | None
    mean_length: float
    stats: Stats | None = None
    draft_bytes: int = 0
    replays: int = 0
    forgetting_s: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)
    warm: bool = False
    counts: DraftCounts | None = None

    @property
    def emitted(self) -> int:
        """The number of output tokens of all requests."""
        return sum(map(len, self.tokens))

    @property
    def seconds_per_token(self) -> float:
        """Decoding seconds per decoded token."""
        return self.decode_s / self.decoded

    @property
    def wall_per_token(self) -> float:
        """Seconds from prompt to last token, per output token."""
        return self.wall_s / self.emitted

    @property
    def ttft_s(self) -> list[float]:
        """Seconds to the first token, of each request; empty if the run is ``warm``."""
        return [] if self.warm else [request[0][0] for request in self.emissions if request]

    @property
    def tpot_s(self) -> list[float]:
        """Seconds per token after the first emission, of each request that has a second one.

        The tokens that arrive together with the first count with it: nothing was waited for between them.
        """
        return [
            (request[-1][0] - request[0][0]) / sum(count for _, count in request[1:])
            for request in self.emissions
            if len(request) > 1
        ]

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one emission and the next, of all requests: the latencies between tokens, per emission."""
        return [b - a for request in self.emissions for (a, _), (b, _) in pairwise(request)]

    @property
    def timed(self) -> list[tuple[Step, StepTimes]]:
        """Every step of the engine with its times; empty for a peer."""
        return [(step, self.stats.times(step)) for step in self.stats.steps] if self.stats else []

    @property
    def draft_prefill_s(self) -> float:
        """Seconds of the draft's calls before the first step: ``admit`` and ``prefilled``."""
        return self.stats.called("admit", "prefilled") if self.stats else 0.0


class Runner(TokenSource, Protocol):
    """Runs and times an arm, and returns its logits where an output must be judged.

    ``learns``: its draft keeps, by its own declaration, what ended requests taught, until ``forget``.
    """

    arm: Arm
    learns: bool

    @property
    def set_up_seconds(self) -> Mapping[str, float]:
        """The seconds of what was built, recorded or compiled outside timed runs, by its name; empty if nothing is."""

    def warm_up(self, first: Request) -> None:
        """Record or compile what requests like ``first`` need, before anything is timed."""

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Decode requests and measure the time."""

    def forget(self) -> None:
        """Drop everything that draft and controller have learnt from earlier runs; the next run bears its time."""

    def conditions(self) -> dict[str, str]:
        """What two arms must have in common for their times to be compared: ``dtype`` and ``compile``, and of engines
        the ``runtime`` and whether they are ``exact``."""


def raised_text(error: BaseException) -> str:
    """Return the text of an exception and, unless it is a sentence of ours, its type and the line that raised it."""
    if isinstance(error, SpecdecError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{error} ({type(error).__name__}{where})"


class FailedRunner:
    """An arm that could not be built: whatever it is asked for raises why, so that it costs its own row."""

    learns = False
    set_up_seconds: ClassVar[Mapping[str, float]] = {}

    def __init__(self, arm: Arm, error: BaseException) -> None:
        self.arm, self.error = arm, error

    def warm_up(self, first: Request) -> None:
        """Raise why it could not be built."""
        raise self.error

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Raise why it could not be built."""
        raise self.error

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Raise why it could not be built."""
        raise self.error

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Raise why it could not be built."""
        raise self.error

    def forget(self) -> None:
        """Do nothing: there is nothing that could have learnt."""

    def conditions(self) -> dict[str, str]:
        """None: it is compared with nothing."""
        return {}


AGAIN = 3
"""How often a run is made again because something was recorded in it."""


class EngineRunner(EngineSource):
    """An engine with one strategy; without a draft, plain decoding."""

    def __init__(self, arm: Arm, engine: Engine) -> None:
        super().__init__(engine)
        self.arm = arm
        self.learns = engine.draft is not None and engine.draft.learns
        self._forgetting_s = 0.0

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Decode requests; the decoding time is the run's time minus its prefills.

        A run in which something was recorded is set-up, and is made again, a few times at most; a draft that ``learns``
        would know the requests by then, so that its run counts.
        """
        for _ in range(AGAIN):
            known, start = self.engine.runtime.recorded, time.perf_counter()
            outcome = self._decode(requests)
            if self.learns or self.engine.runtime.recorded == known:
                return outcome
            spent = self.engine.set_up_seconds.get("graphs", 0.0) + time.perf_counter() - start
            self.engine.set_up_seconds["graphs"] = spent
            self.forget()
        return self._decode(requests)

    def _decode(self, requests: Sequence[Request]) -> Outcome:
        engine, device = self.engine, self.engine.target.device
        synchronize(device)
        start = time.perf_counter()
        done = engine.run(requests)
        synchronize(device)
        total = time.perf_counter() - start
        self._remember(requests)
        forgetting, self._forgetting_s = self._forgetting_s, 0.0
        tokens = [completion.tokens for completion in done]
        reads = engine.stats.counts["draft_forwards"]
        return Outcome(
            tokens=tokens,
            wall_s=total + forgetting,
            decode_s=total - sum(completion.prefill_s for completion in done),
            decoded=sum(map(len, tokens)),
            emissions=[_emissions(completion, forgetting) for completion in done],
            forwards=engine.stats.counts["target_forwards"],
            mean_length=mean_length(requests, tokens),
            stats=engine.stats,
            draft_bytes=reads * engine.draft.weight_bytes if engine.draft else 0,
            replays=engine.replayed(),
            forgetting_s=forgetting,
        )

    @property
    def set_up_seconds(self) -> Mapping[str, float]:
        """The seconds of the factories of draft and controller, and of recording."""
        return self.engine.set_up_seconds

    def warm_up(self, first: Request) -> None:
        """Have the engine record what requests with the parameters of ``first`` need."""
        self.engine.set_up_seconds["graphs"] = self.engine.warm_up(first.params)

    def forget(self) -> None:
        """Call ``forget`` of the draft and of the controller."""
        start = time.perf_counter()
        if self.engine.draft:
            self.engine.draft.forget()
        self.engine.controller.forget()
        self._forgetting_s += time.perf_counter() - start

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Run the engine as ``run`` does after ``forget``; return the outputs in request order."""
        self._as_before()
        return super().tokens(requests)

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """As ``EngineSource``, with the draft reset to its state before the run."""
        self._as_before()
        return super().logits_at(requests, request, index)

    def _as_before(self) -> None:
        """Forget, unless the draft ``learns``; no run bears the time."""
        if not self.learns:
            self.forget()
            self._forgetting_s = 0.0

    def guessed(self, requests: Sequence[Request]) -> Guessed:
        """Forget everything, decode requests with as many proposals in each step as the engine has room for, and return
        how much was guessed, which does not depend on the controller. The draft must exist."""
        engine = self.engine
        engine.controller, own = Always(engine.max_window - 1), engine.controller
        try:
            self.forget()
            done = engine.run(requests)
        finally:
            engine.controller = own
            self._forgetting_s = 0.0
        accepted = engine.stats.counts["num_accepted_tokens"]
        return Guessed(accepted, sum(len(one.tokens) for one in done), engine.max_window - 1)

    def conditions(self) -> dict[str, str]:
        """The dtype of the weights that are read, how steps are run, and whether every width gives the same bits; the
        engine compiles nothing."""
        given, used = self.arm.setting.dtype, self.engine.target.dtype
        dtype = given if given in BITS else str(used).removeprefix("torch.")
        runtime = self.engine.runtime
        ran = f"{runtime.name} in part, for {runtime.notes[0]}" if runtime.notes else runtime.name
        return {"dtype": dtype, "compile": "no", "runtime": ran, "exact": "yes" if self.engine.exact else "no"}


def _emissions(completion: Completion, later: float) -> list[Emission]:
    return [(at + later, len(list(tokens))) for at, tokens in groupby(completion.times)]


def mean_length(requests: Sequence[Request], tokens: Sequence[Tokens]) -> float:
    """Return the mean number of tokens of context over a run: each prompt and half its output."""
    return mean(len(r.prompt) + len(t) / 2 for r, t in zip(requests, tokens, strict=True))
