"""Triton's kernels compiled for GPUs that are not here, and handed to a driver that launches nothing.

``python -m benchsuite.workshop.native.ahead`` prints what every kernel takes of every GPU, the table of
docs/results/20261126-registers-triton.md. It calls the Triton backend's own methods
(``benchsuite.workshop.native.calls``) on CPU tensors: the types, constants, alignments and options are those of a real
call, and Triton's own launcher hands the arguments to a stub of the driver, where each is compared with what the method
was given. It cannot run where ``TRITON_INTERPRET`` is set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,import-untyped,unused-ignore]
from triton.runtime.driver import driver  # type: ignore[import-not-found,import-untyped,unused-ignore]

from benchsuite.workshop.native.calls import (
    MODELS,
    KernelCall,
    KernelStep,
    Scratch,
    all_steps,
    few_steps,
    kernel_calls,
    results_of,
)
from benchsuite.workshop.native.cubin import CHIPS, Resources, resources
from benchsuite.workshop.native.stub_driver import Launched, StubDriver, stub_folder
from specdec.cache import cache_root
from specdec_kernels.triton import Triton

STREAM = 0x5EED0
"""The stream that the stub's device says is current."""

BYTES = {"u64": 8, "s64": 8, "b64": 8, "u32": 4, "s32": 4, "b32": 4, "f32": 4, "u16": 2, "b16": 2, "u8": 1, "b8": 1}
"""Of a parameter's type as PTX has it."""

_PACKED = {"i1": "?", "i8": "b", "u8": "B", "i16": "h", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "fp32": "f"}


@dataclass(frozen=True)
class Compiled:
    """A kernel as one call of the backend has it compiled for one chip, what it takes, and all that is wrong with it.

    ``stack`` counts bytes of a thread, ``shared`` of a block; ``seconds`` is the whole call, compiling included.
    """

    chip: int
    kernel: str
    op: str
    kind: str
    model: str
    rows: int
    width: int
    dtype: str
    warps: int
    registers: int
    stack: int
    shared: int
    seconds: float
    faults: Sequence[str]


class AheadDriver:
    """Triton's driver for a GPU that is not here: kernels are compiled for ``chip``, and launches are noted.

    Takes the place of Triton's own (``driver.set_active``) for the rest of the process.
    """

    def __init__(self, stub: StubDriver) -> None:
        self.chip = 90
        self.launches: list[Launched] = []
        self._stub = stub
        self._files: dict[str, Mapping[str, str]] = {}
        self._resources: dict[str, Resources] = {}
        self._functions = 0
        # Set before Triton first compiles its own launcher, which is linked with the library that it finds there.
        os.environ["TRITON_LIBCUDA_PATH"] = str(stub_folder())
        self._nvidia: Any = import_module("triton.backends.nvidia.driver")
        own = self._nvidia.CudaUtils()
        # Triton 3.6 compiles a launcher for each signature; later ones have one launcher, which the utils carry.
        launching = {name: getattr(own, name) for name in ("launch", "build_signature_metadata") if hasattr(own, name)}
        self.utils = SimpleNamespace(
            **launching,
            load_binary=self._load,
            unload_module=lambda module: None,
            # No kernel is refused for its shared memory here: ``Resources.faults`` says it of all.
            get_device_properties=lambda device: {"max_shared_mem": 1 << 30},
        )
        triton.knobs.compilation.listener = self._compiled

    def _load(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self._functions += 1
        return 1, self._functions, 0, 0, 1024

    def _compiled(self, *, metadata: Mapping[str, Any], metadata_group: Mapping[str, str], **_: object) -> None:
        self._files[metadata["hash"]] = metadata_group

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Triton's launcher of a kernel, behind one that notes what it hands over."""
        inner = self._nvidia.CudaLauncher(source, metadata)

        def launch(x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            self._stub.expect(parameter_sizes(self._file(metadata, ".ptx").read_text()))
            inner(x, y, z, stream, function, *rest)
            given = dict(zip(source.signature, rest[-len(source.signature) :], strict=True))
            name, types = source.fn.__name__, source.signature
            self.launches.append(Launched(name, given, types, (x, y, z), function, metadata, self._stub.handed()))

        return launch

    def _file(self, metadata: Any, suffix: str) -> Path:
        return next(Path(path) for name, path in self._files[metadata.hash].items() if name.endswith(suffix))

    def taken(self, launched: Launched) -> Resources:
        """What the kernel of a launch takes; its machine code is read once."""
        found = self._resources.get(launched.metadata.hash)
        if found is None:
            [found] = resources(self._file(launched.metadata, ".cubin"), self.chip)
            self._resources[launched.metadata.hash] = found
        return found

    def get_current_device(self) -> int:
        """A number of its own for each chip, because Triton keeps kernels by device."""
        return self.chip

    def get_current_stream(self, device: int | None = None) -> int:
        """``STREAM``."""
        return STREAM

    def get_current_target(self) -> Any:
        """The chip that is compiled for."""
        return GPUTarget("cuda", self.chip, 32)


def parameter_sizes(ptx: str) -> list[int]:
    """Return the bytes of each parameter that a kernel reads, from its PTX."""
    entry = ptx[ptx.index(".entry") :]
    return [BYTES[kind] for kind in re.findall(r"\.param \.(?:align \d+ \.)?(\w+)", entry[: entry.index(")")])]


@contextmanager
def ahead_driver() -> Iterator[AheadDriver]:
    """Triton's methods take CPU tensors inside, and their launches reach the stub; RuntimeError with TRITON_INTERPRET.

    Example: ``with ahead_driver() as device: Triton().accept(torch.rand(4), torch.zeros(4).long())``
    """
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        raise RuntimeError("TRITON_INTERPRET=1 makes kernels into Python; unset it to compile them ahead of a GPU")
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_root() / "triton-ahead"))
    made = AheadDriver(StubDriver())
    driver.set_active(made)
    with patch.object(torch.cuda, "device_of", lambda tensor: nullcontext()):
        yield made


