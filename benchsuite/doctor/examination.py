"""An examination: a head's readings over the same texts, compared place by place, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

import numpy as np

from benchsuite.doctor import evidence
from benchsuite.doctor.hits import (
    Floats,
    Hits,
    Rate,
    by_position,
    clustered_rate,
    new_places,
    scores_of_collapse,
    scores_of_gain,
)
from benchsuite.doctor.texts import OwnText, Tokens, own_texts, proposed
from specdec.assembly import Assembly
from specdec.errors import SpecdecError
from specdec.interfaces import Draft
from specdec.request import Request, SamplingParams
from specdec.taps import Taps

Outcome = Literal["accepts more", "no better", "open"]

VerdictText = Literal["read rightly", "read otherwise it accepts more", "nothing to compare with", "cannot tell"]


@dataclass(frozen=True)
class HeadReading:
    """One way to read a head: ``name`` in plain words, ``draft`` as its text: ``eagle3(head=…, layers=1-14-26)``."""

    name: str
    draft: str


@dataclass(frozen=True)
class ExaminedReading:
    """A reading with what it accepted on each text that it was asked for, and what its proposals accept half a text
    away."""

    candidate: HeadReading
    hits: tuple[Hits, ...]
    chance: tuple[Hits, ...]

    @property
    def length(self) -> Rate:
        """Accepted proposals from a place."""
        return _accepted(self.hits)

    @property
    def by_chance(self) -> Rate:
        """Accepted proposals from a place where they are held against tokens half a text away."""
        return _accepted(self.chance)

    @property
    def positions(self) -> list[tuple[Rate, Rate]]:
        """``by_position`` for each position."""
        return [by_position(self.hits, position) for position in range(self.hits[0].right.shape[1])]

    @property
    def skilled(self) -> bool:
        """Whether it accepts more than chance."""
        return evidence.proved(self._scores_of_skill, evidence.ERROR)

    @property
    def skill_needs(self) -> float:
        """How many prompts like those read show that it accepts more than chance; infinite if they would not."""
        return evidence.prompts_to_prove(self._scores_of_skill, evidence.ERROR)

    @property
    def _scores_of_skill(self) -> Floats:
        return scores_of_gain(self.hits, self.chance)

    @property
    def collapses(self) -> bool:
        """Whether after its own states it accepts less than half of what it accepts after the target's."""
        return evidence.proved(scores_of_collapse(self.hits), evidence.ERROR)


@dataclass(frozen=True)
class OtherReading:
    """Another reading beside the one that was taken.

    ``gain`` and its standard error: accepted proposals at a place that it has more, a mean over prompts. ``needs``:
    how many prompts decide an open one, if they are like those that were read; infinite if they would not.
    """

    measured: ExaminedReading
    gain: float
    error: float
    outcome: Outcome
    needs: float


@dataclass(frozen=True)
class Examination:
    """The readings of a head over ``prompts`` texts with ``places`` places in ``tokens`` tokens; the first was taken.

    ``refused``: readings that do not load, with the reason.
    """

    taken: ExaminedReading
    others: tuple[OtherReading, ...]
    refused: tuple[tuple[HeadReading, str], ...]
    prompts: int
    places: int
    tokens: int

    @property
    def better(self) -> tuple[OtherReading, ...]:
        """The readings that accept more, the best first."""
        found = [other for other in self.others if other.outcome == "accepts more"]
        return tuple(sorted(found, key=lambda other: -other.gain))

    @property
    def open(self) -> tuple[OtherReading, ...]:
        """The readings of which this text does not tell whether they accept more."""
        return tuple(other for other in self.others if other.outcome == "open")

    @property
    def best(self) -> ExaminedReading:
        """The reading to take."""
        return self.better[0].measured if self.better else self.taken

    @property
    def as_good(self) -> tuple[OtherReading, ...]:
        """Readings that also accept more than the one taken, and that the best is not proved to exceed."""
        level = evidence.ERROR / max(1, len(self.others))
        return tuple(
            other
            for other in self.better[1:]
            if not evidence.proved(scores_of_gain(self.best.hits, other.measured.hits), level)
        )

    @property
    def decided(self) -> bool:
        """Whether more text would change nothing: none is open, or all that are open accept less than the best."""
        if not self.better:
            return not self.open and self.taken.skilled
        return all(
            evidence.proved(scores_of_gain(self.best.hits, other.measured.hits), evidence.ERROR) for other in self.open
        )

    @property
    def verdict(self) -> VerdictText:
        """What the examination says of the reading that was taken.

        A reading that collapses is not called right, though no other accepts more: what it is fed may be read wrongly
        in a way for which there is no other reading. Nor is one called right beside which no other loads.
        """
        if self.better:
            return "read otherwise it accepts more"
        if self.open or not self.taken.skilled or self.taken.collapses:
            return "cannot tell"
        return "read rightly" if self.others else "nothing to compare with"

    @property
    def needs(self) -> float:
        """Tokens of the target's text that decide the verdict, if they are like those read; infinite if none would.

        Of open readings that seem to accept more, the first that is decided is enough; else all must be.
        """
        likely = [other.needs for other in self.open if other.gain >= evidence.NO_MATTER]
        every = [other.needs for other in self.open]
        if not self.taken.skilled:
            every.append(self.taken.skill_needs)
        if self.taken.collapses:
            every.append(inf)
        return (min(likely) if likely else max(every, default=0.0)) * self.tokens / self.prompts


