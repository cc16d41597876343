"""The CUDA kernels, compiled for GPUs that are not here, fit into them and are handed what the methods were given."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from benchsuite.workshop.native.ahead_cuda import (
    cuda_calls,
    cuda_wrong,
    kernel_name,
    library_resources,
    stubbed_cuda,
    stubbed_library,
)
from benchsuite.workshop.native.calls import MODELS, KernelCall, KernelStep, all_steps
from benchsuite.workshop.native.cubin import CHIPS, cuobjdump, resources
from benchsuite.workshop.native.stub_driver import StubDriver
from specdec_kernels import build, cuda
from specdec_kernels.build import BuildError
from specdec_kernels.cuda import Cuda

pytestmark = [
    pytest.mark.fake_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        cuda.cuda_compiler() is None, reason="no nvcc in CUDA_HOME or on the path: .cu sources not compiled"
    ),
    pytest.mark.skipif(
        torch.backends.cuda.is_built(), reason="this build of torch brings a CUDA runtime, which a stub cannot replace"
    ),
]

STEP = KernelStep(MODELS[-1])


@pytest.fixture(scope="module")
def stub() -> StubDriver:
    """The runtime that launches nothing."""
    return StubDriver()


@pytest.fixture(scope="module")
def compiled_cuda(stub: StubDriver) -> CDLL:
    """The kernels for every chip."""
    try:
        cuobjdump()
        return stubbed_library()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def stubbed_backend(compiled_cuda: CDLL) -> Iterator[Cuda]:
    """A cuda backend over them."""
    with stubbed_cuda(compiled_cuda) as made:
        yield made


def kernels_of_cuda() -> set[str]:
    """The names of all kernels in the CUDA sources."""
    sources = [path.read_text() for path in sorted(build.SOURCES.glob("*.cu"))]
    found = [re.findall(r"__global__ void (?:__launch_bounds__\(\w+\) )?(\w+)\(", text) for text in sources]
    return {name for names in found for name in names}


def call_of(op: str) -> KernelCall:
    return next(call for call in cuda_calls(STEP) if call.op == op)


@pytest.mark.parametrize("chip", CHIPS)
def test_every_kernel_is_compiled_and_none_spills(compiled_cuda: CDLL, chip: int) -> None:
    found = [one for one in library_resources(compiled_cuda) if one.chip == chip]
    assert {kernel_name(one.name) for one in found} == kernels_of_cuda()
    wrong = {one.name: one.faults() for one in found if one.faults()}
    assert not wrong


def test_every_launch_is_handed_what_its_method_was_given(stub: StubDriver, stubbed_backend: Cuda) -> None:
    calls = [call for step in all_steps() for call in cuda_calls(step)]
    wrong = [(call.op, call.kind, found) for call in calls if (found := cuda_wrong(stub, stubbed_backend, call))]
    assert not wrong


def test_every_kernel_is_launched_by_some_call(stub: StubDriver, stubbed_backend: Cuda) -> None:
    launched = set()
    for call in cuda_calls(STEP):
        stub.expect([])
        getattr(stubbed_backend, call.op)(**call.given)
        launched.add(kernel_name(stub.name(stub.handed().function)))
    assert launched == kernels_of_cuda(), "no call in benchsuite/workshop/native/calls.py launches the others: add one"


def test_a_stride_swapped_is_found(stub: StubDriver, stubbed_backend: Cuda) -> None:
    byte_strides = cuda._byte_strides

    def swapped(*tensors: torch.Tensor) -> object:
        return byte_strides(*(tensor.transpose(0, 1) for tensor in tensors))

    with patch.object(cuda, "_byte_strides", swapped):
        found = cuda_wrong(stub, stubbed_backend, call_of("kv_append"))
    assert [one[:11] for one in found] == [f"parameter {place}" for place in range(4)]


def test_two_tensors_swapped_are_found(stub: StubDriver, stubbed_backend: Cuda) -> None:
    launch = stubbed_backend._launch

    def swapped(op: str, device: torch.device, first: object, second: object, *given: object) -> None:
        launch(op, device, second, first, *given)

    with patch.object(stubbed_backend, "_launch", swapped):
        found = cuda_wrong(stub, stubbed_backend, call_of("kv_compact"))
    assert [one[:11] for one in found] == ["parameter 0", "parameter 1"]


def test_an_argument_dropped_is_refused(stub: StubDriver, stubbed_backend: Cuda) -> None:
    launch = stubbed_backend._launch
    with (
        patch.object(stubbed_backend, "_launch", lambda *given: launch(*given[:-1])),
        pytest.raises((TypeError, RuntimeError), match=r"required arguments|takes at least"),
    ):
        cuda_wrong(stub, stubbed_backend, call_of("accept"))


def test_more_shared_memory_than_a_launch_may_ask_for_is_found(stub: StubDriver, stubbed_backend: Cuda) -> None:
    call = call_of("kv_compact")
    with patch("benchsuite.workshop.native.ahead_cuda.SHARED", 1 << 10):
        narrow = cuda_wrong(stub, stubbed_backend, call)
    assert any("bytes of shared memory; without an attribute it gets 1024" in one for one in narrow)


def test_a_kernel_that_spills_is_found(tmp_path: Path, compiled_cuda: CDLL) -> None:
    source, built = tmp_path / "spills.cu", tmp_path / "spills.so"
    source.write_text(
        "__global__ void spills(float* x) { float y[64]; for (int i = 0; i < 64; i++) y[i] = x[i * threadIdx.x];\n"
        "__syncthreads(); for (int i = 0; i < 64; i++) x[i] = y[i] * y[63 - i]; }\n"
    )
    flags = ["-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-arch=sm_90", "-maxrregcount=24"]
    subprocess.run([cuda.cuda_compiler() or "", *flags, str(source), "-o", str(built)], check=True)
    [found] = resources(built)
    assert any("its registers spill" in fault for fault in found.faults())
