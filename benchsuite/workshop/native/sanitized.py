"""The C++ under AddressSanitizer and UndefinedBehaviorSanitizer: ``python -m benchsuite.workshop.native.sanitized``.

It first plants faults in copies of the sources and fails unless each is found; then every case of every C++ op runs at
each level of this processor, on one thread and on three. A process of its own runs each, with the sanitizer's library
loaded before everything else, so that torch's tensors have its red zones. Needs gcc's or clang's sanitizers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import CASES, every_tail
from specdec.ops import Ops
from specdec_kernels import build, cpu
from specdec_kernels.reference import Reference

FLAGS = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

# Python leaks by design, and torch frees with other functions than it allocates with.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@dataclass(frozen=True)
class Planted:
    """A fault: in ``file``, ``new`` replaces ``old``, which occurs once; the sanitizers' report holds ``sign``."""

    sign: str
    op: str
    file: str
    old: str
    new: str

    def into(self, folder: Path) -> None:
        """Copy the op's sources into a folder, with the fault."""
        for source in (*build.SOURCES.glob("*.h"), build.SOURCES / "decoder.cpp", build.SOURCES / "team.cpp"):
            shutil.copy(source, folder)
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.file} holds {self.old!r} {text.count(self.old)} times, expected once"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


PLANTED = (
    Planted(
        "heap-buffer-overflow",
        "silu_mul",
        "parts.h",
        "for (; i < size; i++) {\n        const float x",
        "for (; i <= size; i++) {\n        const float x",
    ),
    Planted(
        "heap-buffer-overflow",
        "rms_norm",
        "parts.h",
        "for (long j = i; j < size; j++) total",
        "for (long j = i; j <= size; j++) total",
    ),
    Planted(
        "signed integer overflow",
        "rms_norm",
        "parts.h",
        "long i = 0;\n    for (; i + LANES <= size; i += LANES) squares",
        # The sum is asked for, because gcc leaves out one that nobody reads, and its check with it.
        "long i = size + __LONG_MAX__ == 0;\n    for (; i + LANES <= size; i += LANES) squares",
    ),
)
"""A write and a read one lane past the end, and undefined behaviour that changes no result."""


def _find(planted: Planted) -> None:
    """Run one op with a fault: in the process in which the sanitizers are to find it."""
    with tempfile.TemporaryDirectory() as folder:
        planted.into(Path(folder))
        command = (cpu.cpu_compiler() or "", *cpu.FLAGS, *FLAGS)
        with patch.object(build, "SOURCES", Path(folder)):
            library = build.library("planted", command, ".cpp")
    function = getattr(library, f"specdec_{planted.op}")
    function.argtypes, function.restype = cpu.SIGNATURES[planted.op], None
    backend = object.__new__(cpu.Cpu)
    backend._lib = library
    x = torch.randn(3, 33)
    if planted.op == "silu_mul":
        backend.silu_mul(x, x.clone())
    else:
        backend.rms_norm(x, torch.ones(33), 1e-5, 0.0)


def _run(level: str) -> list[str]:
    """Run every case of every C++ op at a level; return what disagrees with the reference."""
    with patch.object(cpu, "load_cpu_library", partial(cpu.load_cpu_library, more=FLAGS)):
        ops = Ops([cpu.Cpu(level), Reference()])
    assert (missing := ops.chain[0].missing()) is None, missing
    found = []
    for threads in (1, 3):
        with patch.object(cpu, "kernel_threads", lambda threads=threads: threads):
            for case in (case for case in (*CASES, *every_tail()) if case.op in cpu.SIGNATURES):
                for dtype in case.dtypes:
                    wrong = disagreement(ops, case, dtype)
                    found += [f"{case.op}, {case.name}, {dtype}, {threads} threads: {wrong}"] if wrong else []
    calls = {op: count for (op, backend), count in ops.ran().items() if backend == "cpu"}
    assert calls.keys() == cpu.SIGNATURES.keys(), f"no case ran {cpu.SIGNATURES.keys() - calls.keys()} in C++"
    said = f"{len(found)} disagree with the reference" if found else "nothing found"
    print(f"{level}: {sum(calls.values())} calls of {len(calls)} ops, {said}", flush=True)
    return found


def sanitised(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this module in a process with the sanitizer's library."""
    compiler = cpu.cpu_compiler()
    assert compiler is not None, "no C++ compiler: looked for CXX, c++, g++ and clang++; install one or set CXX"
    # libstdc++ beside it: the sanitizer looks for its exceptions when it starts, and Python is C.
    asked = ([compiler, f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so"))
    paths = [subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in asked]
    absent = [path for path in paths if not Path(path).is_absolute()]
    assert not absent, f"{compiler} has no {absent}; install its sanitizers (gcc: libasan), or set CXX"
    environment = {**os.environ, **OPTIONS, "LD_PRELOAD": " ".join(paths), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchsuite.workshop.native.sanitized", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def blind() -> list[str]:
    """Return what the sanitizers did not find of what was planted; empty if they see."""
    missed = []
    for index, planted in enumerate(PLANTED):
        done = sanitised("--planted", str(index))
        if not done.returncode or planted.sign not in done.stderr or f"specdec_{planted.op}" not in done.stderr:
            missed.append(f"{planted.sign} in {planted.op}, {planted.file}: {done.stderr[-2000:] or 'not found'}")
    return missed


def _main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if what was planted is found and nothing else is."""
    parser = argparse.ArgumentParser(prog="python -m benchsuite.workshop.native.sanitized", description=__doc__)
    parser.add_argument("--level", choices=cpu.levels(), action="append", help="of the cpu backend; may be repeated")
    parser.add_argument("--planted", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--inside", choices=cpu.levels(), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.planted is not None:
        _find(PLANTED[asked.planted])
        return 0
    if asked.inside is not None:
        found = _run(asked.inside)
        print("\n".join(found), end="")
        return int(bool(found))
    if missed := blind():
        print("The sanitizers do not find what was planted:", *missed, sep="\n")
        return 1
    print(f"{len(PLANTED)} planted faults found", flush=True)
    failed = False
    for level in asked.level or cpu.levels():
        done = sanitised("--inside", level)
        failed |= bool(done.returncode)
        print(done.stdout, done.stderr if done.returncode else "", sep="", end="", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(_main())
