"""The name of a compiled library, and the log of a build of which several parts failed; no compiler runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from specdec_kernels import build

COMMAND = ("cc", "-O9", "it's")


@pytest.fixture
def told_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run; version 7; files whose name begins with ``bad`` are not compiled."""
    sources, ran = tmp_path / "csrc", list[list[str]]()
    sources.mkdir()
    for name, text in (("b.toy", "two"), ("a.toy", "one"), ("z.h", "four"), ("c.h", "three"), ("d.other", "none")):
        (sources / name).write_text(text)

    def run(command: Sequence[str]) -> CompletedProcess[str]:
        ran.append([*command])
        bad = any(Path(word).name.startswith("bad") and word.endswith(".toy") for word in command)
        if "-shared" in command:
            Path(command[-1]).write_text("whole")
        return CompletedProcess([*command], int(bad), "7", f"error in {Path(command[-3]).name}" if bad else "")

    monkeypatch.setattr(build, "_run", run)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "ctypes", SimpleNamespace(CDLL=str))
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return ran


def test_a_librarys_name_is_16_digits_of_the_hash_of_all_that_it_is_made_of(
    told_compiler: list[list[str]], tmp_path: Path
) -> None:
    path: str = build.library.__wrapped__("toys", COMMAND, ".toy")  # type: ignore[assignment]
    parts = "('cc', '-O9', \"it's\", '7')" + "a.toyone" + "b.toytwo" + "c.hthree" + "z.hfour"
    digest = hashlib.sha256(parts.encode()).hexdigest()
    assert Path(path) == tmp_path / "cache" / "kernels" / f"toys-{digest[:16]}.so"
    assert told_compiler[0] == ["cc", "--version"]
    assert [command[-4:-1:2] for command in sorted(told_compiler[1:3])] == [["-c", "-o"]] * 2
    assert len(told_compiler) == 4
    other: str = build.library.__wrapped__("more", COMMAND, ".toy")  # type: ignore[assignment]
    assert Path(other) == Path(path).with_name(f"more-{digest[:16]}.so"), "the folder is there already"


def test_a_log_has_every_command_that_failed_and_what_it_said(told_compiler: list[list[str]]) -> None:
    for name in ("bad1.toy", "bad2.toy"):
        (build.SOURCES / name).write_text("")
    with pytest.raises(build.BuildError) as failed:
        build.library.__wrapped__("toys", COMMAND, ".toy")
    words = str(failed.value).removesuffix(")").split("(all of it: ")
    assert words[0] == "compiling the toys kernels failed: error in bad1.toy "
    commands = [" ".join(command) for command in told_compiler if Path(command[-1]).name.startswith("bad")]
    one, two = sorted(commands)
    assert Path(words[1]).read_text() == f"{one}\nerror in bad1.toy\n{two}\nerror in bad2.toy"
    assert not any("-shared" in command for command in told_compiler)
