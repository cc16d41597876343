"""The results folder: ``results/<time>-<name>/`` with tables, strict JSON, a report and a manifest."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from benchsuite import tables
from benchsuite.rows import Row

PACKAGES = ("specdec-bench", "torch", "transformers", "pytest", "pytest-benchmark", "numpy", "tokenizers")


def write(
    root: Path, pooled: Sequence[Row], rows: Sequence[Row], card: Sequence[str], seed: int, complete: bool
) -> Path:
    """Write everything that was measured; returns the folder. Raises OSError if it cannot be written.

    ``complete`` goes into the manifest: a run that was stopped still writes what it has.
    """
    commit = _commit()
    targets = "+".join(dict.fromkeys(Path(row.target).name for row in rows))
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{targets}"
    taken = sum(1 for _ in root.glob(f"{name}*"))
    folder = root / (f"{name}-{taken + 1}" if taken else name)
    folder.mkdir(parents=True)
    written = {
        "benchmark.json": strict_json({"rows": [_public(row) for row in rows], "pooled": [_public(r) for r in pooled]}),
        "table.md": _markdown(pooled, rows, card),
        "table.csv": tables.as_csv([*rows, *pooled]),
        "speedup.svg": _template("speedup.svg.j2", bars=_bars(pooled)),
        "report.html": _template(
            "report.html.j2",
            card=[*card, f"made {time.strftime('%Y-%m-%d %H:%M:%S')}, commit {commit or 'unknown'}"],
            bars=_bars(pooled),
            overview=tables.overview(pooled, rows, "html"),
            speed=tables.render(pooled, tables.SPEED, "html"),
            reasons=tables.render(pooled, tables.REASONS, "html"),
            detail=tables.render(rows, (_workload_column(), *tables.SPEED), "html"),
            glossary=_meanings(),
            failures=[row.failure for row in rows if row.failure],
            ties=[tie for row in rows for tie in row.ties],
        ),
    }
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    manifest = {
        "command": ["pytest", *sys.argv[1:]],
        "complete": complete,
        "seed": seed,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit,
        "machine": {"platform": platform.platform(), "python": platform.python_version(), "card": list(card)},
        "versions": {name: version(name) for name in PACKAGES},
        "sha256": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in written.items()},
    }
    (folder / "MANIFEST.json").write_text(strict_json(manifest), encoding="utf-8")
    return folder


def strict_json(value: Any) -> str:
    """JSON that every parser reads: raises ValueError for NaN or infinity rather than writing them."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _public(row: Row) -> dict[str, Any]:
    return {
        "target": row.target,
        **row.info,
        "n": row.n,
        "ratios": row.ratios,
        "seconds": row.seconds,
        "copy_rate": row.text.copy_rate if row.text else None,
        "entropy_bits": row.text.entropy_bits if row.text else None,
        "ties": row.ties,
        "failure": row.failure,
        "steps": row.steps,
    }


def _meanings() -> list[str]:
    return [
        *tables.glossary((*tables.SPEED, *tables.REASONS[1:])).splitlines(),
        "copy rate: share of plain's output that follows its two predecessors as they last did before",
        "entropy, bits: mean entropy of the target's own law at each token of plain's output",
    ]


def _workload_column() -> tables.Column:
    return tables.Column("workload", lambda row: str(row.info["workload"]), "kind of text")


def _markdown(pooled: Sequence[Row], rows: Sequence[Row], card: Sequence[str]) -> str:
    parts = [
        "# Speculative decoding",
        "\n".join(f"- {line}" for line in card),
        "## Speedup over plain by workload",
        tables.overview(pooled, rows, "github"),
        "## Speed",
        tables.render(pooled, tables.SPEED, "github"),
        "## Why",
        tables.render(pooled, tables.REASONS, "github"),
        "## By workload",
        tables.render(rows, (_workload_column(), *tables.SPEED), "github"),
        "## Columns",
        "\n".join(f"- {line}" for line in _meanings()),
    ]
    return "\n\n".join(parts) + "\n"


def _bars(pooled: Sequence[Row]) -> list[dict[str, Any]]:
    shown = [row for row in pooled if row.info["speedup"] is not None]
    longest = max((row.info["speedup_high"] for row in shown), default=1.0)
    return [
        {
            "label": _bar_label(row),
            "speedup": row.info["speedup"],
            "width": 400 * row.info["speedup"] / longest,
            "low": 400 * row.info["speedup_low"] / longest,
            "high": 400 * row.info["speedup_high"] / longest,
            "one": 400 / longest,
        }
        for row in shown
    ]


def _bar_label(row: Row) -> str:
    setting = row.arm.setting
    strategy = f", {row.arm.policy} {row.arm.k}" if row.arm.draft else ""
    batch = f", batch {setting.batch}" if setting.batch > 1 else ""
    return row.arm.label + strategy + batch + (f", T {setting.temperature:g}" if setting.temperature else "")


def _template(name: str, **values: Any) -> str:
    environment = Environment(loader=PackageLoader("benchsuite"), autoescape=True)
    return environment.get_template(name).render(**values)


def _commit() -> str | None:
    """The commit of this project's checkout; None for an installed wheel or where there is no git."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