def compile_call(device: AheadDriver, call: KernelCall, step: KernelStep) -> list[Compiled]:
    """Make a call of the backend; return what each of its launches took, and what was wrong with it.

    RuntimeError if it launches nothing, because the reference ran.
    """
    device.launches.clear()
    start = time.perf_counter()
    out = getattr(Triton(exact=call.exact), call.op)(**call.given)
    seconds = time.perf_counter() - start
    if not device.launches:
        raise RuntimeError(f"{call.op} launched no kernel of Triton's; give it a call that its backend takes")
    found = list[Compiled]()
    for launched, faults in zip(device.launches, launches_wrong(call, device.launches, out), strict=True):
        took, added = device.taken(launched), launched.metadata.shared
        kind = ", ".join(part for part in (call.kind, launch_kind(call, len(found))) if part)
        at = call.op, kind, step.model.name, step.rows, step.width, str(step.dtype).removeprefix("torch.")
        sizes = launched.metadata.num_warps, took.registers, took.stack + took.local, took.shared + added
        found.append(Compiled(device.chip, launched.kernel, *at, *sizes, seconds, [*took.faults(added), *faults]))
    return found


def launch_kind(call: KernelCall, place: int) -> str:
    """Return what a call names its launch number ``place``; empty for one of which it says nothing."""
    return call.each[place].kind if place < len(call.each) else ""


def launches_wrong(call: KernelCall, launches: Sequence[Launched], out: object) -> list[list[str]]:
    """Return for each of a call's launches in what its arguments are wrong; ``out`` is what the method returned."""
    wrong = [handed_wrong(launched) for launched in launches]
    if len(launches) != max(1, len(call.each)):  # nobody knows which of them is which
        wrong[-1].append(f"{len(launches)} launches where the call says {max(1, len(call.each))}")
        return wrong
    told = told_of(call, launches)
    for found, known, launched in zip(wrong, told, launches, strict=True):
        found += named_wrong(known, launched)
    wrong[-1] += results_wrong(told, launches, out)
    return wrong


