"""Questions of a few lines to a GPU, each in a process of its own: ``python -m ….gpu_day.probes cuda NAME …``.

Each prints its answers, and appends figures to the file that ``SPECDEC_FIGURES`` names. Questions about graphs are not
put to a CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchsuite.workshop.gpu_day.page import FIGURES
from specdec.amounts import amount
from specdec.devices import HostCopy, uploaded
from specdec.runtime import CudaGraphs

SHAPES = {
    "135m": (30, 576, 960, 1536, 49152),
    "1b": (16, 2048, 3072, 8192, 128256),
    "3b": (28, 3072, 5120, 8192, 128256),
}
"""Layers, width, outputs of queries, keys and values, inner width, vocabulary."""

PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "hypothesis",
    "pytest",
    "pytest-benchmark",
    "pytest-xdist",
    "gguf",
)


class Probe:
    """Asks one device, and writes figures down."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"

    def note(self, name: str, value: float | str) -> None:
        """Print a figure and append it to the file of figures."""
        print(f"{name}: {value}", flush=True)
        file = os.environ.get(FIGURES)
        if file:
            with Path(file).open("a", encoding="utf-8") as out:
                out.write(json.dumps({"name": name, "value": value, "device": self.device.type}) + "\n")

    def answer(self, question: str, ask: Callable[[], object]) -> None:
        """Print what a call returns or raises: here an error is an answer."""
        try:
            print(f"{question}: {ask()}", flush=True)
        except Exception as error:
            print(f"{question}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)

    def milliseconds(self, call: Callable[[], object], times: int = 30) -> float:
        """The median time of a call, by events on CUDA."""
        if not self.cuda:
            found = []
            for _ in range(3):
                start = time.perf_counter()
                call()
                found.append((time.perf_counter() - start) * 1e3)
            return median(found)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        found = []
        for _ in range(times):
            first.record()
            call()
            last.record()
            last.synchronize()
            found.append(first.elapsed_time(last))
        return median(found)

    def graphed(self, call: Callable[[], object]) -> Callable[[], object]:
        """The replay of a graph of a call; off CUDA the call itself."""
        call()
        return CudaGraphs()(call, ())[1] if self.cuda else call

    def versions(self) -> None:
        """Versions, tools, the key of Triton's cache, the card, the number of plugins that are found."""
        for package in PACKAGES:
            self.answer(package, lambda package=package: metadata.version(package))  # type: ignore[misc]
        self.answer("triton's key", _triton_key)
        self.answer("nvcc, c++, git", lambda: [shutil.which(one) for one in ("nvcc", "c++", "git")])
        self.note("plugins", len(metadata.entry_points(group="specdec")))
        if self.cuda:
            from benchsuite.machine.provenance import accelerator, accelerator_line

            self.note("card", accelerator_line(accelerator(torch.cuda.current_device())))

    def products(self) -> None:
        """``torch.mm`` of half numbers with float32 sums: its error, whether rows alone give the same bits."""
        for rows in (1, 5, 16, 64):
            outputs = 128256 if self.cuda else 64
            x = torch.randn(rows, 2048, device=self.device, dtype=torch.bfloat16)
            weight = torch.randn(outputs, 2048, device=self.device, dtype=torch.bfloat16)

            def wide(x: Tensor = x, weight: Tensor = weight) -> Tensor:
                return torch.mm(x, weight.t(), out_dtype=torch.float32)

            self.answer(
                f"wide product of {rows} rows, largest error",
                lambda x=x, weight=weight, wide=wide: float((wide() - (x.double() @ weight.double().t())).abs().max()),  # type: ignore[misc]
            )
            self.answer(
                f"{rows} rows, and one of them alone, have the same bits",
                lambda x=x, weight=weight, wide=wide: torch.equal(wide()[:1], wide(x[:1], weight)),  # type: ignore[misc]
            )

    def guard(self) -> None:
        """The copies of a step under torch's guard on synchronisation; the last question must be refused."""
        copy, numbers = HostCopy(self.device), torch.arange(40, device=self.device).view(2, 20)
        if self.cuda:
            torch.cuda.set_sync_debug_mode("error")
        arrays = np.arange(6).reshape(2, 3), np.ones(3, np.float32)
        self.answer("uploaded", lambda: uploaded(self.device, *arrays)[1].shape)
        copy.start(numbers)
        self.answer("HostCopy", lambda: int(copy.of(numbers).sum()))
        self.answer("a fill", lambda: numbers[0].fill_(3).shape)
        self.answer("item, which CUDA must refuse", lambda: numbers.sum().item())

    def failing(self) -> None:
        """A capture that reads the device; the next capture and the allocator must work."""
        if not self.cuda:
            return print("no graphs on this device")
        graphs, x = CudaGraphs(), torch.ones(4, device=self.device)
        self.answer("a good capture", lambda: graphs(lambda: x + 1, ())[0].shape)
        self.answer("a read in a capture, which must be refused", lambda: graphs(lambda: (x + 1).sum().item(), ()))
        self.answer("the next capture", lambda: graphs(lambda: x + 1, ())[0].shape)
        self.answer("empty_cache", torch.cuda.empty_cache)
        self.answer("a draw", lambda: torch.multinomial(torch.ones(3, device=self.device), 1).shape)

    def loading(self) -> None:
        """A kernel whose machine code is first loaded in a capture, in a process that ends afterwards."""
        if not self.cuda:
            return print("no graphs on this device")
        from specdec_kernels.cuda import Cuda
        from specdec_kernels.triton import Triton

        a, b = torch.randn(2, 64, device=self.device), torch.randn(2, 64, device=self.device)
        for backend in (Cuda(), Triton()):
            self.answer(
                f"{backend.name}: first in a capture",
                lambda backend=backend: CudaGraphs()(lambda: backend.silu_mul(a, b), ()) and "captured",  # type: ignore[misc]
            )
            self.answer(f"{backend.name}: then run", lambda backend=backend: backend.silu_mul(a, b).shape)  # type: ignore[misc]

    def workspaces(self) -> None:
        """Whether a graph's workspace of cuBLAS is given away once torch.compile's recordings have cleared it."""
        if not self.cuda:
            return print("no graphs on this device")
        x = torch.randn(1, 8192, device=self.device, dtype=torch.bfloat16)
        weight = torch.randn(2048, 8192, device=self.device, dtype=torch.bfloat16)
        graphs, wanted = CudaGraphs(), x @ weight.t()
        product, replay = graphs(lambda: x @ weight.t(), ())
        torch._C._cuda_clearCublasWorkspaces()
        other, fill = graphs(lambda: torch.full((2**23,), 7.0, device=self.device), ())
        fill()
        replay()
        print(
            "given to another graph:",
            not bool((other == 7).all()),
            "; product unchanged:",
            torch.equal(product, wanted),
        )

    def bandwidth(self) -> None:
        """Bytes a second of a copy, a large product, and the products of one step of each shape in a graph."""
        data = torch.randn(2**29 if self.cuda else 2**20, device=self.device)
        self.note("copy, TB/s", 2 * data.nbytes / self.milliseconds(data.clone) / 1e9)
        del data
        side = 8192 if self.cuda else 256
        square = torch.randn(side, side, device=self.device, dtype=torch.bfloat16)
        flops = 2 * side**3 / self.milliseconds(lambda: square @ square) / 1e9
        self.note("bf16 product 8192^3, TFLOP/s" if self.cuda else "bf16 product 256^3, TFLOP/s", flops)
        for name, (layers, width, qkv, inner, vocabulary) in SHAPES.items() if self.cuda else ():
            each = ((qkv, width), (width, width), (2 * inner, width), (width, inner))
            sizes = [*(each * layers), (vocabulary, width)]
            weights = [torch.randn(n, k, device=self.device, dtype=torch.bfloat16) for n, k in sizes]
            for rows in (1, 5):
                inputs = {k: torch.randn(rows, k, device=self.device, dtype=torch.bfloat16) for _, k in sizes}

                def step(inputs: dict[int, Tensor] = inputs, weights: Sequence[Tensor] = weights) -> list[Tensor]:
                    return [inputs[weight.shape[1]] @ weight.t() for weight in weights]

                milliseconds = self.milliseconds(self.graphed(step))
                self.note(f"{name}, products of {amount(rows, 'row')}, ms", milliseconds)

    def launches(self) -> None:
        """Microseconds of a small launch in a graph."""
        x = torch.zeros(1, 576, device=self.device)
        for count in (50, 1000):

            def step(count: int = count) -> None:
                for _ in range(count):
                    x.add_(1)

            took = self.milliseconds(self.graphed(step)) * 1e3
            self.note(f"graph of {count} launches, us a launch", took / count)


def _triton_key() -> str:
    from triton.runtime.cache import triton_key  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return hashlib.sha256(triton_key().encode()).hexdigest()[:16]


def probes_main(arguments: Sequence[str]) -> int:
    """Ask a device the named questions; returns 2 for a name that is none."""
    device, *names = arguments
    questions = {name: question for name, question in vars(Probe).items() if not name.startswith("_")}
    known = [name for name in questions if name not in ("note", "answer", "milliseconds", "graphed")]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        print(f"unknown question {unknown or names}; choices: {', '.join(known)}", file=sys.stderr)
        return 2
    probe = Probe(torch.device(device))
    for name in names:
        start = time.perf_counter()
        questions[name](probe)
        print(f"{name}: {time.perf_counter() - start:.1f} s after imports", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(probes_main(sys.argv[1:]))
