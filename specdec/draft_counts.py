"""What an engine counts of its own speculation, in one form for engines in this process and for servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from specdec.errors import SpecdecError


@dataclass(frozen=True)
class DraftCounts:
    """An engine's own counts of what was proposed and kept; None or () is a count that it does not give.

    ``drafts``: steps of a request that proposed something. ``proposed``: their proposals; ``accepted``: those of them
    that the target kept, so that the token which it adds to every step is none. ``accepted_by_position`` and
    ``proposed_by_position``: steps that accepted, and that had, a proposal at depth 1, 2, … Proposals that were kept
    behind the end of an output count if the engine counts them.

    Raises SpecdecError for counts that contradict each other.

    Example: ``DraftCounts.of_steps([(4, 4), (2, 1)])`` has two drafts, 5 of 6 proposals accepted, and (2, 1, 1, 1) of
    (2, 2, 1, 1) by position.
    """

    drafts: int | None = None
    proposed: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] = ()
    proposed_by_position: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole = [one for one in (self.drafts, self.proposed, self.accepted) if one is not None]
        kept, made = self.accepted_by_position, self.proposed_by_position
        ordered = [
            (self.accepted, self.proposed),
            (self.drafts, self.proposed),
            *((places[0], self.drafts) for places in (kept, made) if places),
            *zip(kept, made, strict=False),
            *((deeper, here) for places in (kept, made) for here, deeper in pairwise(places)),
            (sum(made), self.proposed),
            (sum(kept), self.accepted),
            (self.accepted if kept else None, sum(kept)),
        ]
        if any(count < 0 for count in (*whole, *kept, *made)) or any(
            less is not None and more is not None and less > more for less, more in ordered
        ):
            raise SpecdecError(f"an engine counted {self}; these numbers cannot all be of one work")

    @classmethod
    def of_steps(cls, steps: Iterable[tuple[int, int]]) -> DraftCounts:
        """Return the counts of steps, each given as the numbers of its proposals and of those that were accepted.

        A step without proposals counts as none.
        """
        drafted = [(proposed, accepted) for proposed, accepted in steps if proposed]
        proposed, accepted = ([step[which] for step in drafted] for which in (0, 1))
        return cls(len(drafted), sum(proposed), sum(accepted), _at_depths(accepted), _at_depths(proposed))

    @classmethod
    def of_histogram(cls, histogram: Iterable[int], proposed: int | None = None) -> DraftCounts:
        """Return the counts of an engine that says how many steps accepted 0, 1, … of their proposals.

        Example: ``DraftCounts.of_histogram([1, 0, 2]).accepted_by_position`` is ``(2, 2)``
        """
        steps = [*histogram]
        at_least = tuple(accumulate(reversed(steps)))[::-1]
        kept = tuple(count for count in at_least[1:] if count)
        return cls(sum(steps), proposed, sum(kept), kept)

    @classmethod
    def total(cls, every: Iterable[DraftCounts | None]) -> DraftCounts | None:
        """Return the counts of several works together; None if one of them is not known, or there are none."""
        known = [*every]
        whole = [one for one in known if one is not None]
        return sum(whole, cls.of_steps(())) if whole and len(whole) == len(known) else None

    def __add__(self, other: DraftCounts) -> DraftCounts:
        """The counts of both works together; a count that one of them lacks is lacking."""
        accepted, proposed = _sum(self.accepted, other.accepted), _sum(self.proposed, other.proposed)
        places = [
            _columns((a, b), (x, y))
            for a, b, x, y in (
                (self.accepted_by_position, other.accepted_by_position, self.accepted, other.accepted),
                (self.proposed_by_position, other.proposed_by_position, self.proposed, other.proposed),
            )
        ]
        return DraftCounts(_sum(self.drafts, other.drafts), proposed, accepted, *places)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / proposed; None if one of the two is not known, or nothing was proposed."""
        return None if self.accepted is None or not self.proposed else self.accepted / self.proposed

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts; None if one of the two is not known, or nothing was proposed."""
        return None if self.accepted is None or not self.drafts else 1 + self.accepted / self.drafts

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """The share of proposals that were kept at depth 1, 2, …; () where that is not known.

        It is of the proposals at that depth. If the engine does not count these, it is of all drafts, as in vLLM's own
        figure: no more than the share of those proposed, and less where steps propose fewer than K.
        """
        depths = max(len(self.accepted_by_position), len(self.proposed_by_position))
        accepted = (*self.accepted_by_position, *[0] * (depths - len(self.accepted_by_position)))
        made = self.proposed_by_position or (self.drafts or 0,) * depths
        known = self.accepted_by_position or self.accepted == 0
        return tuple(kept / count for kept, count in zip(accepted, made, strict=True) if count) if known else ()

    @property
    def histogram(self) -> dict[int, int]:
        """How many steps accepted 0, 1, … proposals, without numbers that no step accepted; empty if not known."""
        if self.drafts is None or not (self.accepted_by_position or self.accepted == 0):
            return {}
        at_least = (self.drafts, *self.accepted_by_position, 0)
        return {depth: here - deeper for depth, (here, deeper) in enumerate(pairwise(at_least)) if here > deeper}


def _at_depths(lengths: Iterable[int]) -> tuple[int, ...]:
    """How many of these lengths reach depth 1, 2, …"""
    found = Counter(lengths)
    return tuple(
        sum(n for length, n in found.items() if length >= depth) for depth in range(1, max(found, default=0) + 1)
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _columns(rows: tuple[tuple[int, ...], ...], totals: tuple[int | None, ...]) -> tuple[int, ...]:
    """The sums of columns; () if a row is lacking, which it is not where there was nothing to count."""
    if any(not row and total != 0 for row, total in zip(rows, totals, strict=True)):
        return ()
    return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(max(map(len, rows))))
