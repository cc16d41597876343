"""Entries of the museum: mutants and controls.

``source`` names where the bug shipped. ``sentence`` says what was wrong there; after "analogue:" it describes the
closest fault in our code, which has no such part. ``layer`` is the layer that must find it.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchsuite.workshop.museum.edit import Edit
from benchsuite.workshop.museum.places import TABLE


@dataclass(frozen=True)
class Mutant:
    """A bug: ``edits`` make our code wrong, and ``layer`` must find it."""

    source: str
    sentence: str
    layer: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Control:
    """An unusual but lossless change: no layer may find anything."""

    source: str
    sentence: str
    edits: tuple[Edit, ...]

    @property
    def of_a_table(self) -> bool:
        """Whether only ``TableDraft`` is changed, which no transformers model uses."""
        return bool(self.edits) and all(edit.where.startswith(TABLE) for edit in self.edits)


def mutant(source: str, sentence: str, layer: str, *edits: tuple[str, str, str]) -> Mutant:
    """Return a mutant of edits given as (where, old, new)."""
    return Mutant(source, sentence, layer, tuple(Edit(*edit) for edit in edits))


def control(source: str, sentence: str, *edits: tuple[str, str, str]) -> Control:
    """Return a control of edits given as (where, old, new)."""
    return Control(source, sentence, tuple(Edit(*edit) for edit in edits))
