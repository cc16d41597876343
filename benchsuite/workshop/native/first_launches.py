"""Which of Triton's kernels a recorded step is the first to launch, asked on a CPU.

CUDA loads no module during a capture, so every kernel must have been launched before it, for the same types, strides
and alignment (its *specialisation*). Here the Triton backend's methods run on CPU tensors and launch nothing: each
launch's specialisation is noted, and the reference gives the results. ``Again`` records as CUDA does: it calls a part a
second time, over the tensors that are kept, and undoes what that wrote. It cannot run with ``TRITON_INTERPRET``.

``python -m benchsuite.workshop.native.first_launches`` prints in JSON what each strategy first launched in a capture,
over half of the pairs of parameters and batches: each of both for every strategy. ``--every`` takes all pairs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,import-untyped,unused-ignore]
from triton.compiler.compiler import make_backend  # type: ignore[import-not-found,import-untyped,unused-ignore]
from triton.runtime import jit  # type: ignore[import-not-found,import-untyped,unused-ignore]

from benchsuite.conformance.guards.tape import result_tensors
from benchsuite.conformance.models import families, tiny
from specdec import Engine, Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.interfaces import OPS
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.packed import Weight
from specdec.runtime import Replay
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton

T = TypeVar("T")

STRATEGIES: Sequence[tuple[str | None, str]] = (
    *((None, "match"), ("ngram", "match"), ("garbage", "match"), ("garbage", "rejection"), ("garbage", "block")),
    *(("oracle(0.8)", "match"), ("draft_model", "match"), ("draft_model", "rejection"), ("medusa", "match")),
    *(("medusa(head_init=random, beam=2)", "tree_rejection"), ("eagle", "match"), ("eagle", "block")),
    *(("tree(beam=2, depth=2)", "match"), ("tree(beam=2, depth=2)", "tree_rejection")),
    ("hybrid(sources='suffix, ngram, eagle')", "match"),
)

PARAMS: Sequence[SamplingParams] = (
    SamplingParams(max_new_tokens=8),
    SamplingParams(max_new_tokens=8, temperature=0.8, top_k=5, repetition_penalty=1.2, logprobs=2),
)


class Launches:
    """The specialisations that were launched so far; ``new`` are those that were first launched while ``recording``."""

    def __init__(self) -> None:
        self.seen, self.new, self.recording = set[tuple[str, str]](), list[str](), False
        self._target = make_backend(GPUTarget("cuda", 90, 32))
        self._binders: dict[Any, Any] = {}

    def note(self, kernel: Any, given: Sequence[Any], options: dict[str, Any]) -> None:
        """Note a launch of a kernel with these arguments."""
        if kernel not in self._binders:
            own = jit.create_function_from_signature(kernel.signature, kernel.params, self._target)
            self._binders[kernel] = own
        _, specialisation, chosen = self._binders[kernel](*given, **options)
        name = kernel.fn.__name__
        key = name, f"{specialisation} {chosen}"
        if self.recording and key not in self.seen:
            self.new.append(name)
        self.seen.add(key)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Launches within are noted and not made."""

        def run(kernel: Any, *given: Any, grid: object, warmup: bool, **options: Any) -> None:
            self.note(kernel, given, options)

        with patch.object(jit.JITFunction, "run", run), patch.object(torch.cuda, "device_of", lambda _: nullcontext()):
            yield


class NotedTriton(Reference):
    """The reference's results for what the Triton backend takes, beside that backend's launches."""

    name, priority, devices = "triton", 50, ("cpu",)

    def __init__(self) -> None:
        self.own = Triton()
        self.own._device = "cpu"

    def takes(self, op: str, *tensors: Weight) -> bool:
        """What Triton takes on its device."""
        return self.own.takes(op, *tensors)


def _beside(op: str) -> Callable[..., Any]:
    def call(self: NotedTriton, *given: Any) -> Any:
        getattr(self.own, op)(*given)
        return getattr(Reference, op)(self, *given)

    return call


for _op in OPS:
    if getattr(Triton, _op) is not getattr(Reference, _op):
        setattr(NotedTriton, _op, _beside(_op))


class Again:
    """Records as ``CudaGraphs``: a part has run before, and is called once more over the tensors that are kept.

    ``state`` are the tensors that stay, which a capture does not write.
    """

    name, runs = "again", False

    def __init__(self, launches: Launches) -> None:
        self.launches, self.state = launches, list[Tensor]()

    def __call__(self, function: Callable[..., T], given: Sequence[object]) -> tuple[T, Replay]:
        """See ``specdec.runtime.Recorder``."""
        before = [tensor.clone() for tensor in self.state]
        self.launches.recording = True
        try:
            result = function(*given)
        finally:
            self.launches.recording = False
            for tensor, old in zip(self.state, before, strict=True):
                tensor.copy_(old)

        def replay() -> None:
            made = result_tensors(function(*given))
            for kept, new in zip(result_tensors(result), made, strict=True):
                if 0 not in kept.stride():
                    kept.copy_(new)

        return result, replay


def engine_state(engine: Engine) -> list[Tensor]:
    """The tensors of an engine that its steps write in place: the arena's and the rows'."""
    stacks = [tensor for stack in engine.arena.stacks for tensor in (stack.keys, stack.values)]
    rows = [tensor for tensor in vars(engine.rows).values() if isinstance(tensor, Tensor)]
    return [*stacks, engine.arena.committed, *rows]


def first_launches(draft: str | None, policy: str, params: SamplingParams, rows: int, dtype: torch.dtype) -> list[str]:
    """Return the names of the kernels that a strategy launches for the first time while a step is recorded."""
    launches = Launches()
    with launches.noted():
        target = ArenaModel(families.build_model("llama", 0, dtype), Ops([NotedTriton(), Reference()]))
        build = Assembly(tiny.registry(), target, catalog.byte_tokenizer(), max_rows=rows, max_length=192)
        recorder = Again(launches)
        engine = build.engine(draft, policy, k=3, recorder=recorder)
        recorder.state = engine_state(engine)
        engine.run([Request(row, prompt, params) for row, prompt in enumerate(tiny.prompts(3))])
    if not launches.seen:
        raise RuntimeError(f"{draft} under {policy} launched no kernel of Triton's; nothing was asked")
    return launches.new


def first_launches_main() -> int:
    """Run the command; returns 1 if any kernel was first launched in a capture, 2 where Triton interprets."""
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        print("TRITON_INTERPRET=1 makes kernels into Python; unset it", file=sys.stderr)
        return 2
    found, batches = {}, ((1, torch.bfloat16), (2, torch.float32))
    for turn, (draft, policy) in enumerate(STRATEGIES):
        for (place, (rows, dtype)), (number, params) in product(enumerate(batches), enumerate(PARAMS)):
            if (turn + place + number) % 2 == 0 or "--every" in sys.argv[1:]:
                name = f"{draft} {policy}, parameters {number}, {rows} rows, {str(dtype).removeprefix('torch.')}"
                found[name] = first_launches(draft, policy, params, rows, dtype)
    print(json.dumps(found, indent=1))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(first_launches_main())
