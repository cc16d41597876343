"""What a lock or a file of requirements pins, package by package, and how a layer of packages is made."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchsuite.gate import environment
from benchsuite.gate.environment import FILES, PinnedLayer, pins
from benchsuite.gate.record import GateError
from benchsuite.machine.provenance import environment as variables_of_git

TRUE, FALSE = "python_version > '3'", "python_version < '3'"


def test_the_files_are_known_in_their_order_with_what_each_says() -> None:
    assert [(name, complete) for name, (_, complete) in FILES.items()] == [
        ("pylock.toml", True),
        ("uv.lock", False),
        ("poetry.lock", False),
        ("requirements.lock", True),
        ("constraints.txt", False),
        ("requirements.txt", True),
    ]


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_read_from_the_top_of_a_checkout(tmp_path: Path, name: str) -> None:
    table = "packages" if name == "pylock.toml" else "package"
    lock = f"{table} = [{{ name = 'A_b', version = '1' }}]"
    (tmp_path / name).write_text(lock if FILES[name][0] is environment._locked else "A_b==1")
    assert pins(tmp_path) == ({"a-b": "1"}, FILES[name][1])


@pytest.mark.parametrize(
    ("package", "taken"),
    [
        ({}, True),
        ({"source": {}}, True),
        ({"source": {"registry": "r"}}, True),
        ({"source": {"registry": "r", "more": 1}}, False),
        *(({"source": {name: "x"}}, False) for name in ("git", "url", "path", "editable", "virtual", "directory")),
        ({"source": {"type": "legacy", "url": "u"}}, True),
        *(({"source": {"type": name}}, False) for name in ("git", "directory", "file", "url")),
        *(({name: {}}, False) for name in ("vcs", "directory", "archive")),
        ({"wheels": [], "index": "i", "sdist": {}}, True),
        ({"source": {"registry": "r"}, "vcs": {}}, False),
    ],
)
def test_a_package_is_of_an_index_unless_it_says_another_source(package: dict[str, Any], taken: bool) -> None:
    assert environment._from_index(package) is taken


@pytest.mark.parametrize(
    ("package", "applies"),
    [
        ({}, True),
        *(({name: ""}, True) for name in ("marker", "markers", "resolution-markers")),
        *(
            ({name: given}, holds)
            for name in ("marker", "markers", "resolution-markers")
            for given, holds in ((TRUE, True), (FALSE, False))
        ),
        ({"resolution-markers": []}, True),
        ({"resolution-markers": [FALSE, TRUE]}, True),
        ({"resolution-markers": [FALSE, FALSE]}, False),
        ({"markers": {"main": FALSE, "dev": TRUE}}, True),
        ({"markers": {"main": FALSE}}, False),
        ({"markers": "extra == 'x'"}, False),
        ({"markers": "extra != 'x'"}, True),
        ({"marker": "'x' in extras"}, False),
        ({"marker": "'x' not in dependency_groups"}, True),
        ({"marker": FALSE, "resolution-markers": [TRUE]}, False),
    ],
)
def test_a_package_is_for_this_platform_where_one_of_its_markers_holds(package: dict[str, Any], applies: bool) -> None:
    assert environment._applies(package) is applies


def _no_file(name: str) -> str | None:
    return None


def test_a_lock_gives_packages_with_a_version_of_an_index_for_this_platform() -> None:
    text = f"""
        [[package]]
        name = "a"
        version = "1"
        [[package]]
        name = "without"
        [[package]]
        name = "there"
        version = "2"
        directory = {{ path = "." }}
        [[package]]
        name = "elsewhere"
        version = "3"
        marker = "{FALSE}"
        [[package]]
        name = "b"
        version = "4"
        marker = "{TRUE}"
    """
    assert list(environment._locked(text, "uv.lock", _no_file)) == [("a", "1"), ("b", "4")]
    both = text + "[[packages]]\nname = 'c'\nversion = '5'\n"
    assert list(environment._locked(both, "pylock.toml", _no_file)) == [("c", "5")]
    assert list(environment._locked("a = 1", "uv.lock", _no_file)) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a==1", [("a", "1")]),
        ("a == 1.0", [("a", "1.0")]),
        ("a==1 # why\n#b==2\nc==3#4", [("a", "1")]),
        (
            "a==1 --hash=sha256:0\nb==2 \\\n  --hash=sha256:0 \\\n  --hash=sha256:1\nc==3",
            [("a", "1"), ("b", "2"), ("c", "3")],
        ),
        ("a==1.*\nb>=1\nc===1\nd!=1\ne\nf~=1.0\ng==2", [("g", "2")]),
        ("a>=0,==1", [("a", "1")]),
        (f"a==1; {TRUE}\nb==1; {FALSE}\nc; {TRUE}", [("a", "1")]),
        ("-i there\n--index-url there\n-e .\n./a.whl\na @ https://a\nb==1", [("b", "1")]),
        ("-r more.txt\na==1", [("more", "9"), ("a", "1")]),
        *((f"{word}more.txt\na==1", [("more", "9"), ("a", "1")]) for word in ("-r", "-c ", "-c", "--requirement ")),
        *((f"{word}more.txt", [("more", "9")]) for word in ("--requirement=", "--constraint ", "--constraint=")),
    ],
)
def test_lines_of_requirements_pin_where_they_say_one_exact_version(text: str, found: list[tuple[str, str]]) -> None:
    read = {"folder/more.txt": "more==9"}.get
    assert list(environment._required(text, "folder/requirements.txt", read)) == found


def test_an_included_file_that_is_not_there_is_told() -> None:
    with pytest.raises(GateError) as refused:
        list(environment._required("a==1\n-r ../x/no.txt", "folder/requirements.txt", _no_file))
    assert str(refused.value) == "folder/requirements.txt includes ../x/no.txt, which is not in the checkout"


@pytest.mark.parametrize(
    ("commit", "which"), [(None, "this checkout ({top})"), ("0123456789abcdef", "the base (0123456789ab)")]
)
def test_a_checkout_without_pins_is_told_apart_from_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None, which: str
) -> None:
    texts: dict[str, str] = {}
    monkeypatch.setattr(environment, "git", lambda top, *words: texts.get(words[1].partition(":")[2]))
    which = which.format(top=tmp_path)

    def said(**given: str) -> str:
        texts.clear()
        for name, text in given.items():
            texts[name.replace("_", ".")] = text
            (tmp_path / name.replace("_", ".")).write_text(text)
        with pytest.raises(GateError) as refused:
            pins(tmp_path, commit)
        return str(refused.value)

    assert said() == (
        f"{which} pins no dependencies: --gate-environment=own looks for {', '.join(FILES)} at its top; add one, or "
        "gate with --gate-environment=shared"
    )
    assert said(requirements_txt="a==1\nb==1\nA==2\nB==2\nc==1\nC==1") == (
        f"requirements.txt of {which} pins several versions of a, b for this platform"
    )
    assert said(requirements_txt="a>=1") == (
        f"requirements.txt of {which} pins no version; expected lines name==version, or packages of a lock"
    )
    assert said(uv_lock="package = [{ version = '1' }]") == f"uv.lock of {which} cannot be read: KeyError('name')"


def test_a_file_of_a_checkout_is_read_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes("# é\na==1\n".encode())
    assert pins(tmp_path) == ({"a": "1"}, True)
    (tmp_path / "requirements.txt").write_bytes(b"# \xe9\na==1\n")
    with pytest.raises(GateError, match=re.escape(f"requirements.txt of this checkout ({tmp_path}) cannot be read")):
        pins(tmp_path)


@pytest.fixture
def three_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of three packages."""
    here = {"same": "1.0", "local": "2.0+cpu", "early": "3.0rc1", "specdec-bench": "0.1"}

    def version(name: str) -> str:
        if name not in here:
            raise metadata.PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.usefixtures("three_packages")
