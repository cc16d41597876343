"""Every mutant and control of the museum still finds the lines that it changes, seen in a second."""

from __future__ import annotations

import pytest

from benchsuite.workshop.museum.controls import CONTROLS
from benchsuite.workshop.museum.edit import apply
from benchsuite.workshop.museum.entries import Control, Mutant
from benchsuite.workshop.museum.ours import OURS
from benchsuite.workshop.museum.shipped import SHIPPED


@pytest.mark.museum
@pytest.mark.parametrize("entry", [*OURS, *SHIPPED, *CONTROLS], ids=lambda entry: f"{entry.source}: {entry.sentence}")
def test_the_lines_that_an_entry_changes_are_there(entry: Mutant | Control) -> None:
    with pytest.MonkeyPatch.context() as patch:
        apply(entry.edits, patch)
