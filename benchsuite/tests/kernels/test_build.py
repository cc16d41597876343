"""Kernels are compiled once, whole or not at all, and what goes wrong is said; by a compiler that only copies."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec_kernels import build, cpu

COMPILER = """#!/bin/sh
echo "$@" >> {log}
[ "$1" = --version ] && echo 1.0 && exit
for last; do :; done
for word; do case "$word" in *bad.toy) echo "note"; echo "$(cat $word)" >&2; exit 1;; esac; done
echo "$@" > "$last"
"""


@pytest.fixture
def toy_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two sources, a header, a compiler, and a loader that returns the path."""
    sources, made = tmp_path / "csrc", SimpleNamespace(log=tmp_path / "log", compiler=tmp_path / "cc", folder=tmp_path)
    sources.mkdir()
    for name in ("b.toy", "a.toy", "c.h", "d.other"):
        (sources / name).write_text(name)
    made.sources = sources
    made.compiler.write_text(COMPILER.format(log=made.log))
    made.compiler.chmod(0o755)
    made.command = (str(made.compiler), "-O9")
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "ctypes", SimpleNamespace(CDLL=lambda path: path))
    return made


def toy_library(toy_build: SimpleNamespace) -> Any:
    return build.library.__wrapped__("toys", toy_build.command, ".toy")


def compiler_said(toy_build: SimpleNamespace) -> list[str]:
    return [line for line in toy_build.log.read_text().splitlines() if line != "--version"]


def test_each_source_is_compiled_and_all_are_linked_once(
    toy_build: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(toy_library(toy_build))
    assert path.parent == toy_build.folder / "cache" / "kernels"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert re.fullmatch(r"toys-[0-9a-f]{16}\.so", path.name)
    assert capsys.readouterr().err == f"specdec-bench: compiling the toys kernels with {toy_build.compiler}, once\n"
    *each, whole = compiler_said(toy_build)
    assert sorted(line.split()[:3] for line in each) == [
        ["-O9", "-c", str(toy_build.sources / name)] for name in ("a.toy", "b.toy")
    ]
    flag, shared, *objects, to, out = whole.split()
    assert (flag, shared, to, Path(out).name) == ("-O9", "-shared", "-o", path.name)
    assert [Path(name).name for name in objects] == ["a.toy.o", "b.toy.o"]
    assert path.read_text().split() == whole.split()
    assert toy_library(toy_build) == str(path)
    assert len(compiler_said(toy_build)) == 3
    names = {path.name}
    for name in ("c.h", "a.toy"):
        (toy_build.sources / name).write_text("changed")
        names.add(Path(toy_library(toy_build)).name)
    (toy_build.sources / "d.other").write_text("changed")
    toy_build.command = (*toy_build.command, "-g")
    names.add(Path(toy_library(toy_build)).name)
    assert len(names) == 4, "the name follows from the sources, the headers and the command"
    assert len(compiler_said(toy_build)) == 12


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hint\nx: error: no such thing\nmore errors", "x: error: no such thing"),
        ("fatal: no disk", "fatal: no disk"),
        ("it is broken", "no message"),
    ],
)
def test_a_source_that_is_not_compiled_is_told_in_a_line_with_the_log(
    toy_build: SimpleNamespace, text: str, shown: str
) -> None:
    (toy_build.sources / "bad.toy").write_text(text)
    with pytest.raises(build.BuildError) as failed:
        toy_library(toy_build)
    [log] = (toy_build.folder / "cache" / "kernels").iterdir()
    assert log.suffix == ".log"
    assert str(failed.value) == f"compiling the toys kernels failed: {shown} (all of it: {log})"
    written = log.read_text().splitlines()
    assert written[0].startswith(f"{toy_build.compiler} -O9 -c {toy_build.sources / 'bad.toy'} -o ")
    assert written[1:] == text.splitlines()
    assert not any("-shared" in line for line in compiler_said(toy_build))


def test_a_log_has_every_command_that_failed_and_what_it_said(toy_build: SimpleNamespace) -> None:
    for name in ("bad.toy", "more-bad.toy"):
        (toy_build.sources / name).write_text(f"error: {name}")
    with pytest.raises(build.BuildError, match="error: bad.toy"):
        toy_library(toy_build)
    [log] = (toy_build.folder / "cache" / "kernels").iterdir()
    first, said, second, other = filter(None, log.read_text().splitlines())
    assert (said, other) == ("error: bad.toy", "error: more-bad.toy")
    assert [str(toy_build.sources / name) in line for name, line in (("bad.toy", first), ("more-bad.toy", second))]


def test_what_cannot_be_run_written_or_loaded_is_said(
    toy_build: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> None:
        raise OSError("no symbol")

    monkeypatch.setattr(build, "ctypes", SimpleNamespace(CDLL=broken))
    with pytest.raises(build.BuildError) as failed:
        toy_library(toy_build)
    [path] = (toy_build.folder / "cache" / "kernels").iterdir()
    assert str(failed.value) == f"the compiled kernels cannot be loaded: no symbol; delete {path}"
    monkeypatch.setenv("SPECDEC_CACHE", str(toy_build.log))
    with pytest.raises(build.BuildError) as failed:
        toy_library(toy_build)
    assert str(failed.value).startswith(f"the kernels cannot be built in {toy_build.log / 'kernels'}: ")
    assert str(failed.value).endswith("; set SPECDEC_CACHE")
    toy_build.command = (str(toy_build.folder / "none"),)
    with pytest.raises(build.BuildError) as failed:
        toy_library(toy_build)
    assert str(failed.value).startswith(f"{toy_build.folder / 'none'} cannot be run: ")


def test_compiling_is_forbidden_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_FORCE_PY", raising=False)
    assert build.forbidden() is None
    for value in ("", "0"):
        monkeypatch.setenv("SPECDEC_FORCE_PY", value)
        assert build.forbidden() is None
    monkeypatch.setenv("SPECDEC_FORCE_PY", "yes")
    assert build.forbidden() == "SPECDEC_FORCE_PY=yes forbids compiled kernels; unset it to have them"


def test_an_older_torch_names_one_level_and_all_below_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    every = tuple(cpu.LEVELS)
    for named, best in (("AVX512", "avx512"), ("AVX2", "avx2"), ("DEFAULT", "plain")):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda named=named: named)
        assert cpu.levels.__wrapped__() == every[every.index(best) :]
