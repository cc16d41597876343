"""Small benchmark suites for tests of the gate: write them, run them, and check the results.

A suite has its own clock, so that "6 % slower" is exact and no test depends on the machine.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from benchsuite.gate.rules import Rules, add_gate_options, parse
from benchsuite.options import Texts
from benchsuite.run.request import texts_of
from benchsuite.tests.rig import Run, without_xdist

TESTS = """
import json, os, pytest
now = 0.0
def clock():
    return now
noise = {noise}
launch = len(os.listdir(os.environ["LAUNCHES"])) if noise else 0
if noise:
    open(os.path.join(os.environ["LAUNCHES"], str(launch)), "w").close()
def work():
    global now
    now += {seconds} * (1 + noise * (-1) ** launch)
{mark}
@pytest.mark.benchmark(timer=clock)
def test_{name}(benchmark):
    {body}
    benchmark.pedantic(work, rounds=5)
"""
STEADY = "noise = 0.0\n"
"""The line of a suite whose launches all say the same."""

OK, FAILED, USAGE = 0, 1, 4
NO_PLUGINS = (
    *("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "benchmark", "-p", "benchsuite.plugin"),
    *("-q", "--benchmark-quiet"),
)
"""Options of a run and of its launches; they name the two plugins that it needs, for where no others are loaded."""

Done = subprocess.CompletedProcess[str]

INSIDE = ("--import-mode=importlib", "--capture=sys", "-p", "no:unraisableexception")
"""More options of a run in this process: its modules have no names that clash, its output is a text here, and it does
not have everything collected that this process holds."""


def run_inside(arguments: Sequence[str], folder: Path, variables: Mapping[str, str], written: Path) -> Done:
    """Run pytest in this process, as if it were one of its own: ``arguments`` follow ``python -m pytest``.

    Modules of ``folder`` and of ``written``, where tests write their files, are hidden from it, and those that it
    imports are forgotten: each run finds its own, on its own path, as they then are.
    """
    ours = (str(folder), str(written))
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    hidden = _from_files(ours)
    for name in hidden:
        del sys.modules[name]
    writes, path = sys.dont_write_bytecode, list(sys.path)
    given = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(folder), *given, *(entry for entry in path if not entry.startswith(ours))]
    importlib.invalidate_caches()
    with patch.dict(os.environ, without_xdist(variables), clear=True), redirect_stdout(out), redirect_stderr(err):
        os.chdir(folder)
        sys.dont_write_bytecode = True
        try:
            code = int(pytest.main([*arguments, *INSIDE]))
        finally:
            os.chdir(before)
            sys.dont_write_bytecode, sys.path[:] = writes, path
            for name in _from_files(ours):
                del sys.modules[name]
            sys.modules.update(hidden)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


def _from_files(folders: tuple[str, ...]) -> dict[str, ModuleType]:
    """The imported modules whose files are below ``folders``."""
    every = list(sys.modules.items())
    return {name: module for name, module in every if str(getattr(module, "__file__", "")).startswith(folders)}


@dataclass
class Suite:
    """A folder under git with one benchmark of a given duration."""

    folder: Path
    python: Run

    def write(
        self, seconds: float = 1.0, name: str = "work", noise: float = 0.0, mark: str = "", body: str = "pass"
    ) -> None:
        """Write the benchmark: its duration in seconds, and the relative noise between launches."""
        text = TESTS.format(seconds=seconds, name=name, noise=noise, mark=mark, body=body)
        (self.folder / "test_theirs.py").write_text(text)

    def commit(self) -> None:
        """Commit all files."""
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "a step"]):
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True)

    @staticmethod
    def committed(folder: Path, python: Run) -> Suite:
        """A suite that is written and committed."""
        made = Suite(folder, python)
        made.write()
        made.commit()
        return made

    def run(self, *arguments: str, **variables: str) -> Done:
        """Run pytest; the environment names the folder that counts launches, and has ``variables`` too.

        Other installed plugins are not loaded, neither here nor in its launches: one with all takes half as long again.
        """
        launches = self.folder / "launches"
        launches.mkdir(exist_ok=True)
        few = {"LAUNCHES": str(launches), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return self.python("-m", "pytest", *NO_PLUGINS, *arguments, **few, **variables)

    def theirs(self, *arguments: str) -> Done:
        """Run pytest-benchmark's own gate at 1 %, its smallest threshold."""
        given = ("--benchmark-compare", "--benchmark-compare-fail=mean:1%")
        return self.run("--gate=off", "--benchmark-storage=stored", *given, *arguments)


def save_baselines(suite: Suite, launches: int = 1) -> None:
    """Save a baseline of both gates. The clock is exact, so one launch is copied ``launches`` times."""
    done = suite.run("--gate-save", "gate.json", "--benchmark-storage=stored", "--benchmark-autosave")
    assert done.returncode == OK, done.stdout + done.stderr
    assert "1 launch" in done.stdout
    content = json.loads((suite.folder / "gate.json").read_text())
    for row in content["rows"].values():
        row["launches"] *= launches
    (suite.folder / "gate.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def refused(done: Done, code: int, *texts: str) -> None:
    """Assert that the run ended with ``code`` and that stdout and stderr contain all ``texts``."""
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, output
    for text in texts:
        assert text in output, f"{text!r} is not in: {output}"


def with_path(folder: Path) -> str:
    """Return the text for PYTHONPATH with ``folder`` before what is there."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


GATED = ("--gate=fail", "--gate-against", "gate.json", "--gate-dedicated", "--gate-launches", "5+2")
"""Options that gate times against a file, on a dedicated machine."""

PLAIN_RULES: dict[str, Any] = {
    "mode": "fail",
    "base": None,
    "levels": None,
    "tolerance": 0.03,
    "ttft_tolerance": 0.1,
    "coarse_tolerance": 0.15,
    "acceptance_tolerance": 0.025,
    "alpha": 0.01,
    "launches": (5, 8),
    "launches_given": False,
    "pairs": 10,
    "on_missing": "fail",
    "on_mismatch": "fail",
    "inconclusive": "fail",
    "save": None,
    "anchor": None,
    "order_seed": None,
    "json": None,
    "exports": (),
    "path": None,
    "own_environment": False,
    "update": False,
    "dedicated": False,
    "self_test": False,
}
"""What the gate's options say where none is given, but ``--gate=fail``."""


def ruled(
    folder: Path, *arguments: str, ini: Mapping[str, str] | None = None, inipath: Path | None = None
) -> Rules | None:
    """The rules that pytest's arguments in ``folder`` and the values of an ini file give."""
    defaults = texts_of({}, folder)
    parser = pytest.Parser(_ispytest=True)
    add_gate_options(parser)
    typed = vars(parser.parse_known_args(list(arguments)))
    given = {name.replace("_", "-"): str(text) for name, text in typed.items() if text is not None}
    written = {name.replace("_", "-"): text for name, text in (ini or {}).items()}
    texts = {**defaults.texts, **written, **given}
    return parse(Texts(texts, frozenset(given.keys() - {"gate-plant"}), folder, inipath.parent if inipath else None))
