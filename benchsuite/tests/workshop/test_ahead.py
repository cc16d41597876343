"""Triton's kernels, compiled for GPUs that are not here, fit into them and are handed what the methods were given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import specdec_kernels
from benchsuite.tests.rig import made_once
from benchsuite.workshop.native.calls import KernelCall
from benchsuite.workshop.native.cubin import CHIPS, Resources
from specdec_kernels.cpu import cpu_compiler

pytestmark = [
    pytest.mark.fake_gpu,
    pytest.mark.skipif(
        find_spec("triton") is None or cpu_compiler() is None,
        reason="compiled ahead of a GPU with triton installed and a C++ compiler for the stub of its driver",
    ),
]

REGISTERS = Path(__file__).parents[3] / "docs" / "results" / "20261126-registers-triton.md"
PAGE = REGISTERS.read_text(encoding="utf-8")


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where Triton compiles; TRITON_INTERPRET, which ``make test`` sets, makes kernels into Python."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=1800
    )


@cache
def compiled(folder: Path, *options: str) -> Sequence[Mapping[str, Any]]:
    """What the command says of every call, in a process of its own; it makes one file in ``folder``."""
    place = folder / "compiled.json"
    done = child("-m", "benchsuite.workshop.native.ahead", "--json", str(place), *options)
    assert place.exists(), done.stderr
    found: Sequence[Mapping[str, Any]] = json.loads(place.read_text())
    return found


@pytest.fixture(scope="module")
def chips(pytestconfig: pytest.Config) -> Sequence[int]:
    """What is compiled for: Hopper alone, and with --specdec-deep every chip, which takes a minute more."""
    return list(CHIPS) if pytestconfig.getoption("specdec_deep") else [90]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, chips: Sequence[int]) -> Sequence[Mapping[str, Any]]:
    """A window of each model on each chip."""
    folder = tmp_path_factory.mktemp("ahead")
    found: Sequence[Mapping[str, Any]] = made_once(
        tmp_path_factory, "ahead", lambda: compiled(folder, "--chips", ",".join(map(str, chips)))
    )
    return found


def kernels_of_triton() -> set[str]:
    """The names of all public kernels of the Triton backend."""
    folder = Path(specdec_kernels.__path__[0])
    modules = [import_module(f"specdec_kernels.{path.stem}") for path in sorted(folder.glob("triton_*.py"))]
    return {
        name
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "fn") and not name.startswith("_")
    }


SPILLED = {("tree_attention", 80): 64, ("tree_attention", 90): 16, ("linear", 90): 8}
"""Bytes of stack of a kernel on a chip that are known, in the whole matrix alone (``REGISTERS``, Stacks)."""


def known(one: Mapping[str, Any]) -> bool:
    """Whether all that is wrong is a spill that is known."""
    only = all("its registers spill" in fault for fault in one["faults"])
    return only and one["stack"] <= SPILLED.get((one["kernel"], one["chip"]), 0)


def must_fit(found: Sequence[Mapping[str, Any]]) -> None:
    """No registers are spilled, shared memory suffices, and every argument arrives."""
    wrong = [one for one in found if one["faults"]]
    assert not wrong, "\n".join(f"{one['kernel']} on sm_{one['chip']}: {one}" for one in wrong)


@pytest.mark.slow
def test_every_kernel_is_compiled_ahead(few: Sequence[Mapping[str, Any]], chips: Sequence[int]) -> None:
    for chip in chips:
        missing = kernels_of_triton() - {one["kernel"] for one in few if one["chip"] == chip}
        assert not missing, "no call in benchsuite/workshop/native/calls.py launches these: add one"


@pytest.mark.slow
def test_no_kernel_spills_and_each_is_handed_what_its_method_was_given(few: Sequence[Mapping[str, Any]]) -> None:
    must_fit(few)


@pytest.mark.slow
def test_every_shape_batch_and_dtype_fits_every_chip(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not pytestconfig.getoption("specdec_deep"):
        pytest.skip("some hundred kernels; --specdec-deep compiles them")
    must_fit([one for one in compiled(tmp_path_factory.mktemp("whole"), "--all") if not known(one)])


def cells(found: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], str]:
    """Registers / KiB of shared memory, as ``REGISTERS`` shows them, by kernel and chip."""
    return {
        (f"`{one['kernel']}`{', ' * bool(one['kind'])}{one['kind']}", one["chip"]): (
            f"{one['registers']} / {one['shared'] / 1024:.3g}"
        )
        for one in found
    }


def page_cells() -> dict[tuple[str, int], str]:
    """The same, from the columns of the page for the Triton that is here; skips where it has none."""
    here = version("triton") if find_spec("triton") else ""
    ours = "" if f"(Triton {here}," in PAGE else f", Triton {here}"
    head, *lines = [line for line in PAGE.splitlines() if line.startswith(("| kernel |", "| `"))]
    titles, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
    columns = {chip: titles.index(f"sm_{chip}{ours}") for chip in CHIPS if f"sm_{chip}{ours}" in titles}
    if here and not columns:
        pytest.skip(f"{REGISTERS.name} has no column of Triton {here}")
    return {(row[0], chip): row[column] for row in rows for chip, column in columns.items()}


@pytest.mark.slow
def test_the_page_says_what_every_kernel_takes(few: Sequence[Mapping[str, Any]], chips: Sequence[int]) -> None:
    expected = cells([one for one in few if one["model"] == "Llama-3-8B"])
    said = {place: text for place, text in page_cells().items() if place[1] in chips}
    assert said == expected, "python -m benchsuite.workshop.native.ahead prints the table anew"


@pytest.fixture(scope="module")
def faults_found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """What is said of each fault of ``ahead_rig``."""

    def make() -> Any:
        done = child("-m", "benchsuite.tests.ahead_rig")
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    found: Mapping[str, Mapping[str, Any]] = made_once(tmp_path_factory, "ahead_faults", make)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("a stride swapped", "strides has (131072, 1048576, 128, 1) for keys"),
        ("two tensors swapped", "the call says"),
        ("two addresses swapped by the launcher", "as keys; the method gave"),
        ("two sizes swapped", "sizes is (128, 5); the call says (5, 128)"),
        ("a copy of an argument", "gate is"),
        ("a result lost", "1 tensors of its own, which are not the 1 results in order"),
        ("too much shared memory", "sm_90 has 232448 a block"),
        ("registers spilled", "its registers spill"),
        ("no counters", "arrivals has numbers of torch.float32; the kernel has torch.int32 there"),
        ("counters that were left", "arrivals counts from numbers that are not zero"),
        ("fewer counters than lines", "arrivals has room for 1 numbers; the kernel may write 16"),
        ("scratch too small", "mixes has room for 32768 numbers; the kernel may write 65536"),
        ("scratch shared", "marks and mixes overlap; marks must be the method's own"),
        ("scratch that is an argument", "left and distribution overlap"),
        ("a part too many", "parts is 17; the call says 16"),
        ("a sum with another tensor", "beside is"),
        ("the numbers of a norm swapped", "eps is 1.0; the call says 1e-05"),
        ("a launch left out", "10 launches where the call says 12"),
    ],
)
def test_a_planted_fault_is_found(faults_found: Mapping[str, Mapping[str, Any]], fault: str, said: str) -> None:
    assert any(said in one for one in faults_found[fault]["faults"]), faults_found[fault]


@pytest.mark.slow
def test_an_argument_dropped_is_refused_by_the_compiler(faults_found: Mapping[str, Mapping[str, Any]]) -> None:
    refused = faults_found["an argument dropped"]["refused"]
    assert "def kv_append(" in refused
    assert "expected 5, got 4" in refused or "list index out of range" in refused, "Triton 3.9 and 3.6"


@pytest.mark.slow
def test_shared_memory_doubled_is_not_what_the_page_says(faults_found: Mapping[str, Mapping[str, Any]]) -> None:
    found = faults_found["shared memory doubled"]
    assert not found["faults"], "it still fits, so that the page alone can tell"
    [(place, text)] = cells([found]).items()
    assert page_cells()[place] != text


def test_a_tensor_between_two_launches_of_a_call_is_no_result() -> None:
    from benchsuite.workshop.native.ahead import results_wrong, told_of
    from benchsuite.workshop.native.stub_driver import Launched

    x, between, out = torch.zeros(3, 4).unbind()

    def launched(**given: torch.Tensor) -> Launched:
        handed: Any = None  # not looked at here
        return Launched("kernel", given, dict.fromkeys(given, "*fp32"), (1, 1, 1), 1, None, handed)

    call = KernelCall("op", "", {"x": x})
    launches = [launched(x=x, partial=between), launched(partial=between, out=out)]
    told = told_of(call, launches)
    assert not results_wrong(told, launches, out)
    assert results_wrong(told, launches, between)
    assert results_wrong(told[:1], launches[:1], out)


def test_a_block_may_have_all_of_its_shared_memory_and_no_more() -> None:
    for chip, limit in CHIPS.items():
        assert not Resources(chip, "kernel", 32, 0, 1024, 0).faults(limit - 1024)
        assert Resources(chip, "kernel", 32, 0, 1024, 0).faults(limit - 1023)


def test_the_interpreter_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchsuite.workshop.native.ahead import ahead_driver

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="unset it to compile them"), ahead_driver():
        pass
