"""Launches of a suite, as a file: what a baseline is, strict, versioned, and readable in a diff."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

VERSION = 1


class GateError(ValueError):
    """The gate cannot be set up as asked: a usage error, told before anything is measured."""


@dataclass(frozen=True)
class Launch:
    """What one process measured of one row.

    ``seconds`` per token (per call for a plain benchmark); ``relative``, the median over pairs of the natural
    logarithm of the row's seconds per token over its control's, None without a control; ``parts``, the median
    seconds per step of each part of a step over the control's seconds per token; ``tau`` emitted tokens a forward.
    """

    seconds: float
    relative: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    tau: float | None = None


@dataclass(frozen=True)
class Row:
    """One row of a suite: what repeats exactly, and a Launch for each process that timed it.

    ``work`` is what was asked for: rows are compared only if it is the same. ``digest`` of all emitted ids and
    ``counters`` are those of one pass over the prompts; None for a plain benchmark. ``deterministic`` is False
    where a controller reads the clock: counters then need not repeat.
    """

    work: Mapping[str, Any] = field(default_factory=dict)
    digest: str | None = None
    plain_digest: str | None = None
    deterministic: bool = True
    counters: Mapping[str, Any] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True)
class Record:
    """Rows by name, and where they come from: ``made`` holds machine, versions, commit and command.

    Example: ``Record.load(Path("gate.json")).rows["tiny-chat-ngram-match-k4"].counters["target_forwards"]``
    """

    made: Mapping[str, Any]
    rows: Mapping[str, Row]

    def save(self, path: Path) -> None:
        """Write the file whole or not at all, one figure a line, sorted. OSError if it cannot be written."""
        rows = {name: asdict(row) for name, row in self.rows.items()}
        content = {"format": "specdec-gate", "version": VERSION, "made": dict(self.made), "rows": rows}
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @staticmethod
    def load(path: Path) -> Record:
        """Read a file. GateError if it is not there, or not exactly such a file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        except OSError as error:
            raise GateError(f"the baseline {path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise GateError(f"the baseline {path} is corrupt: {error}; make it again with --gate-save") from None
        try:
            return _parsed(content)
        except (GateError, TypeError, KeyError) as error:
            raise GateError(f"the baseline {path} is corrupt: {error}; make it again with --gate-save") from None

    @property
    def launches(self) -> int:
        """How many launches every row has, at least."""
        return min((len(row.launches) for row in self.rows.values()), default=0)

    def last(self, count: int) -> Record:
        """This record with only the last so many launches of each row."""
        return replace(
            self, rows={name: replace(row, launches=row.launches[-count:]) for name, row in self.rows.items()}
        )

    def joined(self, others: Sequence[Record]) -> Record:
        """This record with the launches of ``others`` behind its own. GateError where what must repeat does not."""
        rows = dict(self.rows)
        for other in others:
            for name in sorted({*rows, *other.rows}):
                row, known = other.rows.get(name), rows.get(name)
                if known is None or row is None:
                    raise GateError(f"one launch measured the row {name!r} and another did not")
                fixed = known.digest, known.deterministic and known.counters
                if fixed != (row.digest, row.deterministic and row.counters):
                    raise GateError(
                        f"two launches of the same code differ in {name!r}: its output or its counters do not repeat; "
                        "give it a seed, or a controller that does not read the clock"
                    )
                rows[name] = replace(known, launches=(*known.launches, *row.launches))
        return replace(self, rows=rows)


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _parsed(content: Any) -> Record:
    if not isinstance(content, dict) or content.get("format") != "specdec-gate":
        raise GateError("it is not a baseline of this gate")
    if content.get("version") != VERSION:
        raise GateError(f"its version is {content.get('version')!r}, expected {VERSION}")
    _exactly(content, {"format", "version", "made", "rows"}, "the file")
    rows = {}
    if not isinstance(content["rows"], dict) or not isinstance(content["made"], dict):
        raise GateError("rows and made are to be objects")
    for name, row in content["rows"].items():
        _exactly(row, {f.name for f in fields(Row)}, f"row {name!r}")
        if not isinstance(row["launches"], list) or not isinstance(row["deterministic"], bool):
            raise GateError(f"row {name!r} has launches or deterministic of another type")
        if not isinstance(row["counters"], dict) or bool(row["counters"]) is (row["digest"] is None):
            raise GateError(f"row {name!r} has a digest without counters, or counters without a digest")
        for launch in row["launches"]:
            _exactly(launch, {f.name for f in fields(Launch)}, f"a launch of {name!r}")
            numbers = [
                launch["seconds"],
                *(launch["parts"] or {}).values(),
                launch["relative"] or 0.0,
                launch["tau"] or 1,
            ]
            if not all(map(_number, numbers)) or launch["seconds"] <= 0:
                raise GateError(f"a launch of {name!r} has a figure that is no number, or no time")
        rows[name] = Row(**{**row, "launches": tuple(Launch(**launch) for launch in row["launches"])})
    return Record(content["made"], rows)


def _exactly(got: Any, keys: set[str], what: str) -> None:
    if not isinstance(got, dict) or set(got) != keys:
        names = sorted(got) if isinstance(got, dict) else type(got).__name__
        raise GateError(f"{what} has {names}, expected exactly {sorted(keys)}")
