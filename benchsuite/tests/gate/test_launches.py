"""What a launch is: its command, its environment and its folder; and the worktree that the base's launches run in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchsuite.gate import launcher
from benchsuite.gate.environment import PinnedLayer
from benchsuite.gate.launcher import OTHER, OWN, Launcher, worktree
from benchsuite.gate.record import GateError, Record
from benchsuite.tests.gate_rig import Done


class ToldLaunches:
    """What launches were started with; each ends with ``code``, has ``printed``, and writes ``content``."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], Path, dict[str, str], float]] = []
        self.code, self.printed, self.content = 0, "", ""

    def __call__(self, command: list[str], folder: Path, variables: Mapping[str, str], seconds: float) -> Done:
        self.calls.append((command, folder, dict(variables), seconds))
        [file] = [word.partition("=")[2] for word in command if word.startswith("--gate-save=")]
        Record({"commit": "c"}, {}).save(Path(file))
        if self.content:
            Path(file).write_text(self.content)
        return Done(command, self.code, self.printed, "")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> ToldLaunches:
    """Stands in for pytest."""
    made = ToldLaunches()
    monkeypatch.setattr(launcher, "run_group", made)
    return made


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Path, Path]:
    """A checkout under git with a folder, and another one of it."""
    ours, base = tmp_path / "ours", tmp_path / "base"
    for one in (ours, base):
        (one / "sub").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=ours, check=True)
    return ours, base


