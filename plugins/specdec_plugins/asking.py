"""Whether a model that drafts is asked at a price, and how far what it says of its proposals comes true."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.lengths import Price
from specdec_plugins.choosing import of_either
from specdec_plugins.forecast import ComeTrue
from specdec_plugins.track_record import TrackRecord

AS_LIKELY_AS_NOT = 0.5
"""The chance of the next proposal behind those that are kept, before the model has been asked for it."""


class OwnRecord:
    """What a draft knows of its rows, and of itself: what came of its proposals, and what it had said of them.

    Rows and lengths are the host's (``Context.length_host``).

    Example::

        record = OwnRecord()
        if any(rooms := record.rooms(price, [10], [4], depth=3)):  # row 0 has 10 tokens and room for 4 proposals
            chances = record.believed([[0.8, 0.5, 0.1]])  # of the nodes of its tree, the likeliest first
            record.told(0, 10, 0.8 + 0.5)  # two of them are proposed
    """

    def __init__(self) -> None:
        self._record, self._true = TrackRecord(), ComeTrue()
        self._told: dict[int, tuple[int, float]] = {}

    def drop(self, row: int) -> None:
        """Another text is in the row, or none."""
        self._record.drop(row)
        self._told.pop(row, None)

    def move(self, source: int, row: int) -> None:
        """The text of ``source`` goes on in ``row``."""
        self.drop(row)
        self._record.move(source, row)
        if source in self._told:
            self._told[row] = self._told.pop(source)

    def rooms(self, price: Price, lengths: Sequence[int], rooms: Sequence[int], depth: int) -> list[int]:
        """Those of ``rooms`` in which proposals are worth a question, by what came of those before; 0 for the others.

        To be called once a step. ``depth``: how many forwards a question may cost.
        """
        self._record.seen(lengths)
        for row, length in enumerate(lengths):
            before, told = self._told.pop(row, (length, 0.0))
            if told:
                self._true.seen(told, float(length - before - 1))
        drafted = [self._record.chances(row, min(room, depth)) if room else [] for row, room in enumerate(rooms)]
        _, asked = of_either(price, [()] * len(rooms), drafted, range(depth + 1))
        for row, (length, count) in enumerate(zip(lengths, asked, strict=True)):
            if count:
                self._record.asked(row, length, min(rooms[row], depth))
        return [room if count else 0 for room, count in zip(rooms, asked, strict=True)]

    def believed(self, chances: Sequence[Sequence[float]]) -> list[list[float]]:
        """The chances that a model gives its proposals, as far as such chances have come true."""
        return [[self._true.chance(chance) for chance in row] for row in chances]

    def told(self, row: int, length: int, tokens: float) -> None:
        """The sum of the chances that the model gives what it proposes behind ``length`` tokens of a row."""
        self._told[row] = length, tokens


def goes_on(price: Price, forwards: int, alive: Sequence[float]) -> bool:
    """Whether one more depth is worth a forward behind so many, where a row's chain is kept with the chance ``alive``.

    Example: where slots cost nothing and a forward a tenth of a token, 0.2 is the least chance of a single row.
    """
    slot = float(price.cost[-1]) / max(1, len(price.cost) - 1)
    gains = (worth * chance * AS_LIKELY_AS_NOT - slot for worth, chance in zip(price.worth, alive, strict=True))
    return bool(sum(gain for gain in gains if gain > 0) > price.drafting(forwards + 1) - price.drafting(forwards))
