"""Whether a model that drafts is asked at a price, and how far what it says of its proposals comes true."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.lengths import Price
from specdec_plugins.choosing import of_either
from specdec_plugins.forecast import ComeTrue
from specdec_plugins.track_record import TrackRecord

AS_LIKELY_AS_NOT = 0.5
"""The chance of the next proposal behind those that are kept, before the model has been asked for it."""


class OwnRecord(TrackRecord):
    """What a draft knows of its rows, and of itself: what came of its proposals, and what it had said of them.

    Example::

        record = OwnRecord()
        if any(rooms := record.rooms(price, [4], depth=3)):  # row 0 has room for 4 proposals
            chances = record.believed([0.8, 0.5, 0.1])  # of the nodes of its tree, the likeliest first
            record.told(0, 3, 0.8 + 0.5)  # two of them are proposed
        record.came([1])  # in every step: one was kept
    """

    def __init__(self) -> None:
        super().__init__()
        self._true = ComeTrue()
        self._told: dict[int, tuple[int, float]] = {}

    def rooms(self, price: Price, rooms: Sequence[int], depth: int) -> list[int]:
        """Those of ``rooms`` in which proposals are worth a question, by what came of those before; 0 for the others.

        ``depth``: how many forwards a question may cost.
        """
        drafted = [self.chances(row, min(room, depth)) if room else [] for row, room in enumerate(rooms)]
        _, asked = of_either(price, [()] * len(rooms), drafted, range(depth + 1))
        return [room if count else 0 for room, count in zip(rooms, asked, strict=True)]

    def believed(self, chances: Sequence[float]) -> list[float]:
        """The chances that a model gives its proposals, as far as such chances have come true."""
        return [self._true.chance(chance) for chance in chances]

    def told(self, row: int, depth: int, tokens: float) -> None:
        """The row is asked in this step: how deep it may go, and the sum of the chances of what is proposed."""
        self._told[row] = depth, tokens

    @property
    def waits(self) -> bool:
        """Whether some row was asked in this step."""
        return bool(self._told)

    def came(self, kept: Sequence[int]) -> None:
        """How many proposals each row has kept, whoever made them; to be called in every step."""
        self.stepped(self.waits)
        for row, count in enumerate(kept):
            if row in self._told:
                depth, tokens = self._told[row]
                self.judge(row, depth, count)
                self._true.seen(tokens, count)
            else:
                self.rest(row)
        self._told.clear()


def goes_on(price: Price, forwards: int, alive: Sequence[float]) -> bool:
    """Whether one more depth is worth a forward behind so many, where a row's chain is kept with the chance ``alive``.

    Example: where slots cost nothing and a forward a tenth of a token, 0.2 is the least chance of a single row.
    """
    slot = price.slot
    gains = (worth * chance * AS_LIKELY_AS_NOT - slot for worth, chance in zip(price.worth, alive, strict=True))
    return bool(sum(gain for gain in gains if gain > 0) > price.drafting(forwards + 1) - price.drafting(forwards))
