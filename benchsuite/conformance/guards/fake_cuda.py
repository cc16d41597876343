"""Steps of the engine on tensors that say they are on a GPU and hold no numbers: what one would refuse or wait for.

torch's fake tensors carry shapes, dtypes and devices through every op. A step that reads a number, mixes devices, or
launches other ops than its neighbour is found on a machine without a GPU; speed and numbers are not.
"""

from __future__ import annotations

import contextlib
import ctypes
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from benchsuite.conformance.guards.snippet import compiled_snippet
from benchsuite.conformance.guards.tape import shares_memory
from benchsuite.conformance.models import families, tiny
from specdec import Engine, Request, SamplingParams, Verdict, Window, catalog, swap
from specdec.assembly import Assembly
from specdec.calibration import Calibration
from specdec.devices import Stopwatch
from specdec.interfaces import Backend
from specdec.lengths import Ks
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.recurrent import state_keepers
from specdec.rows import TAIL
from specdec.trial import ArenaTrial, WatchedAttention, watched_forward
from specdec_kernels.cuda import Cuda
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton
from specdec_plugins import published
from specdec_plugins.heads import files
from specdec_plugins.heads.eagle_head import EagleHead, EagleShape
from specdec_plugins.heads.medusa_heads import MedusaHeads
from specdec_plugins.published.reading import Published

H = TypeVar("H", EagleHead, MedusaHeads)

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
static c10::impl::DeviceGuardImplRegistrar registered(
    c10::DeviceType::DEVICE, new c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::DEVICE>());
"""
"""A build of torch without CUDA, or without MPS, has no guard for its devices, and refuses even a fake tensor there."""

NO_MPS = (torch.float64, torch.complex128)
"""Dtypes that torch refuses on MPS ("the MPS framework doesn't support float64")."""

FREE = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")
"""Ops that make a tensor and launch nothing."""


@cache
def load_guard(device: str) -> None:
    """Compile and load a guard that does nothing for "cuda" or "mps", where torch has none.

    Raises BuildError without a C++ compiler, or with one that fails.
    """
    if (torch.backends.cuda if device == "cuda" else torch.backends.mps).is_built():
        return
    root, text = Path(torch.__file__).parent, GUARD.replace("DEVICE", device.upper())
    flags = ["-std=c++20", f"-I{root}/include", f"-L{root}/lib", "-lc10"]
    what, place = f"a guard of fake {device} tensors", f"{device}-guard-{{}}.so"
    ctypes.CDLL(str(compiled_snippet(what, text, place, flags, made_for=torch.__version__)))


@dataclass
class LaunchLog(TorchDispatchMode):
    """Notes the ops that a GPU would run while ``on``.

    ``stream`` has each one's name and arguments, of a tensor its shape, strides, offset and device, and ``launches``
    counts them. ``total`` counts them also while ``on`` is False: the clock of these runs. ``faults`` counts, with the
    line of ours that asked, copies that make the host wait, and CPU tensors among those of the GPU. ``pinned`` holds
    tensors from and to which copies do not. ``device``: "cuda" or "mps". On MPS a copy waits unless it is asked not to,
    from any memory, and a tensor of float64 raises TypeError.
    """

    on: bool = False
    total: int = 0
    stream: list[tuple[object, ...]] = field(default_factory=list)
    launches: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    pinned: dict[int, Tensor] = field(default_factory=dict)
    device: str = "cuda"

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        made = [out] if isinstance(out, Tensor) else [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        name = str(func._schema.name)
        if self.device == "mps" and any(tensor.dtype in NO_MPS and tensor.device.type == "mps" for tensor in made):
            raise TypeError(f"{name} makes a tensor of {made[0].dtype}, which MPS does not have")
        launched = self._launches(name, func, given, made)
        self.total += launched
        if self.on:
            self._judge(name, given, made, waits=self.device != "mps" or not _asked(func, args, kwargs, "non_blocking"))
            if launched:
                self.stream.append((str(func), *map(_described, leaves)))
                self.launches[name] += 1
        return out

    def kernel(self, name: str, *given: object) -> None:
        """Note a launch of a kernel of ours with these arguments; tensors of it on a CPU are a fault."""
        leaves = tree_leaves(given)
        self.total += 1
        if self.on:
            self.stream.append((name, *map(_described, leaves)))
            self.launches[name] += 1
            if any(isinstance(leaf, Tensor) and leaf.device.type != self.device for leaf in leaves):
                self.fault(f"the kernel {name} is given a tensor on the CPU")

    def _judge(self, name: str, given: Sequence[Tensor], made: Sequence[Tensor], waits: bool) -> None:
        kinds = {tensor.device.type for tensor in given}
        if name in ("aten::to", "aten::_to_copy", "aten::copy_"):  # inference mode does not decompose
            source, result = given[-1], made[0]
            host = source if source.device.type == "cpu" else result
            pinned = any(shares_memory(host, one) for one in self.pinned.values())
            if waits and source.device.type != result.device.type and not pinned:
                self.fault(f"a copy from {source.device.type} to {result.device.type} that waits")
        elif len(kinds) > 1 and any(tensor.device.type == "cpu" and tensor.dim() for tensor in given):
            self.fault(f"{name} of tensors on {' and '.join(sorted(kinds))}")

    def _launches(self, name: str, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
        fresh = any(
            tensor.device.type == self.device
            and tensor.numel()
            and not any(shares_memory(tensor, one) for one in given)
            for tensor in made
        )
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        return name not in FREE and (fresh or (writes and any(tensor.device.type == self.device for tensor in given)))

    def fault(self, what: str) -> None:
        """Count something that a GPU would wait for or refuse, with the line of ours or of a plugin that asked."""
        between = (str(Path(torch.__file__).parent), str(Path(__file__)), str(Path(contextlib.__file__)))
        at = next(frame for frame in reversed(traceback.extract_stack()) if not frame.filename.startswith(between))
        self.faults[f"{what}, at {Path(at.filename).name}:{at.lineno}: {at.line}"] += 1


def _asked(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, name: str) -> object:
    """The argument of an op's call by its name; None if it was not given."""
    place = next((place for place, one in enumerate(func._schema.arguments) if one.name == name), len(args))
    return args[place] if place < len(args) else (kwargs or {}).get(name)


