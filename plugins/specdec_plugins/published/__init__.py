"""Reads heads that others published: one module for each form, and every dialect of a form in its module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from specdec import SpecdecError
from specdec.model import ArenaModel
from specdec_plugins.heads.files import shipped_folder
from specdec_plugins.published import dflash, dspark, eagle3, medusa, mtp, peagle
from specdec_plugins.published.checkpoint import Checkpoint
from specdec_plugins.published.reading import Published, Reading, TargetSizes


class Form(Protocol):
    """What the module of a form has."""

    FORM: str
    """The form's name, which is that of the draft that runs it."""

    def knows(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is of this form, by its ``architectures`` or the like; nothing is taken."""

    def read(self, checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[Any]:
        """Take all settings and tensors; SpecdecError for what cannot be read or is not decided."""

    def alternatives(self, published: Published[Any], sizes: TargetSizes) -> dict[str, Reading]:
        """The other readings that would load, each by its name in plain words."""


FORMS: tuple[Form, ...] = (dflash, dspark, eagle3, medusa, mtp, peagle)
"""All forms that can be read."""


def read_published(
    path: str | Path,
    sizes: TargetSizes,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    pickle: bool = False,
    forms: Sequence[Form] = FORMS,
) -> Published[Any]:
    """Read a head for a target of these sizes, by the one form that knows it, and refuse what that leaves over.

    SpecdecError if no form knows it, or more than one.
    """
    checkpoint = Checkpoint.open(path, pickle)
    found = [form for form in forms if form.knows(checkpoint)]
    if len(found) != 1:
        names = ", ".join(form.FORM for form in found)
        problem = f"could be of the forms {names}" if found else "is of no form that can be read"
        raise SpecdecError(
            f"{checkpoint.path} {problem}: architectures {checkpoint.settings.peek('architectures')!r}, "
            f"speculators_model_type {checkpoint.settings.peek('speculators_model_type')!r}; expected one of: "
            + ", ".join(form.FORM for form in forms)
        )
    published = found[0].read(checkpoint, sizes, reading)
    checkpoint.done()
    return published


def read_for(form: str, head: str, target: ArenaModel, reading: Reading, pickle: bool = False) -> Published[Any]:
    """Read the head that is named to the draft of a form, ``form``; SpecdecError if none is, or one of another form.

    ``trained`` names the shipped head of this form for the target.

    Example: ``read_for("eagle3", "path/to/head", env.target, Reading.of(layers="2-15-27"))``
    """
    if not head:
        raise SpecdecError(
            f"{form} drafts with a published head, and none is named: {form}(head='path/to/head'); docs/heads.md says "
            "which can be read"
        )
    path = shipped_folder(form, target.model) if head == "trained" else head
    found = read_published(path, TargetSizes.of(target), reading, pickle)
    if found.form != form:
        raise SpecdecError(f"{head!r} is a head of the form {found.form}; name the draft {found.form}(head=…)")
    return found
