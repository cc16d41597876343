"""What a figure is filed under: the machine, with the processors that a process may use."""

from __future__ import annotations

import os
import platform
import re
import runpy
import subprocess
import sys
from datetime import datetime, timedelta
from importlib import metadata
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import cpuinfo
import psutil
import pytest
import torch
from packaging.utils import canonicalize_name

from benchsuite.gate.figures import machine
from benchsuite.machine import provenance
from specdec_kernels import cuda


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor")
def test_a_process_that_may_use_one_processor_is_another_machine() -> None:
    allowed = os.sched_getaffinity(0)
    before = machine(None)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine(None)["cores"] == f"1 of {os.cpu_count()} processors" != before["cores"]
        assert provenance.cores_line() == f"1 of {os.cpu_count()} cores"
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine(None) == before


@pytest.mark.parametrize("group", ["", "user.slice/a", "a/0::/b"])
@pytest.mark.parametrize(
    ("quota", "allowed"),
    [("max 100000", 8), ("100000 100000", 1), ("150000 100000", 2), ("10000 100000", 1), ("900000 100000", 8), ("", 8)],
)
def test_a_control_groups_quota_is_what_a_process_may_use(
    quota: str, allowed: int, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / group).mkdir(parents=True, exist_ok=True)
    (tmp_path / group / "cpu.max").write_text(quota)
    (tmp_path / "own").write_text(f"12:cpu:/other\n0::/{group}\n1:name=odd:/more\n")
    places = {"/sys/fs/cgroup": tmp_path, "/proc/self/cgroup": tmp_path / "own"}
    monkeypatch.setattr(provenance, "Path", lambda text: places[text])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8 - process)), raising=False)
    assert provenance.allowed_cores() == allowed
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert provenance.allowed_cores() == allowed
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert provenance.allowed_cores() == 1


@pytest.mark.parametrize(("physical", "said"), [(4, 4), (None, 8)])
def test_a_machine_of_which_all_may_be_used_has_its_cores_and_not_its_threads(
    physical: int | None, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8 if logical else physical)
    monkeypatch.setattr(provenance, "allowed_cores", lambda: 8)
    assert provenance.cores() == said
    assert provenance.cores_line() == "8 cores"
    monkeypatch.setattr(provenance, "allowed_cores", lambda: 1)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert provenance.cores_line() == "1 cores"
    assert provenance.cores() == (physical or 1)


def test_an_origin_has_the_command_the_time_the_commit_and_a_version_of_every_package() -> None:
    found = provenance.origin("abc+")
    assert found.keys() == {"command", "time", "commit", "versions"}
    assert found["commit"] == "abc+"
    assert found["command"] == ["pytest", *sys.argv[1:]]
    then = datetime.strptime(found["time"], "%Y-%m-%dT%H:%M:%S%z")
    assert abs(datetime.now(then.tzinfo) - then) < timedelta(minutes=1)
    versions = dict(found["versions"])
    assert versions.pop("python") == platform.python_version()
    assert {"specdec-bench", "torch", "transformers", "tokenizers", "numpy", "pytest"} < versions.keys()
    for name, said in versions.items():
        assert name == canonicalize_name(name)
        assert said == version(name)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no list of the processor's flags on this system")
def test_the_instruction_sets_of_a_processor_are_among_its_flags() -> None:
    text = Path("/proc/cpuinfo").read_text()
    flags = {flag for line in text.splitlines() if line.startswith(("flags", "Features")) for flag in line.split()}
    found = provenance.vectors()
    assert found == list(dict.fromkeys(found))
    assert {*found} == flags & {"avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve"}
    assert provenance.processor() == provenance.device_name(torch.device("cpu"))
    assert "model name" not in text or f": {provenance.processor()}\n" in text


def test_a_commit_has_a_mark_if_tracked_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.commit(tmp_path) is None
    assert provenance.git(tmp_path / "nowhere", "status") is None
    (tmp_path / "a").write_text("1")
    words = "init -q", "add a", "-c user.name=a -c user.email=a@b commit -qm a"
    for one in words:
        subprocess.run(["git", *one.split()], cwd=tmp_path, check=True)
    head = provenance.commit(tmp_path)
    assert head is not None
    assert head == provenance.git(tmp_path, "rev-parse", "HEAD")
    assert len(head) == 40
    (tmp_path / "b").write_text("not tracked")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert provenance.commit(tmp_path) == head
    assert "GIT_DIR" not in provenance.environment()
    assert provenance.environment()["PATH"] == os.environ["PATH"]
    monkeypatch.setattr(provenance, "Path", lambda file: tmp_path / "of" / "this" / "file")
    changes = [provenance.own_changes()]
    for text in ("2", "3", "2", "1"):
        (tmp_path / "a").write_text(text)
        assert provenance.own_commit() == provenance.commit(tmp_path) == head + "+" * (text != "1")
        changes.append(provenance.own_changes())
    none, two, three, again, back = changes
    assert none is back is None
    assert two == again != three
    assert all(re.fullmatch("[0-9a-f]{12}", str(one)) for one in (two, three))


