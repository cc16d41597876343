"""Certificates: whether a server's outputs are the plain server's, the numbers that say so, and their sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from benchsuite.benches.serving.kept_answers import KeptAnswers
from benchsuite.benches.serving.timed_samples import TimedSamples
from benchsuite.benches.serving.timed_texts import AskedFor, TimedEvidence
from benchsuite.judge.fidelity import FALSE_ALARM
from benchsuite.judge.logprob_ties import HALF_A_NAT
from benchsuite.judge.tie_gaps import UNLIKE_ROUNDING
from benchsuite.judge.transforms import FALSE_ALARM_OF_RATIOS

State = Literal["certified", "bug", "differs, not judged", "inconclusive"]

Reader = Literal["plain", "judge", "none"]
"""Whose log-probabilities judge greedy outputs: the plain server's, a local model's, or nobody's (texts alone)."""

NAMES: dict[State, str] = {
    "certified": "certified",
    "bug": "FAILED",
    "differs, not judged": "differs, not judged",
    "inconclusive": "INCONCLUSIVE",
}
"""Each state in a sentence."""


def _kinds(failures: Sequence[str]) -> str:
    return f" ({', '.join(sorted({*failures}))})" if failures else ""


@dataclass(frozen=True)
class GreedyEvidence:
    """Greedy outputs beside plain's.

    Of ``asked`` prompts both servers answered ``both``, ``equal`` of them with the same output; ``failures``: kinds of
    those without an answer. ``tokens``: judged; ``wrong``: those that are a bug; ``ties``: that rounding explains, of
    the ``near`` places where it can; ``ties_p``: how likely so many ties so far apart are, if rounding makes them;
    ``unjudged``: differences that are neither. ``one_in``: the N for which one changed token in N is found with 99 %;
    ``relaxed``: the share of the ``close`` places, whose two likeliest tokens are within ``HALF_A_NAT``, at which a
    server that takes the second is found with 99 %; None where none is. ``unread``: outputs that the judge could not
    read token by token; ``unreadable``: the server of which it could read none. ``asked_for``: how outputs were asked
    for; ``timed``: of its texts that were timed; ``kept``: whether it answers from a cache.
    """

    reader: Reader
    asked: int
    both: int
    equal: int = 0
    failures: tuple[str, ...] = ()
    tokens: int = 0
    wrong: int = 0
    ties: int = 0
    near: int = 0
    ties_p: float = 1.0
    unjudged: int = 0
    one_in: float | None = None
    close: int = 0
    relaxed: float | None = None
    unread: int = 0
    unreadable: str | None = None
    asked_for: AskedFor = field(kw_only=True)
    timed: TimedEvidence = field(default_factory=TimedEvidence)
    kept: KeptAnswers = field(default_factory=KeptAnswers)

    @property
    def state(self) -> State:
        """What follows for the server. A bug is one whatever else is missing; no answer is no evidence."""
        if not self.both or self.unreadable:
            return "inconclusive"
        if self.wrong or self.timed.wrong or self.timed.miscounted:
            return "bug"
        if self.unjudged or self.unlike_rounding or self.timed.unjudged or (self.unread and self.equal < self.both):
            return "differs, not judged"
        found = self.reader == "none" or self.one_in is not None
        return "certified" if found and self.both == self.asked and not self.kept.found else "inconclusive"

    @property
    def unlike_rounding(self) -> bool:
        """Whether ties are more than rounding makes, or do not fall off with the distance of their tokens."""
        return self.ties_p < UNLIKE_ROUNDING

    @property
    def text(self) -> str:
        """The numbers, those that decide first."""
        missing = f"{self.asked - self.both} of {self.asked} prompts were not answered by both{_kinds(self.failures)}"
        if not self.both:
            return missing
        if self.unreadable:
            return f"no text of {self.unreadable} can be read token by token"
        outputs = f"{self.equal} of {self.both} {'texts' if self.reader == 'none' else 'outputs'} are plain's"
        if self.reader == "plain":
            apart = self.wrong + self.ties + self.unjudged
            share = f" ({100 * apart / self.tokens:.2g}%)" if apart and self.tokens else ""
            outputs = f"{apart} of {self.tokens:,} judged tokens differ{share}, {self.ties} ties; {outputs}"
        elif self.reader == "judge":
            outputs += f", {self.both - self.unread} read by the local judge, {self.tokens:,} tokens"
        owner = "the judge's" if self.reader == "judge" else "plain's"
        decisive = {
            f"{self.wrong} tokens are not {owner}": self.wrong,
            f"{self.timed.wrong} timed texts are not its certified ones": self.timed.wrong,
            f"{self.timed.miscounted} timed texts are its certified ones with other counts of tokens": (
                self.timed.miscounted
            ),
            f"{self.ties} of {self.near} places where a tie can be are ties, and not as plain's own differences are, "
            f"which fall off with the distance of two tokens (p={self.ties_p:.2g})": self.unlike_rounding,
            f"{self.unjudged} differences not judged": self.unjudged,
            f"{self.timed.unjudged} timed texts are not its certified ones, which was not judged": self.timed.unjudged,
            f"{self.unread} texts could not be read": self.unread and self.equal < self.both,
            missing: self.both < self.asked,
            self.kept.text: self.kept.found,
        }
        conditions = [self._power, self.asked_for.text, self.timed.text]
        return "; ".join([*(clause for clause, true in decisive.items() if true), outputs, *conditions])

    @property
    def _power(self) -> str:
        """What would be found."""
        if self.reader != "none":
            if self.one_in is None:
                return "nothing would be found"
            where = f"of the {self.close} places whose two likeliest tokens are within {HALF_A_NAT:g} nats"
            second = (
                "no server that takes the second is sure to be found"
                if self.relaxed is None
                else f"a server that takes the second at {self.relaxed:.0%}"
            )
            return f"one changed token in {self.one_in:.0f} is found with 99 %, and {where} {second}"
        why = ", and without them rounding cannot be distinguished from a bug; start the servers with them"
        return f"no log-probabilities were given{why if self.unjudged else ''}"