def told_of(call: KernelCall, launches: Sequence[Launched]) -> Sequence[Mapping[str, object]]:
    """Return what a call says of the parameters of each of its launches, by name; its functions are called."""
    found = []
    for place in range(len(launches)):
        own = call.each[place].told if place < len(call.each) else {}
        known = {**call.given, **call.told, **own}
        seen = launches[: place + 1]
        found.append({name: told(seen) if isinstance(told, FunctionType) else told for name, told in known.items()})
    return found


def handed_wrong(launched: Launched) -> list[str]:
    """Return in what the driver's bytes differ from the arguments with which the method launched its kernel."""
    flat = [*_flat(launched.types, launched.given)]
    wanted = [_packed(kind, value) for _, kind, value in flat] + [bytes(8)] * 2  # and Triton's own two scratch pointers
    names = [name for name, _, _ in flat] + ["global scratch", "profile scratch"]
    handed, metadata = launched.handed, launched.metadata
    found = []
    if len(handed.parameters) != len(wanted):
        found.append(f"{len(wanted)} arguments were handed to a kernel that reads {len(handed.parameters)}")
    for name, want, got in zip(names, wanted, handed.parameters, strict=False):
        if want != got:
            found.append(f"the driver was handed {got.hex()} as {name}; the method gave {want.hex()}")
    numbers = (
        ("the grid", handed.grid, launched.grid),
        ("the block", handed.block, (32 * metadata.num_warps, 1, 1)),
        ("shared memory", handed.shared, metadata.shared),
        ("the stream", handed.stream, STREAM),
        ("the kernel", handed.function, launched.function),
    )
    return found + [f"{what} is {got} at the driver, {want} at the call" for what, got, want in numbers if got != want]