def test_what_differs_is_what_this_environment_has_not() -> None:
    pinned = {"specdec-bench": "9", "same": "1", "local": "2.0", "early": "3.0rc1", "lacks": "4"}
    assert environment._differing(pinned, complete=True) == {"lacks": "4"}
    assert environment._differing(pinned, complete=False) == {}
    other = {"same": "1.1", "specdec-bench": "9", "local": "2.0+gpu", "early": "3.0", "lacks": "4"}
    assert environment._differing(other, complete=True) == {name: other[name] for name in other if name[:2] != "sp"}
    assert environment._differing(other, complete=False) == {"same": "1.1", "local": "2.0+gpu", "early": "3.0"}
    with pytest.raises(GateError) as refused:
        environment._differing({"same": "x y"}, complete=True)
    assert str(refused.value) == "the pin same==x y is not a version"


class _Pip:
    """What pip is asked for, in place of installing it."""

    def __init__(self, code: int = 0, said: str = "", more: str = "") -> None:
        self.asked: list[tuple[list[str], Path, Any]] = []
        self.answer = code, said, more
        self.faster: Path | None = None

    def __call__(self, command: list[str], folder: Path, given: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append((command, folder, given))
        assert folder.is_dir()
        target = Path(command[command.index("--target") + 1])
        target.mkdir()
        (target / "made.py").write_text("ours")
        if self.faster:
            self.faster.mkdir()
            (self.faster / "made.py").write_text("theirs")
        code, said, more = self.answer
        return subprocess.CompletedProcess(command, code, said, more)


@pytest.fixture
def layer_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of layers, which is not there yet."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "a" / "cache"))
    return tmp_path / "a" / "cache" / "gate-layers"


def test_a_layer_is_installed_beside_its_place_and_once_for_the_same_packages(
    layer_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = _Pip()
    monkeypatch.setattr(environment, "run_group", pip)
    assert environment._layer({}) == PinnedLayer({}, None)
    assert str(PinnedLayer()) == "as installed"
    assert not layer_root.exists()
    first = environment._layer({"b": "2", "a": "1"})
    [(command, folder, given)] = pip.asked
    assert command == [
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check"),
        *("--target", str(folder / "layer"), "a==1", "b==2"),
    ]
    assert (folder.parent, folder.name.startswith(".made-"), given) == (layer_root, True, variables_of_git())
    assert (first.packages, str(first)) == ({"b": "2", "a": "1"}, "a 1, b 2")
    assert first.folder is not None
    assert (first.folder.parent, re.fullmatch("[0-9a-f]{16}", first.folder.name) is not None) == (layer_root, True)
    assert (first.folder / "made.py").read_text() == "ours"
    assert environment._layer({"a": "1", "b": "2"}) == first
    other = environment._layer({"a": "1"})
    assert sorted(layer_root.iterdir()) == sorted(one.folder for one in (first, other) if one.folder)
    assert len(pip.asked) == 2


def test_a_layer_that_another_process_made_meanwhile_is_taken(
    layer_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = _Pip()
    monkeypatch.setattr(environment, "run_group", pip)
    made = environment._layer({"a": "1"}).folder
    assert made is not None
    (made / "made.py").unlink()
    made.rmdir()
    pip.faster = made
    assert environment._layer({"a": "1"}) == PinnedLayer({"a": "1"}, made)
    assert (made / "made.py").read_text() == "theirs"
    assert [*layer_root.iterdir()] == [made]


def test_what_pip_says_last_is_told_and_nothing_is_left(layer_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = "".join(f"out {n}\n" for n in range(9)), "".join(f"error {n}\n" for n in range(10)) + "\n\n"
    monkeypatch.setattr(environment, "run_group", _Pip(1, out, error))
    with pytest.raises(GateError) as refused:
        environment._layer({"b": "2", "a": "1"})
    last = [*(f"out {n}" for n in range(4, 9)), *(f"error {n}" for n in range(10))]
    assert str(refused.value) == "\n".join(["pip could not install a==1, b==2; its last lines:", *last])
    assert [*layer_root.iterdir()] == []


def test_a_folder_where_no_layer_can_be_made_is_told(layer_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer_root.parent.mkdir(parents=True)
    layer_root.write_text("")
    monkeypatch.setattr(environment, "run_group", _Pip())
    with pytest.raises(GateError) as refused:
        environment._layer({"a": "1"})
    assert str(refused.value) == (
        f"a layer of packages cannot be made in {layer_root}: [Errno 17] File exists: '{layer_root}'; set SPECDEC_CACHE"
    )