def _described(leaf: Any) -> object:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return tuple(leaf.shape), leaf.stride(), leaf.storage_offset(), str(leaf.device)


@dataclass(frozen=True)
class FakeRun:
    """What some steps did.

    Of each step: ``kinds``, the ids of its requests, its K and its width; its ``streams`` of ops; ``parts``, its
    launches by part (those of ``StepTimes``). Of all steps together: ``launches`` by op. ``faults`` includes those of
    admissions, moves and ends.
    """

    kinds: Sequence[tuple[tuple[int, ...], Ks, int]]
    streams: Sequence[Sequence[tuple[object, ...]]]
    parts: Sequence[Mapping[str, int]]
    launches: Mapping[str, int]
    faults: Mapping[str, int]

    def twins(self) -> Iterator[tuple[int, int]]:
        """Pairs of consecutive steps of one kind, after a third: what a draft does follows from the step before too."""
        for place in range(2, len(self.kinds)):
            if self.kinds[place] == self.kinds[place - 1] == self.kinds[place - 2]:
                yield place - 1, place

    def wrong(self) -> str | None:
        """What a GPU would wait for or refuse, or how two twins part, in words; None if there is nothing."""
        if self.faults:
            fault, times = next(iter(self.faults.items()))
            return f"{fault} ({times} times, {len(self.faults)} such places)"
        for before, after in self.twins():
            one, other = self.streams[before], self.streams[after]
            if one != other:
                shorter = min(len(one), len(other))
                at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), shorter)
                return (
                    f"two steps of {self.kinds[after][2]} slots launch {len(one)} and {len(other)} ops, which part at "
                    f"op {at + 1}, so that neither can be recorded for the other"
                )
        return None


