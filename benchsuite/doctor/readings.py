"""The readings of a head that are compared: the one taken, and each other one that would load, as texts of drafts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from benchsuite.doctor.examination import HeadReading
from specdec.registry import Registry
from specdec_plugins.published import FORMS, read_published
from specdec_plugins.published.reading import Choice, Reading, TargetSizes

AS_TAKEN = "as taken"
"""The name of the reading that is examined."""


def readings_of(head: str, registry: Registry, sizes: TargetSizes) -> tuple[list[HeadReading], tuple[Choice, ...]]:
    """The readings of a head, the one taken first, and what was chosen for that one.

    ``head`` is the path of a published head, or a draft with its options, as ``eagle3(head=path, layers=2-15-27)``. A
    draft that reads no published head has no other readings and no choices. SpecdecError for what cannot be read.
    """
    if Path(head).exists():
        published = read_published(head, sizes)
        name, options = published.form, {"head": head}
    else:
        _, given = registry.parse("draft", head)
        name, options = head.partition("(")[0].strip(), {key: str(value) for key, value in given.items()}
        if name not in [form.FORM for form in FORMS] or not Path(options.get("head", "")).exists():
            return [HeadReading(AS_TAKEN, head)], ()
        asked = {field.name: options.get(field.name, "") for field in fields(Reading)}
        published = read_published(options["head"], sizes, Reading.of(**asked), bool(given.get("pickle")))
    [form] = [form for form in FORMS if name == form.FORM]
    taken = HeadReading(AS_TAKEN, draft_text(name, options))
    others = [
        HeadReading(words, draft_text(name, {**options, **changed_options(published.reading, other)}))
        for words, other in form.alternatives(published, sizes).items()
    ]
    return [taken, *others], published.choices


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


def draft_text(name: str, options: Mapping[str, str]) -> str:
    """A draft with its options, as the registry reads it."""
    return f"{name}({', '.join(f'{key}={_quoted(value)}' for key, value in options.items())})"


def _quoted(value: str) -> str:
    # A number alone would be read as a number, and options of readings are words.
    return value if re.fullmatch(r"[A-Za-z]\w*|\d+(-\d+)+", value) else repr(value)
