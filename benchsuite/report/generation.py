"""One generation as a timeline: every token in the text, how it came to be there, and the step that emitted it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchsuite.measure.runners import Outcome
    from specdec.stats import StepTimes


@dataclass(frozen=True)
class ShownToken:
    """A token: its text, its kind (``accepted``, ``recovered``, ``bonus``, ``plain``), and the numbers of its step in a
    sentence; ``step`` counts from 1."""

    text: str
    kind: str
    step: int
    said: str


def generation(outcome: Outcome, pieces: Mapping[int, str]) -> list[ShownToken]:
    """Return the tokens of the first request of a run of one row, in order. ``pieces``: the text of each token id.

    A step emits its accepted proposals, and one token more: a bonus if all were accepted, else the one that was drawn
    instead of the rejected one. A tree's proposals are accepted along one path, to its deepest at most. The last step
    may be cut by the end of the request.
    """
    return list(_tokens(outcome, pieces))


def _tokens(outcome: Outcome, pieces: Mapping[int, str]) -> Iterator[ShownToken]:
    tokens = iter(outcome.tokens[0])
    for number, (step, times) in enumerate(outcome.timed, 1):
        row = step.each[0]
        said = f"step {number}: {_told(row.proposed, row.accepted)}; {_parts(times)}"
        for place in range(row.emitted):
            token = next(tokens, None)
            if token is None:
                return
            yield ShownToken(pieces.get(token, "�"), _kind(place, row.deepest, row.accepted), number, said)


def _kind(place: int, deepest: int, accepted: int) -> str:
    if not deepest:
        return "plain"
    if place < accepted:
        return "accepted"
    return "bonus" if accepted >= deepest else "recovered"


def _told(proposed: int, accepted: int) -> str:
    return f"{accepted} of {proposed} proposals accepted" if proposed else "nothing proposed"


def _parts(times: StepTimes) -> str:
    parts = {"draft": times.draft + times.control, "target": times.target, "accept": times.accept}
    parts |= {"commit": times.commit, "host": times.host}
    return ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in parts.items())