def test_a_copy_without_a_git_folder_has_the_commit_of_a_variable_and_no_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "Path", lambda file: tmp_path / "a" / "b" / "c")
    for said, found in (("abc", "abc"), ("", None)):
        monkeypatch.setenv("SPECDEC_COMMIT", said)
        assert (provenance.own_commit(), provenance.own_changes()) == (found, None)
    monkeypatch.delenv("SPECDEC_COMMIT")
    assert provenance.own_commit() is None
    monkeypatch.setenv("SPECDEC_COMMIT", "abc")
    (tmp_path / ".git").mkdir()
    assert provenance.own_commit() is None, "a folder of git says it itself, and this one has none"


SMI = """#!/bin/sh
# As nvidia-smi --query-gpu answers, with a field that it does not know refused.
[ "$1" = --id=GPU-12ab ] || exit 6
[ "$3" = --format=csv,noheader,nounits ] || exit 2
answer=
for field in $(echo "${2#--query-gpu=}" | tr , ' '); do
    case "$field" in
        driver_version) answer="$answer, 580.65" ;;
        clocks.sm) answer="$answer, 345" ;;
        clocks.max.sm) answer="$answer, 1980" ;;
        clocks.mem) answer="$answer, 3201" ;;
        power.limit) answer="$answer, 700.00" ;;
        *) echo "Field \"$field\" is not a valid field to query."; exit 2 ;;
    esac
done
echo "${answer#, }"
"""


FAILS = "#!/bin/sh\necho Failed, to, initialize, NVML, .\nexit 9\n"


@pytest.mark.parametrize("program", [SMI, FAILS, None])
def test_a_gpu_is_asked_by_its_uuid_for_its_driver_its_clocks_and_its_limit(
    program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, total_memory=80 * 2**30, uuid="12ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: made if index == 1 else None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    if program:
        (tmp_path / "nvidia-smi").write_text(program)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = provenance.accelerator(1)
    line = provenance.accelerator_line(found)
    assert (found["name"], found["capability"], found["bytes"], found["cuda"]) == (
        "NVIDIA H100",
        "9.0",
        80 * 2**30,
        "13.0",
    )
    assert line.startswith("NVIDIA H100: 80 GiB, compute capability 9.0, driver ")
    clocks = ("580.65", "345 of 1980 MHz", "3201", "700.00")
    known = clocks if program == SMI else ("unknown", "unknown of unknown MHz", "unknown", "unknown")
    for name, value in zip(("driver", "clocks", "memory", "limit"), known, strict=True):
        assert f"{name} {value}" in line
    assert provenance.device_name(torch.device("cuda")) == "NVIDIA H100"


@pytest.mark.parametrize(
    "flags", [[], ["sse", "avx2"], ["sve", "asimd"], ["amx_tile", "avx512_bf16", "avx512f", "avx"]]
)
def test_a_processor_is_told_by_its_brand_and_by_what_it_has_of_the_instruction_sets_that_round_otherwise(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up processor, asked by a module that has asked none yet."""
    said = {"flags": flags, "brand_raw": "A processor"}
    monkeypatch.setattr(cpuinfo, "get_cpu_info", lambda: said)
    monkeypatch.setattr(platform, "processor", lambda: "a family")
    monkeypatch.setattr(platform, "machine", lambda: "an architecture")
    asked = runpy.run_path(str(provenance.__file__))
    known = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")
    assert asked["vectors"]() == [name for name in known if name in flags]
    assert asked["processor"]() == "A processor"
    said.clear()
    asked = runpy.run_path(str(provenance.__file__))
    assert (asked["vectors"](), asked["processor"]()) == ([], "a family")
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert asked["processor"]() == "an architecture"


@pytest.mark.parametrize(
    ("printed", "said"), [("Cuda tools, release 13.0, V13.0.48", "13.0"), ("odd", None), (None, None)]
)
def test_the_release_of_a_cuda_compiler_is_what_it_prints_and_none_without_one(
    printed: str | None, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text(f'#!/bin/sh\n[ "$*" = --version ] && echo "{printed}"\n')
    compiler.chmod(0o755)
    made = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, total_memory=80 * 2**30, uuid="12ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: made)
    monkeypatch.setattr(cuda, "cuda_compiler", lambda: str(compiler) if printed else None)
    assert runpy.run_path(str(provenance.__file__))["accelerator"](0)["nvcc"] == said


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(package: str) -> str:
        if package == "numpy":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(metadata, "version", lacking)
    versions = runpy.run_path(str(provenance.__file__))["origin"](None)["versions"]
    assert (versions["numpy"], versions["torch"]) == (None, "1.0")
