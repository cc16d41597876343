"""A CUDA driver that launches nothing: a library that notes what it is handed, for machines without a GPU.

Triton's own launcher, and the host code that nvcc makes, are then called as on a GPU, and every byte that they hand to
the driver can be looked at. Nothing of the real driver is loaded or needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.conformance.guards.snippet import compiled_snippet

MOST_PARAMETERS, MOST_BYTES = 64, 64
"""Parameters of a launch that the stub can note, and bytes of each; SOURCE has the same numbers."""

SOURCE = """
// What the last launch was handed. `sizes` are set before it: the bytes of each parameter that the kernel reads.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

struct Record {
    int64_t launches, grid[3], block[3], shared, stream, function;
    int32_t count, sizes[64];
    unsigned char bytes[64][64];
};
struct Config {  // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    void* stream;
    void* attributes;
    unsigned count;
};
struct Dim { unsigned x, y, z; };

static Record record;
static std::map<const void*, std::string> names;
static Dim pushed[2];
static size_t pushed_shared;
static void* pushed_stream;

static int note(
    const unsigned* grid, const unsigned* block, int64_t shared, void* stream, const void* function, void** given) {
    record.launches++;
    for (int i = 0; i < 3; i++) record.grid[i] = grid[i], record.block[i] = block[i];
    record.shared = shared;
    record.stream = (int64_t)stream;
    record.function = (int64_t)function;
    for (int i = 0; i < record.count; i++) memcpy(record.bytes[i], given[i], record.sizes[i]);
    return 0;
}

extern "C" {
Record* specdec_stub_record() { return &record; }
// The mangled name under which a kernel was registered by the host code that nvcc made; empty if it was not.
const char* specdec_stub_name(const void* function) { return names[function].c_str(); }

// The driver, as Triton's launcher calls it.
int cuLaunchKernelEx(const Config* config, void* function, void** given, void**) {
    return note(config->grid, config->block, config->shared, config->stream, function, given);
}
int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) { return *text = "the stub driver launches and loads nothing", 0; }
int cuPointerGetAttribute(void* out, int, uint64_t pointer) { return *(uint64_t*)out = pointer, 0; }
int cuCtxGetCurrent(void** context) { return *context = &record, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxGetDevice(int* device) { return *device = 0; }
int cuDeviceGet(int* device, int) { return *device = 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &record, 0; }
int cuDeviceGetAttribute(int* value, int, int) { return *value = 0; }
// What Triton's launcher is linked with, and never calls here: CUDA_ERROR_NOT_SUPPORTED.
#define REFUSED(name) int name(...) { return 801; }
REFUSED(cuCtxGetLimit) REFUSED(cuCtxSetLimit) REFUSED(cuDriverGetVersion) REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute) REFUSED(cuFuncSetCacheConfig) REFUSED(cuModuleGetFunction) REFUSED(cuModuleLoadData)
REFUSED(cuModuleUnload) REFUSED(cuStreamIsCapturing)

// The runtime, as the host code that nvcc makes calls it (-cudart none).
void** __cudaRegisterFatBinary(void*) { static void* handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(
    void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) { names[host] = name; }
unsigned __cudaPushCallConfiguration(Dim grid, Dim block, size_t shared, void* stream) {
    pushed[0] = grid, pushed[1] = block, pushed_shared = shared, pushed_stream = stream;
    return 0;
}
int __cudaPopCallConfiguration(Dim* grid, Dim* block, size_t* shared, void** stream) {
    *grid = pushed[0], *block = pushed[1], *shared = pushed_shared, *stream = pushed_stream;
    return 0;
}
int cudaLaunchKernel(const void* function, Dim grid, Dim block, void** given, size_t shared, void* stream) {
    return note(&grid.x, &block.x, shared, stream, function, given);
}
// The same since nvcc 13, which asks for a handle first.
int __cudaGetKernel(const void** kernel, const void* function) { return *kernel = function, 0; }
int __cudaLaunchKernel(const void* kernel, Dim grid, Dim block, void** given, size_t shared, void* stream) {
    return note(&grid.x, &block.x, shared, stream, kernel, given);
}
int cudaGetLastError() { return 0; }
int cudaFuncGetAttributes(void*, const void*) { return 0; }
const char* cudaGetErrorString(int) { return "the stub runtime launches nothing"; }
}
"""


class _Record(ctypes.Structure):
    _fields_ = (
        ("launches", ctypes.c_int64),
        ("grid", ctypes.c_int64 * 3),
        ("block", ctypes.c_int64 * 3),
        *((name, ctypes.c_int64) for name in ("shared", "stream", "function")),
        ("count", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * MOST_PARAMETERS),
        ("bytes", (ctypes.c_ubyte * MOST_BYTES) * MOST_PARAMETERS),
    )


@dataclass(frozen=True)
class Handed:
    """What the driver was handed with one launch; ``shared`` in bytes, ``parameters`` each as its bytes."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    function: int
    parameters: tuple[bytes, ...]


def stub_folder() -> Path:
    """Return the folder with the stub, ``libcuda.so.1``, compiled if the cache lacks it.

    Raises BuildError without a C++ compiler or if it fails.
    """
    flags = ["-std=c++17", "-Wl,-soname,libcuda.so.1"]
    return compiled_snippet("a stub of the CUDA driver", SOURCE, "cuda-stub-{}/libcuda.so.1", flags).parent


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel's arguments by name and their types, and what reached the driver."""

    kernel: str
    given: Mapping[str, Any]
    types: Mapping[str, Any]
    grid: tuple[int, ...]
    function: int
    metadata: Any
    handed: Handed

    @property
    def pointers(self) -> list[str]:
        """The names of the parameters that are addresses, in order."""
        return [name for name, kind in self.types.items() if isinstance(kind, str) and kind.startswith("*")]


class StubDriver:
    """The stub, loaded before anything else asks for ``libcuda.so.1``, which it then gets.

    Example: ``stub.expect([8, 4])`` before a launch of a kernel of a pointer and an int32, ``stub.handed()`` after it.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(stub_folder() / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        self._library.specdec_stub_record.restype = ctypes.POINTER(_Record)
        self._library.specdec_stub_name.argtypes = [ctypes.c_void_p]
        self._library.specdec_stub_name.restype = ctypes.c_char_p
        self._record = self._library.specdec_stub_record().contents

    def expect(self, sizes: list[int]) -> None:
        """Note so many bytes of each parameter of the launches to come; ValueError above what the stub holds."""
        if len(sizes) > MOST_PARAMETERS or max(sizes, default=0) > MOST_BYTES:
            raise ValueError(f"parameters of {sizes} bytes; the stub notes {MOST_PARAMETERS} of {MOST_BYTES} bytes")
        self._record.launches, self._record.count = 0, len(sizes)
        self._record.sizes[: len(sizes)] = sizes

    @property
    def launches(self) -> int:
        """Launches since ``expect``."""
        return int(self._record.launches)

    def handed(self) -> Handed:
        """Return what the last launch was handed; RuntimeError unless there was exactly one since ``expect``."""
        record = self._record
        if record.launches != 1:
            raise RuntimeError(f"{record.launches} launches since the stub was asked to note one")
        parameters = tuple(bytes(record.bytes[i][: record.sizes[i]]) for i in range(record.count))
        numbers = record.shared, record.stream, record.function
        return Handed(tuple(record.grid), tuple(record.block), *numbers, parameters)

    def name(self, function: int) -> str:
        """Return the mangled name of a kernel that nvcc's host code registered; empty for others."""
        found: bytes = self._library.specdec_stub_name(function)
        return found.decode()