class _Kernel:
    """Stands for a Triton kernel: a launch is noted and computes nothing."""

    def __init__(self, name: str, log: LaunchLog) -> None:
        self._name, self._log = name, log

    def __getitem__(self, grid: object) -> Any:
        return lambda *given, **named: self._log.kernel(self._name, grid, given, named)


@contextmanager
def fake_cuda(kernels: bool = True, device: str = "cuda") -> Iterator[LaunchLog]:
    """Inside it, tensors are fake and ``device``, "cuda" or "mps", exists; to read a number raises
    DataDependentOutputException.

    What cannot be faked is replaced. The stopwatch counts launches, a microsecond each. Kernels of Triton and CUDA are
    noted and compute nothing. What reads numbers of a model to prepare it is left out: the tests that its parts compute
    what our ops do (taken as passed), and the stacking of its weights in place; so are the forwards that ``goodput``
    times before the first step. ``kernels``: Triton's are replaced too.
    """
    load_guard(device)
    with torch.device("cpu"):
        torch.empty(0)  # torch lists the functions that make tensors once: before torch.tensor is another one
    log = LaunchLog(device=device)
    replaced = [*_torch_stands(log), *_our_stands(log), *(_triton_stands(log) if kernels else [])]
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # torch's own deepcopy does
        # A copy of a fake tensor copies its mode, whose weak references would then be freed twice (torch 2.13).
        stack.enter_context(patch.object(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode, create=True))
        for owner, key, value in replaced:
            stack.enter_context(patch.object(owner, key, value))
        stack.enter_context(log)
        yield log


Stand = tuple[object, str, object]
"""An owner, the name of one of its attributes, and what stands there meanwhile."""


def _torch_stands(log: LaunchLog) -> list[Stand]:
    tensor, from_numpy = torch.tensor, torch.from_numpy

    def made(data: Any, *, device: Any = None, **named: Any) -> Tensor:
        place = torch.empty(0).device if device is None else device  # that of a surrounding torch.device(…)
        with torch.device("cpu"):
            found = tensor(data, **named)
        if isinstance(found, FakeTensor):
            found.constant = None  # a GPU's tensor has no number that the host knows
        return found.to(place)

    def faked(array: npt.NDArray[Any]) -> Tensor:
        return torch.empty(array.shape, dtype=from_numpy(array).dtype)

    def synchronize(device: Any = None) -> None:
        if log.on:
            log.fault("a synchronisation")

    def attention(query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        # torch asks for a kernel of the device before it makes a fake, and a build without MPS has none.
        return torch.empty_like(query)

    def pin_memory(unpinned: Tensor, device: Any = None) -> Tensor:
        pinned = unpinned.clone()
        log.pinned[id(pinned)] = pinned
        return pinned

    return [
        (torch, "tensor", made),
        (torch, "from_numpy", faked),
        (torch.cuda, "synchronize", synchronize),
        (torch.mps, "synchronize", synchronize),
        (torch.cuda, "device", nullcontext),
        (torch.cuda, "device_of", nullcontext),
        (torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=0)),
        (torch.cuda, "is_current_stream_capturing", lambda: False),
        (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
        (torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None)),
        (torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=PROCESSORS)),
        (Tensor, "pin_memory", pin_memory),
        *([(torch.nn.functional, "scaled_dot_product_attention", attention)] if log.device == "mps" else []),
    ]


