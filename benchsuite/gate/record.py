"""The baseline: a JSON file of launches of a suite; strict, versioned, and readable in a diff."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

from benchsuite.machine.files import write_file
from benchsuite.machine.user_files import UserFileError, parsed_json, user_text

VERSION = 4
LARGEST = 1e100
"""The limit of values in a file: larger values cannot be measurements, and their ratios could overflow."""

DECODE, FIRST, WHOLE, CALL = "s/token", "TTFT", "E2E", "seconds"
"""The times of a row: decoding seconds per token; seconds to the first token; seconds from prompt to last token, per
token; and, of a plain benchmark, seconds a call."""

MEANS = {figure: f"{figure} mean" for figure in (DECODE, FIRST, CALL)}
"""Beside the median over passes, the mean over those after the first: some slow requests are in no median. Of a plain
benchmark, over all rounds. E2E has none: it is a sum of the other two."""

STARTS = {figure: f"{figure} first pass" for figure in (DECODE, FIRST)}
"""The first pass alone, which caches of any kind leave out of the others."""

BESIDE = {beside: figure for named in (MEANS, STARTS) for figure, beside in named.items()}
"""Each mean and first pass, with the figure whose median it is beside."""

STEPS = "steps/token"
"""Forwards of the target per emitted token, of every row whose engine counts them: 1 if nothing that is proposed is
accepted."""

FIGURES = (DECODE, FIRST, WHOLE, CALL, *MEANS.values(), *STARTS.values())

PARTS = ("draft", "prefill", "verification", "K/V", "host", "engine")
"""The timed parts of a run: all calls into draft and controller; the target's prefill; the target's forward and
acceptance; the commit of keys and values; and, for ``host``, everything else: reading, stops, counting. ``engine``: of
a peer, all but its prefill, its draft included."""


class GateError(ValueError):
    """The gate cannot do as requested: a usage error before anything is measured, reported as ERROR afterwards."""


@dataclass(frozen=True)
class FigureTimes:
    """One figure of one row in one process, prompt by prompt.

    ``seconds``: of each prompt, the median over the passes. ``relative``: of each prompt, the median over the passes of
    ln(seconds / seconds of the control in the same pass); None without a control. Of a figure in ``BESIDE``,
    ``seconds`` are means over its passes, and ``relative`` is ln(mean / mean of the control). A plain benchmark is one
    prompt.
    """

    seconds: tuple[float, ...]
    relative: tuple[float, ...] | None = None


@dataclass(frozen=True)
class StepCounts:
    """What one process counts of a row: ``per_token``, of each prompt, forwards per emitted token over its passes, and
    ``text``, a digest of the tokens, without passes that repeat."""

    per_token: tuple[float, ...]
    text: str


@dataclass(frozen=True)
class Launch:
    """The measurements of one row in one process.

    ``times``: by figure. ``parts``: by figure, the seconds of each part divided by the control's seconds, a mean over
    prompts: of ``s/token``, seconds per step over the control's seconds per token; of ``TTFT``, seconds over the
    control's; of a peer without a control, in seconds. ``tau``: emitted tokens per forward; None if forwards are not
    counted, and a step is then a token. ``steps``: None likewise.
    """

    times: Mapping[str, FigureTimes]
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tau: float | None = None
    steps: StepCounts | None = None


@dataclass(frozen=True)
class PassCounts:
    """What one pass over the prompts counts: the ``digest`` of all emitted ids, ``counters``, and ``ops``, the calls of
    each ``op on backend``."""

    digest: str | None
    counters: Mapping[str, Any]
    ops: Mapping[str, int]


@dataclass(frozen=True)
class GatedRow:
    """One row of a suite: the values that repeat exactly, and a Launch for each process that timed the row.

    ``work``: the settings of the row, and ``inputs``: digests of prompts, tokenizer and weights; rows are compared only
    if these are equal. ``control``: the arm that times are relative to. ``digest``, ``counters`` and ``ops`` are the
    ``PassCounts`` of the first pass over the prompts, ``plain_digest`` the digest of plain decoding; a plain benchmark
    has none. ``passes``: how many were made; ``later``: the counts of those that differ from the first, by number.
    ``deterministic``: False if a controller reads the clock; counters then need not repeat. ``peer``: another engine's
    row, which has times and, if the engine counts its forwards, ``Launch.steps``.
    """

    work: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    control: str | None = None
    digest: str | None = None
    plain_digest: str | None = None
    deterministic: bool = True
    counters: Mapping[str, Any] = field(default_factory=dict)
    ops: Mapping[str, int] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    passes: int = 1
    later: Mapping[str, PassCounts] = field(default_factory=dict)
    peer: bool = False

    def counted(self, number: int) -> PassCounts:
        """The counts of a pass, from 1."""
        return self.later.get(str(number)) or PassCounts(self.digest, self.counters, self.ops)


@dataclass(frozen=True)
class Record:
    """Rows by name, and their provenance: ``made`` contains machine, versions, commit and command.

    Example: ``Record.load(Path("gate.json")).rows["tiny-chat-ngram-match-k4"].counters["target_forwards"]``
    """

    made: Mapping[str, Any]
    rows: Mapping[str, GatedRow]

    def save(self, path: Path) -> None:
        """Write the file atomically, sorted, one value per line. OSError if it cannot be written."""
        rows = {name: asdict(row) for name, row in self.rows.items()}
        content = {"format": "specdec-gate", "version": VERSION, "made": dict(self.made), "rows": rows}
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
        write_file(path, text.encode())

    @staticmethod
    def load(path: Path) -> Record:
        """Read a file. GateError if it cannot be read, or does not have exactly this format."""
        try:
            text = user_text(path)
        except UserFileError as error:
            raise GateError(f"the baseline {error}") from None
        try:
            content = parsed_json(text)
        except UserFileError as error:
            raise _corrupt(path, error) from None
        try:
            return _parsed(content)
        except GateError as error:
            raise _corrupt(path, error) from None

    @property
    def launches(self) -> int:
        """The smallest number of launches of a row; 0 without rows."""
        return min((len(row.launches) for row in self.rows.values()), default=0)

    def last(self, count: int) -> Record:
        """A copy with only the last ``count`` launches of each row."""
        return replace(
            self, rows={name: replace(row, launches=row.launches[-count:]) for name, row in self.rows.items()}
        )

    def joined(self, others: Sequence[Record]) -> Record:
        """A copy with the launches of ``others`` appended. GateError if rows, digests or repeatable counters differ."""
        rows = dict(self.rows)
        for other in others:
            for name in sorted({*rows, *other.rows}):
                row, known = other.rows.get(name), rows.get(name)
                if known is None or row is None:
                    raise GateError(f"one launch measured the row {name!r} and another did not")
                fixed = known.digest, known.later, known.deterministic and known.counters
                if fixed != (row.digest, row.later, row.deterministic and row.counters):
                    raise GateError(
                        f"two launches of the same code differ in {name!r}: its output or its counters do not repeat; "
                        "give it a seed, or a controller that does not read the clock"
                    )
                rows[name] = replace(known, launches=(*known.launches, *row.launches))
        return replace(self, rows=rows)


def _corrupt(path: Path, why: Exception) -> GateError:
    return GateError(f"the baseline {path} is corrupt: {why}; remove it, then make it again with --gate-save")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and _number(value) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < LARGEST


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _counted(value: Any) -> bool:
    return _whole(value) or (isinstance(value, list) and all(map(_whole, value)))


def _shares(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {*PARTS}
        and all(map(_number, value.values()))
        and sum(value.values()) > 1 / LARGEST
    )


def _positive(values: Any) -> bool:
    return isinstance(values, list) and values != [] and all(_number(v) and v > 1 / LARGEST for v in values)


def _object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


Check = Callable[[Any], bool]

FILE: dict[str, Check] = {
    "format": _text,
    "version": _whole,
    "made": lambda made: (
        isinstance(made, dict) and all(_object_or_none(made.get(name)) for name in ("machine", "versions"))
    ),
    "rows": lambda rows: isinstance(rows, dict),
}
ROW: dict[str, Check] = {
    "work": lambda work: isinstance(work, dict),
    "inputs": lambda inputs: isinstance(inputs, dict) and all(map(_text, inputs.values())),
    "control": lambda control: control is None or _text(control),
    "digest": lambda digest: digest is None or _text(digest),
    "plain_digest": lambda digest: digest is None or _text(digest),
    "deterministic": lambda fixed: isinstance(fixed, bool),
    "counters": lambda counters: isinstance(counters, dict) and all(map(_counted, counters.values())),
    "ops": lambda ops: isinstance(ops, dict) and all(map(_whole, ops.values())),
    "launches": lambda launches: isinstance(launches, list),
    "passes": lambda passes: _whole(passes) and passes > 0,
    "later": lambda later: isinstance(later, dict) and all(number.isdecimal() for number in later),
    "peer": lambda peer: isinstance(peer, bool),
}
PASS: dict[str, Check] = {"digest": _text, "counters": ROW["counters"], "ops": ROW["ops"]}
LAUNCH: dict[str, Check] = {
    "times": lambda times: isinstance(times, dict) and times != {} and times.keys() <= {*FIGURES},
    "parts": lambda parts: isinstance(parts, dict) and parts.keys() <= {*FIGURES} and all(map(_shares, parts.values())),
    "tau": lambda tau: tau is None or (_number(tau) and tau > 1 / LARGEST),
    "steps": _object_or_none,
}
COUNTS: dict[str, Check] = {"per_token": _positive, "text": _text}
TIMES: dict[str, Check] = {
    "seconds": _positive,
    "relative": lambda relative: (
        relative is None
        or (
            isinstance(relative, list)
            and relative != []
            and all(_number(r) and abs(r) < log(LARGEST) for r in relative)
        )
    ),
}
"""The check of the value of each key: of the file, of a row, of one pass, of a launch, of its counts, of one figure's
times."""


def _parsed(content: Any) -> Record:
    if not isinstance(content, dict) or content.get("format") != "specdec-gate":
        raise GateError("it is not a baseline of this gate")
    if content.get("version") != VERSION:
        raise GateError(f"its version is {content.get('version')!r}, expected {VERSION}")
    _exactly(content, FILE, "the file")
    rows = {}
    for name, row in content["rows"].items():
        _exactly(row, ROW, f"row {name!r}")
        if bool(row["counters"]) is (row["digest"] is None):
            raise GateError(f"row {name!r} has a digest without counters, or counters without a digest")
        later = {number: _pass(counts, name) for number, counts in row["later"].items()}
        launches = tuple(_launch(launch, name) for launch in row["launches"])
        rows[name] = GatedRow(**{**row, "launches": launches, "later": later})
    return Record(content["made"], rows)


def _pass(content: Any, row: str) -> PassCounts:
    _exactly(content, PASS, f"a later pass of {row!r}")
    return PassCounts(**content)


def _launch(content: Any, row: str) -> Launch:
    _exactly(content, LAUNCH, f"a launch of {row!r}")
    times = {}
    for figure, values in content["times"].items():
        _exactly(values, TIMES, f"{figure} of a launch of {row!r}")
        relative = values["relative"]
        times[figure] = FigureTimes(tuple(values["seconds"]), None if relative is None else tuple(relative))
    counts = content["steps"]
    if counts is not None:
        _exactly(counts, COUNTS, f"steps of a launch of {row!r}")
        counts = StepCounts(tuple(counts["per_token"]), counts["text"])
    return Launch(times, content["parts"], content["tau"], counts)


def _exactly(got: Any, checks: Mapping[str, Check], owner: str) -> None:
    if not isinstance(got, dict) or got.keys() != checks.keys():
        names = sorted(got) if isinstance(got, dict) else type(got).__name__
        raise GateError(f"{owner} has {names}, expected exactly {sorted(checks)}")
    for key, valid in checks.items():
        if not valid(got[key]):
            raise GateError(f"{owner} has a {key} that cannot be: {got[key]!r:.80}")
