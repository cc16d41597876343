"""Each side with the dependencies that it pins: what is read, what is installed, what is measured."""

from __future__ import annotations

import re
import zipfile
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest

from benchsuite.gate import environment
from benchsuite.gate.environment import PinnedLayer, layers, pins
from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import GatedRow, GateError, Record
from benchsuite.gate.rules import Rules
from benchsuite.gate.trial import Trial
from benchsuite.gate.verdict import GateVerdict
from benchsuite.machine.provenance import git
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


@pytest.mark.parametrize("own", [False, True])
def test_counters_too_come_from_a_launch_with_the_sides_own_dependencies(theirs: Suite, own: bool) -> None:
    given = {one.name: None for one in fields(Rules)} | {"base": "HEAD", "own_environment": own}
    measured_here = _record(5)
    launcher = _Counting([], theirs.folder, 1)
    trial = Trial(Rules(**given), (0,), launcher, measured_here, {"row": None}, None, print)  # type: ignore[arg-type]
    assert [one.verdict for one in trial.findings() if one.row == "row"] == [GateVerdict.REGRESSED]


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


class _Pip:
    """Notes what pip is asked for, and copies a file in place of installing it."""

    def __init__(self) -> None:
        self.wanted: list[list[str]] = []
        self.answer = 0, "", ""

    def __call__(self, command: list[str], folder: Path, given: object) -> Done:
        target = Path(command[command.index("--target") + 1])
        self.wanted.append([word for word in command if "==" in word])
        assert target.parent == folder
        assert {"--no-deps", "--no-input", "--disable-pip-version-check"} < {*command}
        assert (folder.parent.name, folder.name[0]) == ("gate-layers", "."), (
            "beside the others, hidden until it is whole"
        )
        target.mkdir()
        (target / "made.py").write_text("ours")
        return Done(command, *self.answer)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Pip:
    """Pip, for layers below ``tmp_path``."""
    made = _Pip()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "run_group", made)
    return made


def _layer(suite: Suite, text: str, name: str = "requirements.txt") -> PinnedLayer:
    """The layer of a checkout whose base pins the same."""
    (suite.folder / name).write_text(text)
    suite.commit()
    base, head = layers(suite.folder, "HEAD")
    assert base == head
    return head


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("requirements.txt", {"same": "1.1", "local": "2.0+gpu", "early": "3.0", "lacks": "4"}),
        ("constraints.txt", {"same": "1.1", "local": "2.0+gpu", "early": "3.0"}),  # it may name what nobody needs
    ],
)
def test_a_layer_has_the_pins_that_this_environment_does_not_have(
    theirs: Suite, pip: _Pip, monkeypatch: pytest.MonkeyPatch, name: str, differs: dict[str, str]
) -> None:
    here = {"same": "1.0", "local": "2.0+cpu", "early": "3.0rc1", "specdec-bench": "0.1"}

    def version(package: str) -> str:
        if package not in here:
            raise metadata.PackageNotFoundError(package)
        return here[package]

    monkeypatch.setattr(metadata, "version", version)
    equal = _layer(theirs, "specdec-bench==9\nsame==1\nlocal==2.0\nearly==3.0rc1", name)
    assert (equal, str(equal), pip.wanted) == (PinnedLayer(), "as installed", [])
    assert not (theirs.folder / "cache").exists()
    other = "same==1.1\nspecdec-bench==9\nlocal==2.0+gpu\nearly==3.0\nlacks==4"
    assert _layer(theirs, other, name).packages == differs
    assert pip.wanted == [sorted(f"{package}=={pinned}" for package, pinned in differs.items())]


@pytest.mark.slow
def test_a_layer_is_made_once_for_the_same_packages_whoever_makes_it(theirs: Suite, pip: _Pip) -> None:
    first = _layer(theirs, "b==2\na==1")
    assert (pip.wanted, str(first)) == ([["a==1", "b==2"]], "a 1, b 2")
    assert _layer(theirs, "a==1\nb==2") == first
    assert len(pip.wanted) == 1
    other = _layer(theirs, "a==1")
    root = theirs.folder / "cache" / "gate-layers"
    assert {*root.iterdir()} == {first.folder, other.folder}
    assert other.folder is not None
    (other.folder / "made.py").unlink()
    other.folder.rmdir()

    def meanwhile(command: list[str], folder: Path, given: object) -> Done:
        assert other.folder is not None
        other.folder.mkdir()
        (other.folder / "made.py").write_text("theirs")
        return _Pip()(command, folder, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "run_group", meanwhile)
        assert _layer(theirs, "a==1") == other
    assert (other.folder / "made.py").read_text() == "theirs"
    assert {*root.iterdir()} == {first.folder, other.folder}


def test_a_layer_that_cannot_be_made_is_refused_with_what_pip_said_last(theirs: Suite, pip: _Pip) -> None:
    pip.answer = 1, "".join(f"out {n}\n" for n in range(9)), "".join(f"error {n}\n" for n in range(10)) + "\n\n"
    with pytest.raises(GateError) as refused:
        _layer(theirs, "b==2\na==1")
    said, *last = str(refused.value).splitlines()
    assert "a==1, b==2" in said
    assert last == [*(f"out {n}" for n in range(4, 9)), *(f"error {n}" for n in range(10))]
    root = theirs.folder / "cache" / "gate-layers"
    assert [*root.iterdir()] == []
    root.rmdir()
    root.write_text("")
    with pytest.raises(GateError, match="File exists.*set SPECDEC_CACHE"):
        _layer(theirs, "a==1")
    with pytest.raises(GateError, match="same==x y is not a version"):
        _layer(theirs, 'package = [{ name = "same", version = "x y" }]', "uv.lock")


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
                { name = "a", version = "1.0", source = { registry = "https://index.example/simple" } },
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