def _accepted(texts: Sequence[Hits]) -> Rate:
    return clustered_rate([text.lengths.sum() for text in texts], [len(text.lengths) for text in texts])


def beside_taken(taken: Sequence[Hits], other: ExaminedReading, count: int) -> OtherReading:
    """Another reading beside the hits of the one taken; ``count``: how many other readings there are.

    A right reading is accused with a probability of at most ``evidence.ERROR`` over all of them, because each must
    prove its gain at a ``count``-th of that.
    """
    each = [theirs.lengths - mine.lengths for theirs, mine in zip(other.hits, taken, strict=True)]
    gains: Floats = np.array([one.mean() for one in each if len(one)])
    scores, level = scores_of_gain(other.hits, taken), evidence.ERROR / max(1, count)
    gain = float(gains.mean()) if len(gains) else 0.0
    error = float(gains.std(ddof=1)) / sqrt(len(gains)) if len(gains) > 1 else inf
    if evidence.most_gain(gains) < evidence.NO_MATTER:
        return OtherReading(other, gain, error, "no better", 0.0)
    if gain >= evidence.NO_MATTER and evidence.proved(scores, level):
        return OtherReading(other, gain, error, "accepts more", 0.0)
    needs = min(evidence.prompts_to_clear(gains), evidence.prompts_to_prove(scores, level) if gain > 0 else inf)
    return OtherReading(other, gain, error, "open", needs)


def examine_readings(
    assembly: Assembly,
    prompts: Sequence[Sequence[int]],
    candidates: Sequence[HeadReading],
    *,
    k: int = 3,
    tokens: int = 32,
    eos: tuple[int, ...] = (),
    rows: int = 12,
) -> Examination:
    """Compare readings of a head, of which the first is the one taken, on the target's answers to ``prompts``.

    ``k`` proposals at every place of answers of at most ``tokens`` tokens; ``rows`` prompts are answered at a time,
    until the verdict is decided or none is left; a reading that is no better is not asked again. ``assembly`` has room
    for ``rows`` prompts, an answer and k more tokens. Raises SpecdecError if the reading that was taken does not load.
    """
    taps, refused = _asked(assembly, candidates, k)
    layers = sorted({layer for one in taps.values() for layer in one.layers})
    everything = Taps(tuple(layers), final=any(one.final for one in taps.values()))
    params = SamplingParams(max_new_tokens=tokens, eos=eos)
    requests = [Request(number, tuple(prompt), params) for number, prompt in enumerate(prompts)]
    texts, made, asked = list[OwnText](), {candidate: list[Tokens]() for candidate in taps}, [*taps]
    for first in range(0, len(requests), rows):
        fresh = own_texts(assembly, requests[first : first + rows], rows, everything)
        texts += fresh
        for candidate in asked:
            # One reading at a time: each has all weights of the head.
            made[candidate] += proposed(_draft(assembly, candidate, k), assembly.target, fresh, everything, k)
        found = _examination(texts, made, refused, k)
        if found.decided:
            break
        asked = [found.taken.candidate, *(one.measured.candidate for one in found.others if one.outcome != "no better")]
    return found


def _draft(assembly: Assembly, candidate: HeadReading, k: int) -> Draft:
    draft = assembly.engine(candidate.draft, k=k).draft
    assert draft is not None
    return draft


def _asked(
    assembly: Assembly, candidates: Sequence[HeadReading], k: int
) -> tuple[dict[HeadReading, Taps], tuple[tuple[HeadReading, str], ...]]:
    """Which states each reading asks for, and the readings that do not load, with the reason."""
    taps, refused = dict[HeadReading, Taps](), list[tuple[HeadReading, str]]()
    for candidate in candidates:
        try:
            taps[candidate] = Taps.of([_draft(assembly, candidate, k)])
        except SpecdecError as error:
            if not taps:
                raise
            refused.append((candidate, str(error)))
    return taps, tuple(refused)


def _examination(
    texts: Sequence[OwnText],
    made: Mapping[HeadReading, Sequence[Tokens]],
    refused: tuple[tuple[HeadReading, str], ...],
    k: int,
) -> Examination:
    counted = new_places([text.tokens for text in texts], [len(text.request.prompt) for text in texts], k)
    following = [text.following(k) for text in texts]
    measured = list[ExaminedReading]()
    for candidate, proposals in made.items():
        rows = [*zip(proposals, following, counted, strict=False)]  # a reading that is no better has fewer
        hits = tuple(Hits(mine == tokens, places) for mine, tokens, places in rows)
        chance = tuple(hit.by_chance(tokens, mine) for hit, (mine, tokens, _) in zip(hits, rows, strict=True))
        measured.append(ExaminedReading(candidate, hits, chance))
    taken, *others = measured
    return Examination(
        taken,
        tuple(beside_taken(taken.hits[: len(other.hits)], other, len(others)) for other in others),
        refused,
        prompts=len(texts),
        places=sum(int(places.sum()) for places in counted),
        tokens=sum(len(text.answer) for text in texts),
    )