@pytest.mark.parametrize("side", ["ours", "base"])
def test_a_launch_runs_each_side_in_its_own_folder_on_its_own_path_with_what_it_pins(
    side: str, started: ToldLaunches, checkouts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, base = checkouts
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    layers = PinnedLayer({"a": "1"}, Path("/layer-of-base")), PinnedLayer({}, Path("/layer-of-ours"))
    made = Launcher(["test_a.py", "-k", "b"], ours / "sub", 7, ("src", "."), ("test_a.py",), layers)
    found = made.measure(None if side == "ours" else base, plant="host=0.5")
    assert found == Record({"commit": "c"}, {})
    [(command, folder, variables, seconds)] = started.calls
    top = ours if side == "ours" else base
    assert folder == top / "sub"
    assert seconds == 3600
    assert command[:6] == [sys.executable, "-m", "pytest", "test_a.py", "-k", "b"]
    after = command[6:]
    assert after[:5] == ["-q", "-p", "no:cacheprovider", "-o", "addopts="]
    given = {"--gate=off", "--gate-pairs=7", "--gate-launches=1", "--gate-plant=host=0.5", "--color=no"}
    assert {word for word in after[5:] if not word.startswith("--gate-save=")} == given
    assert "PYTEST_ADDOPTS" not in variables
    ahead, layer = [str(top / "src"), str(top)], f"/layer-of-{side}"
    assert variables["PYTHONPATH"].split(os.pathsep) == [*ahead, layer, "/inherited"]
    assert variables[OTHER] == ("" if side == "ours" else str(ours))
    assert variables[OWN].split(os.pathsep) == [*ahead, str(top), str(top / "src"), layer]
    assert not Path(next(word for word in command if word.startswith("--gate-save=")).partition("=")[2]).exists()


def test_without_layers_and_an_inherited_path_a_launch_has_its_checkout_alone(
    started: ToldLaunches, checkouts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = checkouts
    monkeypatch.delenv("PYTHONPATH", raising=False)
    Launcher([], ours, 1).measure()
    [(_, folder, variables, _)] = started.calls
    assert folder == ours
    assert variables["PYTHONPATH"] == str(ours)
    assert variables[OWN].split(os.pathsep) == [str(ours), str(ours), str(ours / "src")]


@pytest.mark.parametrize(("given", "side"), [(None, "ours"), (None, "base"), (("lib",), "base")])
def test_a_plugins_own_revision_comes_before_its_installed_copy(
    given: tuple[str, ...] | None,
    side: str,
    started: ToldLaunches,
    checkouts: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The base has the plugin at its top, this checkout in src; lib is on this process's path."""
    ours, base = checkouts
    files = {ours: ("src/plug/__init__.py", "lib/more.py"), base: ("plug.py",)}
    for top, names in files.items():
        for name in names:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).touch()
    subprocess.run(["git", "init", "-q"], cwd=base, check=True)
    info = tmp_path / "site" / "plug-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[specdec]\nplug = plug\n")
    for folder in (info.parent, ours / "lib"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    top = ours if side == "ours" else base
    Launcher([], ours, 1, given).measure(None if side == "ours" else base)
    [(_, _, variables, _)] = started.calls
    metadata, *ahead = variables["PYTHONPATH"].split(os.pathsep)
    found = [top, *([] if side == "base" else [top / "src"]), top / "lib"]
    assert ahead == [str(folder) for folder in (found if given is None else [top / "lib"])]
    assert not Path(metadata).is_relative_to(tmp_path), "it is the launch's own, and gone with it"
    assert not Path(metadata).exists()


def test_a_base_without_benchmarks_has_no_rows_and_this_checkout_without_them_is_an_error(
    started: ToldLaunches, checkouts: tuple[Path, Path]
) -> None:
    ours, base = checkouts
    started.code, started.printed = 4, "ERROR: this run has no benchmarks: select some"
    made = Launcher(["-k", "x"], ours, 1)
    found = made.measure(base)
    assert found.rows == {}
    assert found.made["machine"]
    with pytest.raises(GateError, match="^a launch of this checkout was refused: this run has no benchmarks"):
        made.measure()
    started.code = 1
    with pytest.raises(GateError, match="a launch of the base ended with 1"):
        made.measure(base)


def test_a_record_of_another_format_is_refused_with_whose_it_is(
    started: ToldLaunches, checkouts: tuple[Path, Path]
) -> None:
    ours, base = checkouts
    started.content = '{"format": "specdec-gate", "version": 0}'
    made = Launcher([], ours, 1)
    with pytest.raises(GateError, match="the base's launch was written by another specdec-bench, .*its version is 0"):
        made.measure(base)
    with pytest.raises(GateError, match=r"^the baseline .*launch\.json is corrupt"):
        made.measure()
    (base / "sub").rmdir()
    with pytest.raises(GateError, match="the base has no folder sub: start pytest where both sides have one"):
        Launcher([], ours / "sub", 1).measure(base)


def test_a_launch_that_does_not_end_is_told_with_its_limit(
    checkouts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(command: list[str], folder: Path, variables: object, seconds: float) -> Any:
        raise subprocess.TimeoutExpired(command, seconds)

    monkeypatch.setattr(launcher, "run_group", never)
    with pytest.raises(GateError, match=r"a launch took longer than 3600 s: .* -m pytest test_a\.py"):
        Launcher(["test_a.py"], checkouts[0], 1).measure()


def test_the_base_is_checked_out_beside_and_nothing_of_it_is_left(
    checkouts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = checkouts

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *identity, *words], cwd=ours, check=True, capture_output=True, text=True)
        return done.stdout

    (ours / "file").write_text("before")
    git("add", ".")
    git("commit", "-qm", "a")
    git("worktree", "add", "--detach", str(tmp_path / "gone"))
    (tmp_path / "gone" / ".git").unlink()  # as an interrupted run leaves one, whose folder was removed
    (ours / "file").write_text("now")
    branch = git("rev-parse", "--abbrev-ref", "HEAD").strip()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))  # as in a hook
    with worktree(ours, branch) as checkout:
        assert (checkout / "file").read_text() == "before"
        (checkout / "more").write_text("not tracked")
        (checkout / "file").write_text("changed")
    monkeypatch.delenv("GIT_DIR")
    assert not checkout.parent.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with (
        pytest.raises(GateError, match=r"^git worktree add --detach .*base no-such failed: .*no-such"),
        worktree(ours, "no-such"),
    ):
        pytest.fail("entered")
    assert (ours / "file").read_text() == "now"
