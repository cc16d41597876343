"""Checks of a draft head beside its target: that it is read as it was trained, and accepts something in use."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from benchsuite.conformance.claims import Checks, Failed
from benchsuite.doctor.commands import HeadReport, examine_head
from benchsuite.doctor.hits import Rate


@cache
def _examined(head: str, target: str, workload: str, k: int, prompts: int) -> HeadReport:
    return examine_head(head, target, workload, k=k, tokens=32, prompts=prompts)


class HeadChecks(Checks):
    """Checks of a head; ``conformance.head`` makes a subclass with the claims filled in."""

    text: ClassVar[str]
    target: ClassVar[str]
    workload: ClassVar[str]
    k: ClassVar[int]
    prompts: ClassVar[int]

    @property
    def report(self) -> HeadReport:
        """The examination, made once for all checks."""
        return _examined(self.text, self.target, self.workload, self.k, self.prompts)

    def test_no_other_reading_accepts_more(self) -> None:
        """Layers, order, states and ids are read as they were trained, by the acceptance of each reading that loads."""
        found = self.report.examination
        if found.better:
            best = found.better[0]
            raise Failed(
                f"{self.text} is read as it was trained",
                f"{best.measured.candidate.name} accepts {best.gain:.2f} ± {best.error:.2f} proposals more at a place",
                best.measured.candidate.draft,
            )

    def test_it_accepts_more_than_chance(self) -> None:
        """Its proposals are right where they stand more often than half an answer away."""
        found = self.report.examination
        if not found.taken.skilled:
            raise Failed(
                f"{self.text} drafts for {self.target}",
                f"at a place it accepts {_said(found.taken.length)}, and {_said(found.taken.by_chance)} by chance",
                f"{found.prompts} prompts, {found.places} places",
            )

    def test_its_own_states_serve_it_as_the_targets_do(self) -> None:
        """Past the first position, fed with its own states, it accepts half as much as with the target's, or more."""
        found = self.report.examination
        if found.taken.collapses:
            own, fed = found.taken.positions[1]
            raise Failed(
                f"{self.text} drafts several tokens",
                f"position 2 accepts {_said(own)}, and {_said(fed)} where it is given the target's states",
                f"{own.tried} places that reach position 2",
            )


def _said(rate: Rate) -> str:
    return f"{rate.share:.2f} ± {rate.error:.2f}"
