"""Runs one layer against one mutant, and makes the table of the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from benchsuite.conformance.claims import Failed
from benchsuite.report.document import Document, Lines, Section, Table
from benchsuite.workshop.museum.controls import CONTROLS
from benchsuite.workshop.museum.edit import NotApplicable, apply
from benchsuite.workshop.museum.entries import Control, Mutant
from benchsuite.workshop.museum.layers import LAYERS


@dataclass(frozen=True)
class Kill:
    """The result of one layer on one mutant: the message ``said``, None where it found nothing."""

    entry: Mutant | Control
    layer: str
    said: str | None
    seconds: float


def hold(entry: Mutant | Control, layer: str, layers: dict[str, Callable[[], None]] = LAYERS) -> Kill:
    """Run one layer over our code with the entry's edits. Raises NotApplicable if an edit no longer fits."""
    with pytest.MonkeyPatch.context() as patch:
        apply(entry.edits, patch)
        start, said = time.perf_counter(), None
        try:
            layers[layer]()
        except NotApplicable:
            raise
        except (Exception, Failed) as error:
            is_finding = isinstance(error, AssertionError | Failed)
            said = f"{error}" if is_finding else f"{type(error).__name__}: {error}"
        return Kill(entry, layer, said, time.perf_counter() - start)


def _short(said: str | None) -> str:
    words = " ".join((said or "SURVIVED").split()).partition(" assert ")[0]
    words = words.partition(" measured: ")[2] or words
    return words if len(words) <= 60 else words[:59] + "…"


def kills_document(kills: Sequence[Kill]) -> Document:
    """Return the table of every mutant with the layer that must find it, the seconds, and the example it reports."""
    rows = [
        (
            kill.entry.source,
            kill.entry.sentence,
            kill.layer,
            f"{kill.seconds:.1f}",
            _short(kill.said),
        )
        for kill in kills
    ]
    killed = sum(kill.said is not None for kill in kills)
    lines = [
        f"{killed} of {len(kills)} mutants killed, in {sum(kill.seconds for kill in kills):.0f} s",
        f"{len(CONTROLS)} controls",
    ]
    table = Table(("shipped in", "what was wrong", "killed by", "s", "example"), rows)
    return Document(sections=[Section(parts=[table, Lines(lines)])])
