"""Sides of a comparison: the rows of a run, read from whatever keeps them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchsuite.gate.record import DECODE, GateError, Record
from benchsuite.machine import provenance
from benchsuite.machine.files import runs
from benchsuite.machine.user_files import UserFileError, user_json
from benchsuite.measure.arms import USUAL
from benchsuite.measure.figures import KEYS
from benchsuite.measure.interval import estimate
from benchsuite.measure.verdict import farthest
from benchsuite.store.journal import Journal
from specdec.errors import SpecdecError

KINDS = "a folder of results, a --benchmark-json file, a --gate-save file, or REV:FILE for a file in a revision of git"


@dataclass(frozen=True)
class Figures:
    """What two runs of one row are compared by.

    ``logs``: for each workload the natural log of each unit's speedup, in the units' order; empty where the source has
    only the speedup and its interval. ``counted``: exact values; ``same``: what must be equal for times to be compared.
    ``noise``: the largest |ln ratio| in the interval of plain decoding against itself, in the same process.
    """

    speedup: float | None
    low: float | None = None
    high: float | None = None
    logs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    counted: Mapping[str, Any] = field(default_factory=dict)
    same: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    failure: str | None = None


@dataclass(frozen=True)
class ComparedSide:
    """One run: its name, where and when it was made, and its rows by their names."""

    name: str
    made: Mapping[str, Any]
    rows: Mapping[str, Figures]

    @property
    def title(self) -> str:
        """The run in a line."""
        commit = str(self.made.get("commit") or "unknown")[:12]
        machine = self.made.get("machine") or {}
        where = machine.get("processor", "an unknown processor") if isinstance(machine, dict) else machine
        return f"{self.name}: commit {commit}, {where}, {self.made.get('time', 'at an unknown time')}"


def read_side(name: str) -> ComparedSide:
    """Read a run. Raises SpecdecError, with what can be named, if there is none of that name."""
    path = Path(name)
    if path.is_dir():
        if not runs(path):
            raise SpecdecError(f"{name} holds no results; expected {KINDS}")
        return _of_folder(name, Journal.load(path))
    if path.is_file():
        return _of_file(name, path)
    revision, colon, file = name.partition(":")
    content = provenance.git(Path.cwd(), "show", f"{revision}:./{file}") if colon else None
    if content is None:
        raise SpecdecError(f"there is no {name}; expected {KINDS}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "content.json"
        copy.write_text(content, encoding="utf-8")
        return _of_file(name, copy)


def _of_folder(name: str, journal: Journal) -> ComparedSide:
    results, rows = journal.measured().results(), {}
    for row in (*results.rows, *results.pooled):
        # The rows over all workloads have none in their setting.
        setting = replace(row.arm.setting, workload=row.arm.setting.workload or "all")
        logs = {workload: [math.log(ratio) for ratio in ratios] for workload, ratios in row.ratios.items()}
        rows[replace(row.arm, setting=setting).id] = row.info, logs, row.failure
    return ComparedSide(name, journal.said, _figures(rows))


SHARED = tuple(name for name in KEYS if name in USUAL)
"""Figures that the rows of one setting share, beside its name, ``setting``."""


def _figures(
    rows: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Sequence[float]], str | None]],
) -> dict[str, Figures]:
    """The figures of rows by their names, each given as its info, its logs and its failure; plain's are left out."""
    plain, noise = dict[str, str](), dict[str, float]()
    for info, _, _ in rows.values():
        setting = info["setting"]
        if info.get("draft") is None:
            plain[setting] = str(info["emitted_digest"])
        if info.get("draft") == "plain again" and info["speedup_low"]:
            noise[setting] = farthest(info["speedup_low"], info["speedup_high"])
    found = {}
    for name, (info, logs, failure) in rows.items():
        setting = info["setting"]
        if info.get("verdict") != "baseline":
            found[name] = Figures(
                info["speedup"],
                info["speedup_low"],
                info["speedup_high"],
                logs,
                {key: info[key] for key in ("tau", "acceptance_rate", "emitted_digest")},
                {key: info[key] for key in ("units", "baseline", *SHARED)} | {"plain's output": plain.get(setting)},
                noise.get(setting, 0.0),
                failure,
            )
    return found


def _of_file(name: str, path: Path) -> ComparedSide:
    try:
        content = user_json(path)
    except UserFileError as error:
        raise SpecdecError(f"{error}; expected {KINDS}") from None
    if isinstance(content, dict) and content.get("format") == "specdec-gate":
        try:
            return _of_baseline(name, Record.load(path))
        except GateError as error:
            raise SpecdecError(f"{name}: {error}") from None
    if isinstance(content, dict) and "benchmarks" in content:
        return _of_benchmarks(name, content)
    raise SpecdecError(f"{name} has neither benchmarks nor a baseline of the gate; expected {KINDS}")


def _of_baseline(name: str, record: Record) -> ComparedSide:
    """A baseline's times are relative to each row's control. A launch is a unit: what shifts launches is seen."""
    rows = {}
    for row, found in record.rows.items():
        relative = [launch.times[DECODE].relative for launch in found.launches if DECODE in launch.times]
        logs = [-fmean(values) for values in relative if values]
        speed = estimate({"": logs}) if logs else None
        rows[row] = Figures(
            speed.ratio if speed else None,
            speed.low if speed else None,
            speed.high if speed else None,
            {},
            {**found.counters, "emitted_digest": found.digest},
            {**found.work, **found.inputs, "control": found.control},
        )
    return ComparedSide(name, record.made, rows)


def _of_benchmarks(name: str, content: Mapping[str, Any]) -> ComparedSide:
    """pytest-benchmark's JSON: our figures are in the extra_info of each benchmark."""
    rows = {}
    for one in content["benchmarks"]:
        info = one.get("extra_info") or {}
        if "speedup" in info:
            if "setting" not in info:
                raise SpecdecError(
                    f"{name} was written by an older specdec-bench: its rows do not name their settings; measure "
                    "again, or name that run's folder of results"
                )
            rows[one["name"].partition("[")[2].removesuffix("]") or one["name"]] = (
                info,
                dict[str, Sequence[float]](),
                None,
            )
    if not rows:
        raise SpecdecError(f"{name} has no benchmark of specdec-bench; run pytest --pyargs benchsuite.test_speculation")
    commit = content.get("commit_info") or {}
    cpu = (content.get("machine_info") or {}).get("cpu") or {}
    made = {
        "commit": commit.get("id"),
        "time": content.get("datetime"),
        "machine": {"processor": cpu.get("brand_raw", "an unknown processor")},
    }
    return ComparedSide(name, made, _figures(rows))
