"""How many of a draft's proposals were kept, for a draft that cannot tell how likely they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from specdec_plugins.forecast import Chances

KEEP_OF_ALL, KEEP_OWN = 0.98, 0.92
"""What a new observation leaves of the older ones' weight, in what is known of all rows and of one."""

KEEP_UNASKED = 0.97
"""What a step in which a row's draft was not asked leaves of them: a text that was hard for it may have become easy."""


UNASKED = 64
"""Steps without any question after which it counts as a draft of which nothing is known: one that has failed in every
text so far would else never be asked again."""


class TrackRecord:
    """The chances that a draft's proposals are kept, from what came of those before: a row's own, beside those of all.

    Rows and lengths are the host's (``Context.length_host``): what came of a proposal is seen by how much longer a text
    is at the next step.

    Example::

        record = TrackRecord()
        record.asked(0, 10, 2)  # two proposals behind ten tokens of row 0
        record.seen([12])  # one of them was kept, and one token drawn
        record.chances(0, 2)
    """

    def __init__(self) -> None:
        self._all = Chances(keep=KEEP_OF_ALL)
        self._own = defaultdict[int, Chances](lambda: Chances(keep=KEEP_OWN))
        self._asked: dict[int, tuple[int, int]] = {}
        self._unasked = 0  # steps since the last question

    def drop(self, row: int) -> None:
        """Another text is in the row, or none."""
        self._own.pop(row, None)
        self._asked.pop(row, None)

    def move(self, source: int, row: int) -> None:
        """The text of ``source`` goes on in ``row``."""
        self.drop(row)
        if source in self._own:
            self._own[row] = self._own.pop(source)
        if source in self._asked:
            self._asked[row] = self._asked.pop(source)

    def chances(self, row: int, most: int) -> list[float]:
        """Of ``most`` proposals of the row, the chance of each that it is kept with all before it."""
        return Chances().reached(most) if self._unasked > UNASKED else self._all.reached(most, self._own[row])

    def asked(self, row: int, length: int, proposals: int) -> None:
        """So many proposals are made behind ``length`` tokens of the row."""
        self._asked[row] = length, proposals

    def seen(self, lengths: Sequence[int]) -> None:
        """The rows have so many tokens now; to be called once a step, before ``asked``."""
        self.stepped(bool(self._asked))
        for row, length in enumerate(lengths):
            if row in self._asked:
                before, proposals = self._asked.pop(row)
                self.judge(row, proposals, length - before - 1)
            else:
                self.rest(row)

    def stepped(self, asked: bool) -> None:
        """A step has ended in which some row was asked, or none."""
        self._unasked = 0 if asked else self._unasked + 1

    def judge(self, row: int, proposals: int, kept: int) -> None:
        """Of so many proposals of a row, one behind the other, the first ``kept`` were kept."""
        for depth in range(1, proposals + 1):
            for chances in (self._own[row], self._all):
                chances.seen(depth, float(kept >= depth), float(kept >= depth - 1))

    def rest(self, row: int) -> None:
        """The row was not asked in a step."""
        self._own[row].faded(KEEP_UNASKED)