@dataclass(frozen=True)
class SampledEvidence:
    """Sampled outputs, read under plain's lists by ``judge``.

    ``even`` and ``ratios``: p-values of the transforms and of the alternatives, each times the ways to leave out
    ``left`` of ``asked`` outputs. ``factor``: that of the temperature that is found with 99 %, None if none up to 4 is;
    ``needs``: the tokens which 1.1 and 1.2 times the temperature and a ``top_p`` of 0.95 need. ``asked_for``: how
    outputs were asked for;
    ``timed``: of its texts that were timed; ``kept``: whether it answers from a cache.
    """

    judge: str
    asked: int
    left: int
    tokens: int
    even: float = 1.0
    ratios: float = 1.0
    factor: float | None = None
    needs: tuple[float, float, float] | None = None
    failures: tuple[str, ...] = ()
    asked_for: AskedFor = field(kw_only=True)
    timed: TimedSamples = field(default_factory=TimedSamples)
    kept: KeptAnswers = field(default_factory=KeptAnswers)

    @property
    def state(self) -> State:
        """What follows for the server."""
        if self.even < FALSE_ALARM or self.ratios < FALSE_ALARM_OF_RATIOS or self.timed.wrong:
            return "bug"
        known = self.tokens and not self.left and not self.timed.unknown and not self.kept.found
        return "certified" if known and self.enough else "inconclusive"

    @property
    def enough(self) -> bool:
        """Whether a temperature up to 4 times as high, and the ``top_p`` that servers have by default, are found."""
        return self.factor is not None and self.needs is not None and self.tokens >= self.needs[2]

    @property
    def numbers(self) -> str:
        """The tokens that were read, and the p-values."""
        return (
            f"{self.tokens:,} tokens under {self.judge}'s lists of the likeliest (all others by their own "
            f"log-probability): transforms p={self.even:.2g}, alternatives p={self.ratios:.2g}"
        )

    @property
    def text(self) -> str:
        """The numbers, those that decide first."""
        if self.needs is None:
            return (
                f"{self.judge} cannot read a text with log-probabilities (echo), or splits it into other tokens; "
                "nothing is known of the distribution"
            )
        finds = (
            "no factor of the temperature up to 4"
            if self.factor is None
            else f"a temperature {self.factor:.2f} times as high"
        )
        parts = [
            self.numbers,
            f"{finds} is found with 99 %",
            f"1.1 times needs {self.needs[0]:,.0f} tokens, 1.2 times {self.needs[1]:,.0f} tokens",
            f"a top_p of 0.95 needs {self.needs[2]:,.0f} tokens"
            if isfinite(self.needs[2])
            else "a top_p of 0.95 ends behind every list and cannot be seen",
        ]
        if self.left:
            missing = f"{self.left} of {self.asked} outputs are missing{_kinds(self.failures)}"
            parts.append(f"{missing}, or {self.judge} reads them as other tokens")
        parts += [self.asked_for.text, self.timed.text]
        if self.timed.repeated:
            parts.insert(0, f"{self.timed.repeated} timed texts came again for another seed: it keeps its answers")
        elif self.state == "bug":
            parts.insert(0, "not plain's distribution")
        elif self.kept.found:
            parts.insert(0, self.kept.text)
        elif self.timed.unknown:
            parts.insert(0, "no timed text could be read")
        elif self.left:
            parts.insert(0, "not all outputs could be read")
        elif not self.enough:
            parts.insert(0, "too few tokens")
        return "; ".join(parts)


@dataclass(frozen=True)
class UnsteadyPlain:
    """The plain server ``plain``, asked twice, gave two outputs which rounding does not explain."""

    plain: str

    @property
    def state(self) -> State:
        """Always inconclusive."""
        return "inconclusive"

    @property
    def text(self) -> str:
        """Why nothing was compared."""
        return f"{self.plain} asked twice is not itself, so that nothing can be compared with it"


@dataclass(frozen=True)
class PlainOfItsOwn:
    """The sampled outputs of the plain server ``plain`` are not of the distribution that they are read under: ``own``
    has their numbers. A server may have filters of its own, or say other log-probabilities than it samples from."""

    plain: str
    own: SampledEvidence

    @property
    def state(self) -> State:
        """Always inconclusive."""
        return "inconclusive"

    @property
    def text(self) -> str:
        """Why nothing was compared."""
        return (
            f"{self.plain} itself, without a draft, samples otherwise than {self.own.judge} says, so that nothing can "
            f"be compared with it (filters or defaults of its own?): {self.own.numbers}"
        )


@dataclass(frozen=True)
class Certificate:
    """What is known of one endpoint's outputs beside the plain endpoint's. ``details``: of its differences, a line
    each."""

    endpoint: str
    evidence: GreedyEvidence | SampledEvidence | UnsteadyPlain | PlainOfItsOwn
    details: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The verdict, from the numbers of the evidence."""
        return self.evidence.state

    @property
    def lines(self) -> tuple[str, ...]:
        """The whole in a sentence, then the details.

        Example: ``spec: certified: 4 of 4 outputs are plain's, 0 ties, 48 tokens judged; one changed token in …``
        """
        return f"{self.endpoint}: {NAMES[self.state]}: {self.evidence.text}", *self.details

    def as_json(self) -> dict[str, Any]:
        """The certificate as a result file has it."""
        return {"endpoint": self.endpoint, "state": self.state, "lines": list(self.lines)}