def test_files_are_looked_for_in_this_order_and_three_say_all_that_is_installed(tmp_path: Path) -> None:
    complete = {"pylock.toml", "requirements.lock", "requirements.txt"}
    names = ("pylock.toml", "uv.lock", "poetry.lock", "requirements.lock", "constraints.txt", "requirements.txt")
    for number, name in enumerate(names):
        table = "packages" if name == "pylock.toml" else "package"
        lock = f"{table} = [{{ name = 'A_b', version = '{number}' }}]"
        (tmp_path / name).write_text(lock if number < 3 else f"A_b=={number}")
    for number, name in enumerate(names):
        assert pins(tmp_path) == ({"a-b": str(number)}, name in complete)
        (tmp_path / name).unlink()


TRUE, FALSE = "python_version > '3'", "python_version < '3'"
MARKERS = ("marker", "markers", "resolution-markers")
LOCKED: list[tuple[str, bool]] = [
    # Of an index, unless it says another source.
    *((text, True) for text in ("", "source = {}", "source = { registry = 'r' }", "wheels = [], index = 'i'")),
    ("source = { type = 'legacy', url = 'u' }", True),
    ("source = { registry = 'r', more = 1 }", False),
    *((f"source = {{ {name} = 'x' }}", False) for name in ("git", "url", "path", "editable", "virtual", "directory")),
    *((f"source = {{ type = '{name}' }}", False) for name in ("git", "directory", "file", "url")),
    *((f"{name} = {{}}", False) for name in ("vcs", "directory", "archive")),
    ("source = { registry = 'r' }, vcs = {}", False),
    # For this platform, where one of its markers holds, without an extra or a group.
    *((f"{name} = ''", True) for name in MARKERS),
    *((f'{name} = "{text}"', text == TRUE) for name in MARKERS for text in (TRUE, FALSE)),
    ("resolution-markers = []", True),
    (f'resolution-markers = ["{FALSE}", "{TRUE}"]', True),
    (f'resolution-markers = ["{FALSE}", "{FALSE}"]', False),
    (f'markers = {{ main = "{FALSE}", dev = "{TRUE}" }}', True),
    (f'markers = {{ main = "{FALSE}" }}', False),
    *((f"markers = \"extra {sign} 'x'\"", sign == "!=") for sign in ("==", "!=")),
    ("marker = \"'x' in extras\"", False),
    ("marker = \"'x' not in dependency_groups\"", True),
    (f'marker = "{FALSE}", resolution-markers = ["{TRUE}"]', False),
]
"""What an entry of a lock says beside its name and version, and whether it counts."""


def test_a_locked_package_counts_if_it_is_of_an_index_and_for_this_platform(tmp_path: Path) -> None:
    entries = [f"{{ name = 'p{n}', version = '1'{', ' * bool(more)}{more} }}" for n, (more, _) in enumerate(LOCKED)]
    (tmp_path / "uv.lock").write_text(f"package = [{{ name = 'without' }}, {', '.join(entries)}]")
    assert pins(tmp_path)[0] == {f"p{n}": "1" for n, (_, counts) in enumerate(LOCKED) if counts}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a == 1.0", {"a": "1.0"}),
        ("a==1 # why\n#b==2\nc==3#4", {"a": "1"}),
        ("a==1 --hash=0\nb==2 \\\n  --hash=0 \\\n  --hash=1\nc==3", {"a": "1", "b": "2", "c": "3"}),
        ("a==1.*\nb>=1\nc===1\nd!=1\ne\nf~=1.0\ng==2", {"g": "2"}),
        ("a>=0,==1", {"a": "1"}),
        (f"a==1; {TRUE}\nb==1; {FALSE}\nc; {TRUE}", {"a": "1"}),
        ("-i there\n--index-url there\n-e .\n./a.whl\na @ https://a\nb==1", {"b": "1"}),
        *((f"{word}more.txt\na==1", {"more": "9", "a": "1"}) for word in ("-r ", "-r", "-c ", "-c", "--requirement ")),
        *((f"{word}more.txt", {"more": "9"}) for word in ("--requirement=", "--constraint ", "--constraint=")),
    ],
)
def test_lines_of_requirements_pin_where_they_say_one_exact_version(
    tmp_path: Path, text: str, found: dict[str, str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more.txt").write_text("more==9")
    (tmp_path / "folder" / "text.txt").write_text(text)
    (tmp_path / "requirements.txt").write_text("sure==0\n-r folder/text.txt")
    assert pins(tmp_path)[0] == {"sure": "0", **found}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("uv.lock", "package = [", "uv.lock of this checkout .* cannot be read"),
        ("uv.lock", "package = [{ version = '1' }]", "uv.lock of this checkout .* cannot be read: KeyError"),
        (
            "requirements.txt",
            "a==1\nb==1\nA==2\nB==2\nc==1\nC==1",
            "several versions of a, b for this platform",
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


def test_a_base_without_pins_is_named_by_its_commit(theirs: Suite) -> None:
    _pin(theirs, "1.0")  # of this checkout alone
    commit = git(theirs.folder, "rev-parse", "HEAD")
    assert commit
    with pytest.raises(GateError, match=re.escape(f"the base ({commit[:12]}) pins no dependencies")):
        pins(theirs.folder, commit)


def test_a_file_of_a_checkout_is_read_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes("# é\na==1\n".encode())
    assert pins(tmp_path) == ({"a": "1"}, True)
    (tmp_path / "requirements.txt").write_bytes(b"# \xe9\na==1\n")
    with pytest.raises(GateError, match=re.escape(f"requirements.txt of this checkout ({tmp_path}) cannot be read")):
        pins(tmp_path)