def _our_stands(log: LaunchLog) -> list[Stand]:
    def mark(watch: Stopwatch) -> int:
        watch.marks.append(log.total * LAUNCH_S)
        return len(watch.marks) - 1

    def launch(backend: Cuda, op: str, device: torch.device, *given: Any) -> None:
        log.kernel(op, *(value for value in given if not isinstance(value, ctypes.Array)))

    def offset(module: Any) -> float | None:
        weighs = isinstance(getattr(module, "weight", None), Tensor)
        return 0.0 if weighs and type(module).__name__.endswith("RMSNorm") else None

    def turns(module: nn.Module) -> bool:
        with unset_fake_temporarily(), torch.device("cpu"):
            return TURNS(module)

    def watched(trial: ArenaTrial, model: PreTrainedModel, layers: object) -> WatchedAttention:
        tokens = torch.ones(1, 3, dtype=torch.int64, device=model.device)
        return watched_forward(model, tokens, 0, bool(state_keepers(model)))

    return [
        (Stopwatch, "mark", mark),
        (ArenaTrial, "watched", watched),
        (ArenaTrial, "differs", lambda *arguments: ""),
        (files, "load_eagle", _eagle_head),
        (files, "load_medusa", _medusa_heads),
        (published, "read_published", _published_head),
        (swap, "_stacked", lambda weights: torch.cat([weight.detach() for weight in weights])),
        (swap, "_norm_offset", offset),
        (swap, "_turns", turns),
        (Cuda, "_launch", launch),
        (Calibration, "measure", lambda *arguments: None),
        (Calibration, "forward", lambda *arguments, **options: 100 * LAUNCH_S),
    ]


def _triton_stands(log: LaunchLog) -> list[Stand]:
    if not find_spec("triton"):
        return []
    names = ("triton_decoder", "triton_verify", "triton_window")
    modules = [import_module(f"specdec_kernels.{name}") for name in names]
    return [
        (module, name, _Kernel(name, log))
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "fn") and not name.startswith("_")
    ]


def _eagle_head(name: str, target: ArenaModel) -> tuple[EagleHead, Tensor]:
    config = target.model.config
    heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    shape = EagleShape(config.hidden_size, config.intermediate_size, *heads, eps=1e-5, theta=1e4)
    return _on_target(EagleHead, target, shape), torch.arange(64, device=target.device)


def _medusa_heads(name: str, target: ArenaModel) -> tuple[MedusaHeads, Tensor]:
    sizes = target.model.config.hidden_size, 32, 4, 1e-5
    return _on_target(MedusaHeads, target, *sizes), torch.arange(64, device=target.device)


def _published_head(*given: Any, **named: Any) -> Published[Any]:
    """The head that its files hold, read as ever, but of its tensors only their shapes."""
    with unset_fake_temporarily(), torch.device("cpu"):
        found = READ(*given, **named)
    for module in found.head.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(_shape_of(weight), requires_grad=False))
        for name, held in module.named_buffers(recurse=False):
            setattr(module, name, _shape_of(held))
    return found