def _flat(types: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for name, kind in types.items():
        if isinstance(kind, tuple):
            inner = {f"{name}[{place}]": one for place, one in enumerate(kind)}
            yield from _flat(inner, dict(zip(inner, given[name], strict=True)))
        elif kind != "constexpr":  # also a number that is 1, which Triton compiles in
            yield name, kind, given[name]


def _packed(kind: str, value: Any) -> bytes:
    if kind.startswith("*"):
        return struct.pack("Q", value.data_ptr())
    return struct.pack(_PACKED[kind], value)


def named_wrong(known: Mapping[str, object], launched: Launched) -> list[str]:
    """Return in what a launch's arguments are not what is ``known`` of them, by the kernel's own names.

    ``strides`` are those of the first pointers, ``x_strides`` and ``x_stride`` those of the pointer whose name begins
    with x; axes of one element are not compared.
    """
    found = list[str]()
    for name, value in launched.given.items():
        if name.isupper():  # a constant of the method's own choice
            continue
        if name.endswith(("strides", "_stride")):
            found += _strides_wrong(name, value, launched, known)
        elif name in known:
            want = known[name]
            if isinstance(want, Scratch):
                found += _scratch_wrong(name, want, launched)
                continue
            if isinstance(want, Tensor):
                value, want = value.data_ptr(), want.data_ptr()
            if want is not None and value != want:
                found.append(f"{name} is {value}; the call says {want}")
        elif name not in launched.pointers:
            found.append(f"nothing says what {name} must be; tell it in benchsuite/workshop/native/calls.py")
    return found


def _scratch_wrong(name: str, want: Scratch, launched: Launched) -> Iterator[str]:
    own = launched.given[name]
    if own.dtype != want.dtype:
        yield f"{name} has numbers of {own.dtype}; the kernel has {want.dtype} there"
    if own.numel() < want.numbers:
        yield f"{name} has room for {own.numel()} numbers; the kernel may write {want.numbers}"
    if want.zero and own.count_nonzero():
        yield f"{name} counts from numbers that are not zero"
    first, end = _span(own)
    for other in launched.pointers:
        there, its_end = _span(launched.given[other])
        if other != name and max(first, there) < min(end, its_end):
            yield f"{name} and {other} overlap; {name} must be the method's own"


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the byte after its last."""
    first = tensor.data_ptr()
    if not tensor.numel():
        return first, first
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.itemsize


def results_wrong(known: Sequence[Mapping[str, object]], launches: Sequence[Launched], out: object) -> list[str]:
    """Return what is wrong with the pointers of which nothing is ``known``: they are the results, in their order.

    An address that several launches have may also be a tensor between them.
    """
    made = [tensor.data_ptr() for tensor in results_of(out)]
    every = [{launched.given[name].data_ptr() for name in launched.pointers} for launched in launches]
    own = [
        [launched.given[name].data_ptr() for name in launched.pointers if name not in told]
        for told, launched in zip(known, launches, strict=True)
    ]
    between = {one for mine in own for one in mine if sum(one in other for other in every) > 1} - set(made)
    left = list(dict.fromkeys(one for mine in own for one in mine if one not in between))
    return [] if left == made else [f"{len(left)} tensors of its own, which are not the {len(made)} results in order"]


def _strides_wrong(name: str, value: Any, launched: Launched, known: Mapping[str, object]) -> Iterator[str]:
    stem = name.removesuffix("s").removesuffix("stride").removesuffix("_")
    nested = isinstance(value, tuple) and isinstance(value[0], tuple)
    each = value if nested else (value if isinstance(value, tuple) else (value,),)
    of = [pointer for pointer in launched.pointers if pointer.startswith(stem)][: len(each)]
    if len(of) < len(each):
        yield f"{name} has strides of {len(each)} tensors, and only {of} have names for them"
    for pointer, strides in zip(of, each, strict=False):
        tensor = known.get(pointer)
        if isinstance(tensor, Tensor):
            axes = zip(reversed(strides), reversed(tensor.stride()), reversed(tensor.shape), strict=False)
            if any(got != want for got, want, size in axes if size > 1):
                yield f"{name} has {strides} for {pointer}, whose strides are {tensor.stride()}"


def compile_steps(
    device: AheadDriver, steps: Sequence[KernelStep], chips: Sequence[int] = tuple(CHIPS)
) -> list[Compiled]:
    """Compile and launch all calls of the steps for each chip."""
    found = []
    for chip in chips:
        device.chip = chip
        calls = ((call, step) for step in steps for call in kernel_calls(step))
        found += [one for call, step in calls for one in compile_call(device, call, step)]
    return found


def resource_table(found: Sequence[Compiled]) -> str:
    """Return a table in Markdown of one step's kernels: registers / KiB of shared memory on each chip."""
    cells: dict[tuple[str, int], dict[int, str]] = {}
    for one in found:
        place = f"`{one.kernel}`{', ' * bool(one.kind)}{one.kind}", one.warps
        cells.setdefault(place, {})[one.chip] = f"{one.registers} / {one.shared / 1024:.3g}"
    chips = sorted({one.chip for one in found})
    head = ["kernel", "warps", *(f"sm_{chip}" for chip in chips)]
    rows = [[name, str(warps), *(by.get(chip, "-") for chip in chips)] for (name, warps), by in cells.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["-" * 4] * len(head), *rows))


def ahead_main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if anything is wrong with a kernel."""
    parser = argparse.ArgumentParser(
        prog="python -m benchsuite.workshop.native.ahead", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--all", action="store_true", help="every shape, batch and dtype, not one window of each model")
    parser.add_argument("--chips", default=",".join(map(str, CHIPS)), help="compute capabilities (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file, and print no table")
    given = parser.parse_args(arguments)
    chips = [int(chip) for chip in given.chips.split(",")]
    unknown = [chip for chip in chips if chip not in CHIPS]
    if unknown:
        parser.error(f"--chips {unknown} are not among {list(CHIPS)}")
    with ahead_driver() as device:
        found = compile_steps(device, all_steps() if given.all else few_steps(), chips)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found]))
    else:
        print(f"Triton {triton.__version__}, {MODELS[-1].name}\n")
        print(resource_table([one for one in found if one.model == MODELS[-1].name]))
    wrong = [one for one in found if one.faults]
    for one in wrong:
        print(f"{one.kernel} on sm_{one.chip}, {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(ahead_main())
