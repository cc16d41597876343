"""Virtual environments of engines, from the package index: each hindrance is handled or refused in a line."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

from benchsuite.engines.pins import EnginePins
from benchsuite.machine.files import strict_json, write_file
from specdec.errors import SpecdecError

MARK = "specdec-engine.json"
"""The file of an environment that says of which pins it is, and whether it is whole."""

OWN = "specdec-bench"

Command = Callable[[Sequence[str]], str]
"""Runs a command to its end and returns what it printed; SpecdecError, with its last lines, if it fails."""


def run_quietly(command: Sequence[str]) -> str:
    """Run a command and return what it printed; SpecdecError with the end of that if it fails or cannot be run."""
    # An environment is alone: what this process has on its path, or a pip that runs it, is not seen in it.
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, env=outside, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SpecdecError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said[-3:]
        raise SpecdecError(f"{' '.join(command[:4])} … ended with {done.returncode}: {' '.join(errors)[:600]}")
    return done.stdout


def set_up_engines(
    engines: Sequence[EnginePins], into: Path, say: Callable[[str], None], run: Command = run_quietly
) -> list[str]:
    """Set up one engine after the other, each in its folder of ``into``; return the names of those that failed.

    ``say`` gets a line for each step and for each hindrance. A failure is said, and the next engine is set up.
    """
    failed = []
    for engine in engines:
        try:
            set_up(engine, into / engine.name, say, run)
        except (SpecdecError, OSError) as error:
            say(f"{engine.name}: not set up: {error}")
            failed.append(engine.name)
    return failed


def set_up(engine: EnginePins, folder: Path, say: Callable[[str], None], run: Command = run_quietly) -> None:
    """Make the environment of an engine in ``folder``, which is left as it is if it is whole and of these pins.

    Raises SpecdecError for what cannot be: another machine or Python, too little room, a folder of something else, a
    package that the index lacks, an engine that cannot be imported at the end.
    """
    state = _state(folder)
    if state == {"digest": engine.digest, "whole": True}:
        say(f"{engine.name}: is set up in {folder}")
        return
    if state is None and folder.exists() and any(folder.iterdir()):
        raise SpecdecError(f"{folder} holds something that engines set-up has not made; name another with --into")
    if reason := hindered_by(engine, folder):
        raise SpecdecError(reason)
    shutil.rmtree(folder, ignore_errors=True)  # of other pins, or not whole: pip would mix the two
    folder.mkdir(parents=True)
    _mark(folder, engine, whole=False)
    say(f"{engine.name}: {engine.about}, into {folder}: up to {engine.gigabytes:g} GB, some minutes")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    if engine.resolved:
        run([*pip, *engine.resolved])
    run([*pip, "--no-deps", *engine.packages])
    if engine.built:  # what a build runs is looked for in the environment first
        found = f"PATH={folder.absolute() / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        run(["env", found, *pip, "--no-deps", "--no-build-isolation", *engine.built])
    for hindrance in engine.hindrances:
        say(f"{engine.name}: {hindrance}")
    if engine.stub:
        _write_stub(_site_of(folder), *engine.stub)
    if engine.ours:
        _install_ours(pip, _site_of(folder), run)
    run([python, "-c", "".join(f"import {name}\n" for name in engine.imports)])
    _mark(folder, engine, whole=True)
    say(f"{engine.name}: set up")


def hindered_by(engine: EnginePins, folder: Path) -> str:
    """Why an engine cannot be set up with this Python on this machine; empty if it can."""
    machine = f"{sys.platform}-{platform.machine().lower()}"
    if machine not in engine.machines:
        return f"it has wheels for {', '.join(engine.machines)}; this machine is {machine}"
    version = platform.python_version()
    if not SpecifierSet(engine.python).contains(version, prereleases=True):
        return f"its pins are for Python {engine.python}; this one is {version}: run the command with such a Python"
    above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(above).free / 1e9
    if free < engine.gigabytes:
        return f"it takes {engine.gigabytes:g} GB, and {above} has {free:.1f} GB free: name a folder of a larger disk"
    return ""


def ready_folder(engine: EnginePins, into: Path) -> Path:
    """The environment of an engine. SpecdecError if it is not set up."""
    folder = into / engine.name
    state = _state(folder)
    if not state or not state["whole"]:
        raise SpecdecError(
            f"{engine.name} is not set up in {folder}: python -m benchsuite engines set-up {engine.name}, or name the "
            "folder of environments with --into"
        )
    return folder.absolute()


def _state(folder: Path) -> dict[str, object] | None:
    """What an environment's mark says; None for a folder without one."""
    try:
        found: dict[str, object] = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _mark(folder: Path, engine: EnginePins, whole: bool) -> None:
    write_file(folder / MARK, strict_json({"digest": engine.digest, "whole": whole}).encode())


def _site_of(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))


def _write_stub(site: Path, name: str, version: str) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def _install_ours(pip: Sequence[str], site: Path, run: Command) -> None:
    """Install specdec-bench as it is here: a checkout stays one, an installed wheel is copied."""
    root = Path(__file__).parents[2]
    if (root / "pyproject.toml").exists():
        run([*pip, "--no-deps", "--editable", str(root)])
        return
    try:
        files = distribution(OWN).files or []
    except PackageNotFoundError:
        raise SpecdecError(f"{OWN} is neither installed nor a checkout; install it with pip") from None
    for file in files:
        if ".." not in file.parts:  # the scripts of an installation lie beside it
            place = site / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), place)
