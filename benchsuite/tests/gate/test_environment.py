"""Each side with the dependencies that it pins: what is read, what is installed, what is measured."""

from __future__ import annotations

import zipfile
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest

from benchsuite.gate import environment
from benchsuite.gate.environment import layers, pins
from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import GatedRow, GateError, Record
from benchsuite.gate.rules import Rules
from benchsuite.gate.trial import Trial
from benchsuite.gate.verdict import GateVerdict
from benchsuite.tests.gate_rig import FAILED, OK, USAGE, Done, Suite, refused, with_path

SECONDS = {"1.0": 1.0, "2.0": 1.06}
"""The versions of the package slowdep, and how long its work takes."""


def _wheels(folder: Path) -> None:
    """Write a wheel of each version of slowdep."""
    for version, seconds in SECONDS.items():
        info = f"slowdep-{version}.dist-info"
        with zipfile.ZipFile(folder / f"slowdep-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("slowdep.py", f"SECONDS = {seconds}\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: slowdep\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            names = ("slowdep.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")
            wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))


@pytest.fixture
def index(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder where pip finds packages; layers go below ``tmp_path``."""
    folder = tmp_path_factory.mktemp("index")
    _wheels(folder)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return folder


def _pin(suite: Suite, version: str) -> None:
    (suite.folder / "requirements.txt").write_text(f"slowdep=={version}\n")


@pytest.mark.slow
def test_a_dependency_that_got_slower_is_found_if_each_side_has_its_own(
    theirs: Suite, index: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")  # what is installed, for both sides
    with zipfile.ZipFile(index / "slowdep-2.0-py3-none-any.whl") as wheel:
        wheel.extractall(site)
    file = theirs.folder / "test_theirs.py"
    file.write_text("import slowdep\n" + file.read_text().replace("now += 1.0", "now += slowdep.SECONDS"))
    _pin(theirs, "1.0")
    theirs.commit()
    _pin(theirs, "2.0")

    def gated(*options: str) -> Done:
        live = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2")
        return theirs.run(*live, *options, PYTHONPATH=with_path(site))

    shared = gated()
    refused(shared, OK, "PASS", "+0.0%")
    assert "environment of" not in shared.stdout
    own = gated("--gate-environment=own")
    notes = ("environment of the base: slowdep 1.0", "environment of this checkout: as installed")
    refused(own, FAILED, "REGRESSED", "+6.0% seconds a call", *notes)


@pytest.mark.slow
def test_what_cannot_be_installed_or_is_not_pinned_is_refused_before_anything_is_measured(
    suite: Suite, index: Path
) -> None:
    own = ("--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2", "--gate-environment=own")
    suite.write(body="raise AssertionError('measured')")
    _pin(suite, "1.0")
    nothing = suite.run(*own)
    refused(nothing, USAGE, "the base (", "pins no dependencies", "pylock.toml, uv.lock", "--gate-environment=shared")
    suite.commit()
    (suite.folder / "requirements.txt").write_text("slowdep>=1\n")
    loose = suite.run(*own)
    refused(loose, USAGE, "requirements.txt of this checkout (", "pins no version", "name==version")
    _pin(suite, "3.0")
    unknown = suite.run(*own)
    refused(unknown, USAGE, "pip could not install slowdep==3.0", "No matching distribution found for slowdep==3.0")
    for done in (nothing, loose, unknown):
        assert "measured" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gate=fail", "--gate-against=gate.json", "--gate-on-missing=save"), "name it with --gate-against REV"),
        (("--gate=fail", "--gate-self-test"), "name it with --gate-against REV"),
        (("--gate-save=gate.json",), "--gate-environment without --gate would only save"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_own_dependencies_are_for_revisions(suite: Suite, options: tuple[str, ...], message: str) -> None:
    refused(suite.run(*options, "--gate-environment=own"), USAGE, message)


class _Counting(Launcher):
    """A launcher whose launches count 5 forwards of the base and 6 of this checkout."""

    def measure(self, checkout: Path | None = None, plant: str = "") -> Record:
        return _record(5 if checkout else 6)


def _record(forwards: int) -> Record:
    return Record({}, {"row": GatedRow(digest="d", plain_digest="p", counters={"target_forwards": forwards})})


@pytest.mark.parametrize(("own", "verdict"), [(False, GateVerdict.PASS), (True, GateVerdict.REGRESSED)])
def test_counters_too_come_from_a_launch_with_the_sides_own_dependencies(
    theirs: Suite, own: bool, verdict: GateVerdict
) -> None:
    given = {one.name: None for one in fields(Rules)} | {"base": "HEAD", "own_environment": own}
    measured_here = _record(5)
    launcher = _Counting([], theirs.folder, 1)
    trial = Trial(Rules(**given), (0,), launcher, measured_here, {"row": None}, None, print)  # type: ignore[arg-type]
    assert [one.verdict for one in trial.findings() if one.row == "row"] == [verdict]


@pytest.mark.slow
def test_a_layer_has_what_differs_and_is_made_once(theirs: Suite, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version("pytest")
    (theirs.folder / "requirements.txt").write_text(f"pytest=={installed}\nSlowDep==1.0\nspecdec-bench==0.0.1\n")
    theirs.commit()
    base, head = layers(theirs.folder, "HEAD")
    assert base == head
    assert str(base) == "slowdep 1.0"
    assert base.folder is not None
    assert base.folder.parent == theirs.folder / "cache" / "gate-layers"
    assert (base.folder / "slowdep.py").read_text() == "SECONDS = 1.0\n"
    assert list(base.folder.parent.iterdir()) == [base.folder], "something unfinished was left"
    monkeypatch.setattr(environment, "run_group", lambda *_: pytest.fail("it was installed again"))
    assert layers(theirs.folder, "HEAD") == (base, head)


def test_a_lock_of_every_platform_installs_nothing_that_is_not_here(theirs: Suite, index: Path) -> None:
    (theirs.folder / "uv.lock").write_text('[[package]]\nname = "slowdep"\nversion = "1.0"\n')
    theirs.commit()
    assert [str(layer) for layer in layers(theirs.folder, "HEAD")] == ["as installed"] * 2


def test_an_interrupted_install_leaves_no_layer(theirs: Suite, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(command: list[str], *_: object) -> None:
        Path(command[command.index("--target") + 1]).mkdir()
        raise KeyboardInterrupt

    _pin(theirs, "1.0")
    theirs.commit()
    monkeypatch.setattr(environment, "run_group", half)
    with pytest.raises(KeyboardInterrupt):
        layers(theirs.folder, "HEAD")
    assert list((theirs.folder / "cache" / "gate-layers").iterdir()) == []


TWO = {"a": "1.0", "b-c": "2.0"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "requirements.txt",
            "# pins\na==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01  # why\nB.c == 2.0\nd>=3\n",
        ),
        (
            "constraints.txt",
            "-i https://index\n-e .\na==1.0; python_version > '3'\na==0.9; python_version < '3'\nb_c==2.0",
        ),
        ("requirements.lock", "a[extra]==1.0\nb-c==2.0\nd==1.*\nd @ https://d\n./wheels/d.whl\n"),
        (
            "uv.lock",
            """
            package = [
                { name = "a", version = "1.0", source = { registry = "https://pypi.org/simple" } },
                { name = "b-c", version = "2.0", resolution-markers = ["python_version > '3'", "os_name == 'x'"] },
                { name = "b-c", version = "1.0", resolution-markers = ["python_version < '3'"] },
                { name = "itself", version = "0.1", source = { editable = "." } },
                { name = "theirs", version = "0.1", source = { git = "https://theirs" } },
            ]
            """,
        ),
        (
            "poetry.lock",
            """
            package = [
                { name = "a", version = "1.0", markers = "python_version > '3' and extra != 'x'" },
                { name = "B_c", version = "2.0", source = { type = "legacy", url = "https://index" } },
                { name = "d", version = "2.0", markers = { main = "python_version < '3'", dev = "extra == 'x'" } },
                { name = "itself", version = "0.1", source = { type = "directory", url = "." } },
            ]
            """,
        ),
        (
            "pylock.toml",
            """
            packages = [
                { name = "a", version = "1.0", marker = "python_version > '3'" },
                { name = "b-c", version = "2.0" },
                { name = "d", version = "2.0", marker = "'dev' in dependency_groups" },
                { name = "itself", version = "0.1", directory = { path = "." } },
            ]
            """,
        ),
    ],
    ids=lambda value: value if "\n" not in value else "",
)
def test_exact_versions_of_packages_of_an_index_are_read_from(theirs: Suite, name: str, text: str) -> None:
    (theirs.folder / name).write_text(text)
    theirs.commit()
    found, _ = pins(theirs.folder, "HEAD")
    assert found == pins(theirs.folder)[0] == TWO


def test_the_first_file_counts_and_included_files_are_read(theirs: Suite) -> None:
    (theirs.folder / "more").mkdir()
    (theirs.folder / "requirements.txt").write_text("-r more/base.txt\na==1.0\n")
    (theirs.folder / "more" / "base.txt").write_text("-c also.txt\n")
    (theirs.folder / "more" / "also.txt").write_text("b-c==2.0\n")
    theirs.commit()
    assert pins(theirs.folder, "HEAD") == pins(theirs.folder) == (TWO, True)
    (theirs.folder / "uv.lock").write_text('package = [{ name = "a", version = "3.0" }]')
    assert pins(theirs.folder) == ({"a": "3.0"}, False)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("uv.lock", "package = [", "uv.lock of this checkout .* cannot be read"),
        (
            "uv.lock",
            "package = [{ name = 'a', version = '1' }, { name = 'A', version = '2' }]",
            "several versions of a",
        ),
        ("requirements.txt", "-r gone.txt", "includes gone.txt, which is not in the checkout"),
        ("requirements.txt", "a>=1", "pins no version; expected lines name==version"),
        (
            "setup.py",
            "",
            "looks for pylock.toml, uv.lock, poetry.lock, requirements.lock, constraints.txt, requirements",
        ),
    ],
)
def test_pins_that_cannot_be_read_are_told(theirs: Suite, name: str, text: str, message: str) -> None:
    (theirs.folder / name).write_text(text)
    with pytest.raises(GateError, match=message):
        pins(theirs.folder)
