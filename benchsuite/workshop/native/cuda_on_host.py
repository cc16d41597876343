"""The CUDA sources, compiled for the host: every line of theirs runs, over CPU tensors, and no GPU is needed.

``cuda_on_host.h`` has what the sources use of CUDA. Their text is changed in three places: CUDA's own headers are left
out, a launch becomes a call, and shared memory whose size the launch says becomes a pointer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL, POINTER, c_int64
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch import Tensor

from benchsuite.conformance.guards.snippet import compiled_snippet
from benchsuite.workshop.native.ahead_cuda import stubbed_cuda
from specdec.packed import Weight
from specdec_kernels import build, cuda
from specdec_kernels.cuda import Cuda, load_cuda_library

HEADER = Path(__file__).parent / "cuda_on_host.h"

CHANGES = (
    (r"#include <cuda\w*\.h>", ""),
    (r"(\w+(?:<[^<>]*>)?)<<<(.*?)>>>\(", r"on_host::launch(\1, \2)("),
    (r"extern __shared__ (\w+) (\w+)\[\];", r"\1* \2 = (\1*)on_host::dynamic_shared;"),
)
"""What becomes what; a launch's kernel, grid, threads, shared memory and stream are the arguments of ``launch``."""


def host_source(text: str) -> str:
    """Return a CUDA file as C++ for the host.

    Example: ``host_source("f<<<2, 32>>>(x);")`` ends with ``on_host::launch(f, 2, 32)(x);``
    """
    for pattern, new in CHANGES:
        text = re.sub(pattern, new, text, flags=re.DOTALL)
    return f'#include "{HEADER}"\n{text}'


@cache
def host_library() -> SimpleNamespace:
    """Return the functions of all CUDA files, compiled for the host if the cache lacks them.

    Raises BuildError without a C++ compiler, or with one that fails.
    """
    found: dict[str, Any] = {}
    headers = "".join(path.read_text() for path in (HEADER, *sorted(build.SOURCES.glob("*_cuda.h"))))
    flags = ("-O1", "-std=c++17", "-ffp-contract=off", "-fsanitize=bounds", "-w", f"-I{build.SOURCES}")
    for source in sorted(build.SOURCES.glob("*.cu")):
        text = source.read_text()
        place = f"host-{source.stem}-{{}}.so"
        loaded = CDLL(str(compiled_snippet(f"{source.name} for the host", host_source(text), place, flags, headers)))
        loaded.specdec_launched.restype = POINTER(c_int64)
        for name in re.findall(r'^extern "C" .*?(specdec_\w+)\(', text, re.M):
            found[name], _LAUNCHED[name] = getattr(loaded, name), loaded.specdec_launched
    library = SimpleNamespace(**found)
    with patch.object(build, "library", lambda *given: library), patch.object(cuda, "cuda_compiler", lambda: "nvcc"):
        cuda._library.cache_clear()
        try:
            load_cuda_library()  # which tells ctypes the functions' arguments
        finally:
            cuda._library.cache_clear()
    return library


_LAUNCHED: dict[str, Any] = {}


def launched(op: str) -> tuple[int, ...]:
    """Return of the last launch of the file that has an op: the grid (x, y, z), a block's threads, bytes of its memory.

    Example: ``launched("sample")`` after three rows in one part each is ``(3, 1, 1, 512, 0)``
    """
    return tuple(_LAUNCHED[f"specdec_{op}"]()[:5])


class _Here(Tensor):
    """A CPU tensor that says that it is a GPU's."""

    is_cuda = True


class HostCuda(Cuda):
    """The cuda backend where it takes CPU tensors."""

    def takes(self, op: str, *tensors: Weight) -> bool:
        """As ``Cuda.takes`` of the same tensors on a GPU."""
        return super().takes(op, *(t.as_subclass(_Here) if isinstance(t, Tensor) else t for t in tensors))


@contextmanager
def cuda_on_host() -> Iterator[Cuda]:
    """Inside, a cuda backend whose kernels run on the host. Raises BuildError as ``host_library`` does.

    Example: ``with cuda_on_host() as backend: backend.silu_mul(torch.rand(2, 8), torch.rand(2, 8))``
    """
    with stubbed_cuda(host_library(), HostCuda) as backend:
        yield backend
