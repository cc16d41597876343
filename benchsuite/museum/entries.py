"""What the museum holds: mutants, controls, and bugs whose part is still to come.

``source`` is where it shipped; ``sentence`` what was wrong there, or with "analogue:" what stands for it where
we lack the part. ``layer`` is the one that must find it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from benchsuite.museum.edit import Edit
from benchsuite.museum.places import TABLE
from specdec import Completion, SamplingParams


@dataclass(frozen=True)
class Mutant:
    """A bug: ``edits`` make our code wrong and ``layer`` must say so."""

    source: str
    sentence: str
    layer: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Control:
    """Odd, but lossless: no layer may find anything."""

    source: str
    sentence: str
    edits: tuple[Edit, ...]

    @property
    def of_a_table(self) -> bool:
        """Whether only ``TableDraft`` is changed, which no transformers model drafts with."""
        return bool(self.edits) and all(edit.where.startswith(TABLE) for edit in self.edits)


@dataclass(frozen=True)
class Waiting:
    """A bug of a part that we do not have yet; ``needs`` names the field that it will arrive with."""

    source: str
    sentence: str
    needs: str

    @property
    def arrived(self) -> bool:
        """Whether the part exists by now."""
        return self.needs in {field.name for kind in (SamplingParams, Completion) for field in fields(kind)}


def mutant(source: str, sentence: str, layer: str, *edits: tuple[str, str, str]) -> Mutant:
    """A mutant of edits given as (where, old, new)."""
    return Mutant(source, sentence, layer, tuple(Edit(*edit) for edit in edits))


def control(source: str, sentence: str, *edits: tuple[str, str, str]) -> Control:
    """A control of edits given as (where, old, new)."""
    return Control(source, sentence, tuple(Edit(*edit) for edit in edits))
