"""A results folder: ``<time>-<name>/`` with the files of a run, and a manifest of how they were made."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchsuite.machine import provenance


def write_folder(
    root: Path, name: str, files: Mapping[str, str], card: Sequence[str], seed: int, complete: bool
) -> Path:
    """Write ``files`` (name to text) and ``MANIFEST.json`` into a new folder of ``root``; return the folder.

    A file whose name ends in ``.gz`` is compressed, the same text always to the same bytes.
    ``complete`` goes into the manifest: an interrupted run also writes its results. Raises OSError if it cannot be
    written.
    """
    stamped = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    taken = sum(1 for _ in root.glob(f"{stamped}*"))
    folder = root / (f"{stamped}-{taken + 1}" if taken else stamped)
    folder.mkdir(parents=True)
    written = {
        file: gzip.compress(text.encode(), mtime=0) if file.endswith(".gz") else text.encode()
        for file, text in files.items()
    }
    for file, content in written.items():
        (folder / file).write_bytes(content)
    manifest = {
        **provenance.origin(provenance.own_commit()),
        "complete": complete,
        "seed": seed,
        "machine": {"platform": platform.platform(), "python": platform.python_version(), "card": list(card)},
        "sha256": {file: hashlib.sha256(content).hexdigest() for file, content in written.items()},
    }
    (folder / "MANIFEST.json").write_text(strict_json(manifest), encoding="utf-8")
    return folder


def strict_json(value: Any) -> str:
    """Return JSON that every parser reads; raises ValueError for NaN or infinity."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def template(name: str, **values: Any) -> str:
    """Return a template of ``benchsuite/report/templates`` with ``values`` filled in and escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("benchsuite.report"), autoescape=True)
    return environment.get_template(name).render(**values)
