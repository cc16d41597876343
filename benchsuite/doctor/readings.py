"""The readings of a head that are compared: the one taken, and each other one that would load, as texts of drafts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from benchsuite.doctor.examination import HeadReading
from specdec.model import ArenaModel
from specdec.registry import Registry
from specdec_plugins.published import FORMS, Form, read_published
from specdec_plugins.published.reading import Choice, Published, Reading, TargetSizes

AS_TAKEN = "as taken"
"""The name of the reading that is examined."""


def readings_of(head: str, registry: Registry, target: ArenaModel) -> tuple[list[HeadReading], tuple[Choice, ...]]:
    """The readings of a head of ``target``, the one taken first, and what was chosen for that one.

    ``head`` is the path of a published head, or a draft with its options, as ``eagle3(head=path, layers=2-15-27)``. A
    draft that reads no published head has no other readings and no choices. SpecdecError for what cannot be read.
    """
    sizes = TargetSizes.of(target)
    options: dict[str, Any]
    if Path(head).exists():
        published = read_published(head, sizes)
        name, options = published.form, {"head": head}
    else:
        name, (entry, options) = head.partition("(")[0].strip(), registry.parse("draft", head)
        path = str(options.get("head", entry.options.get("head", "")))
        path = target.model.config.name_or_path if path == "target" else path
        if name not in [form.FORM for form in FORMS] or not path or not Path(path).exists():
            return [HeadReading(AS_TAKEN, head)], ()
        asked = {field.name: options.get(field.name, "") for field in fields(Reading)}
        published = read_published(path, sizes, Reading.of(**asked), bool(options.get("pickle")))
    [form] = [form for form in FORMS if name == form.FORM]
    taken = HeadReading(AS_TAKEN, draft_text(name, options))
    others = [
        HeadReading(words, draft_text(name, {**options, **changed_options(published.reading, other)}))
        for words, other in other_readings_of(form, published, sizes).items()
    ]
    return [taken, *others], published.choices


def other_readings_of(form: Form, published: Published[Any], sizes: TargetSizes) -> dict[str, Reading]:
    """The other readings by name: those of the form, and what the head says where an option says otherwise."""
    found = form.alternatives(published, sizes)
    for choice in published.choices:
        if choice.instead is not None:
            other = replace(published.reading, **{choice.what: cast(Any, choice.instead)})
            if other not in found.values():
                said = Choice(choice.what, choice.instead, "as the head says")
                found[str(said)] = other
    return found


def changed_options(taken: Reading, other: Reading) -> dict[str, str]:
    """The options by which ``other`` differs from ``taken``.

    Example: ``changed_options(Reading(), Reading(layers=(1, 14, 26)))`` is ``{"layers": "1-14-26"}``
    """
    values = {field.name: getattr(other, field.name) for field in fields(Reading)}
    return {
        name: "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None and value != getattr(taken, name)
    }


def draft_text(name: str, options: Mapping[str, object]) -> str:
    """A draft with its options, as the registry reads it."""
    return f"{name}({', '.join(f'{key}={_quoted(value)}' for key, value in options.items())})"


def _quoted(value: object) -> str:
    # Text that looks like a number would be read as one, and options of readings are words.
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z]\w*|\d+(-\d+)+", value)
    return str(value) if plain else repr(value)