def _shape_of(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _on_target(kind: type[H], target: ArenaModel, *sizes: Any) -> H:
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(target.dtype)
    try:
        with target.device:
            return kind(*sizes)
    finally:
        torch.set_default_dtype(dtype)


TURNS, READ = swap._turns, published.read_published

LAUNCH_S = 1e-6
"""Seconds that a launch takes by the clock of these runs."""

PROCESSORS = 132
"""Multiprocessors of the GPU that is played: an H100's or H200's."""


def fake_backends(name: str) -> Backend:
    """Return the backends of a name: ``reference``, ``triton`` over it, or ``gpu``, cuda over both."""
    triton = Triton()
    triton.interpreted, triton._device = False, "cuda"
    backends: dict[str, list[Backend]] = {"reference": [], "triton": [triton], "gpu": [Cuda(), triton]}
    return Ops([*backends[name], Reference()])


def fake_run(
    draft: str | None,
    policy: str = "match",
    controller: str = "fixed",
    *,
    k: int = 4,
    params: SamplingParams | None = None,
    rows: int = 1,
    steps: int = 4,
    enters: bool = False,
    config: PretrainedConfig | None = None,
    backends: str = "reference",
    extra: tuple[tiny.Extra, ...] = (),
    device: str = "cuda",
) -> FakeRun:
    """Take steps of an engine whose tensors are fake, on "cuda" or "mps", over a tiny Llama or ``config``, in bfloat16.

    With ``enters``, the first request ends after three tokens, and another takes its row. What a step reads is made
    up: one proposal is accepted where there is any, and the tokens repeat the prompt, so that lookups go on finding.
    Raises what a GPU would refuse.
    """
    params = params or SamplingParams(max_new_tokens=60)
    with (
        fake_cuda(backends != "reference", device) as log,
        torch.inference_mode(),
        patch.object(Assembly, "plain", lambda *given: TEXT * 20),
    ):
        with torch.device(device):
            own = deepcopy(config) if config else families.CONFIGS["llama"]()  # the model keeps and changes it
            model = AutoModelForCausalLM.from_config(own, dtype=torch.bfloat16)
        registry = tiny.registry(*extra)
        target = ArenaModel(model, fake_backends(backends))
        assembly = Assembly(registry, target, catalog.byte_tokenizer(), max_rows=rows, max_length=192)
        engine = assembly.engine(draft, policy, controller, k if controller == "fixed" else None)
        watched = _Watched(engine, log)
        _script(engine, device)
        log.on = True
        lengths = [*([3] if enters else []), *[params.max_new_tokens] * rows]
        engine.submit(
            [
                Request(number, TEXT * 3 + (1,) + TEXT, replace(params, max_new_tokens=length))
                for number, length in enumerate(lengths)
            ]
        )
        log.stream, log.launches = [], Counter()
        for _ in range(steps):
            engine.step()
        log.on = False
    taken = engine.stats.steps
    times = [vars(engine.stats.times(step)) for step in taken]
    parts = [{name: round(seconds / LAUNCH_S) for name, seconds in each.items()} for each in times]
    kinds = [(*asked, step.width) for asked, step in zip(watched.asked, taken, strict=True)]
    return FakeRun(kinds, watched.streams, parts, dict(log.launches), dict(log.faults))


class _Watched:
    """Notes of each step of an engine its requests and its K, and its stream of ops up to its read."""

    def __init__(self, engine: Engine, log: LaunchLog) -> None:
        self.asked: list[tuple[tuple[int, ...], Ks]] = []
        self.streams: list[list[tuple[object, ...]]] = []
        leave, next_k = engine.queue.leave, engine._next_k

        def next_one() -> Ks:
            self.asked.append((tuple(live.request.id for live in engine.rows.live), next_k()))
            return self.asked[-1][1]

        def left() -> None:
            self.streams.append(log.stream)
            log.stream = []  # of ends, moves and admissions, which no neighbour has
            leave()
            log.stream = []

        object.__setattr__(engine.queue, "leave", left)
        object.__setattr__(engine, "_next_k", next_one)


TEXT = (7,) * 5
"""What prompts and made-up outputs repeat: lookups then always find as many proposals as they may make."""


def _script(engine: Engine, device: str) -> None:
    """Make up what the engine's steps read, and count the reads; a tensor elsewhere than on ``device`` is refused."""
    extend, depths = engine.rows.extend, [0]

    def extended(window: Window, verdict: Verdict, ops: Backend) -> Tensor:
        packed = extend(window, verdict, ops)
        depths[0] = packed.shape[1] - TAIL
        return packed

    def read(packed: Tensor) -> npt.NDArray[np.int64]:
        assert packed.device.type == device, f"the step's read is of a tensor on {packed.device.type}"
        rows, length = packed.shape
        depth = depths[0]
        tokens = [TEXT[step % len(TEXT)] for step in range(depth)]
        more = [0] * (length - depth - TAIL)  # the bits of a draft's confidence, which is then 0
        engine.stats.counts["host_reads"] += 1
        return np.array([[*tokens, min(1, depth - 1), depth - 1, depth - 1, 0, *more]] * rows)

    object.__setattr__(engine.rows, "extend", extended)
    object.__setattr__(engine, "read", read)
