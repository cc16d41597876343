"""vllm: vLLM offline, on the target's files."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from typing import Annotated, Any

import psutil
import torch

from specdec import DraftCounts, Generation, Peer, PeerEnv, Request, SamplingParams, SpecdecError, catalog, hookimpl
from specdec.devices import Stopwatch
from specdec.peer import PeerFactory, absent, refuse_params

PARAMS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_new_tokens",
)
"""Sampling parameters that vLLM has with our meaning; its bad words are texts."""

Memory = Annotated[
    float | None, "share of the device's memory that vLLM may take; None: 0.9 of a GPU, on a CPU what the run needs"
]
Eager = Annotated[bool, "True: nothing is compiled or captured, enforce_eager"]


LEAST_CACHE = 2**28
"""Bytes of vLLM's cache on a CPU at least: it keeps blocks for itself, and rounds every length up to whole ones."""

DRAFTS_TOO = 3
"""The cache's room on a CPU, in times of the target's keys and values: those of a draft model, and rounding."""


LOOK, LONGEST_LOOP = 0.2, 5.0
"""Seconds of one look at vLLM's processes, and after which they are looked at no more."""


class Vllm(Peer):
    """vLLM's ``LLM``, whose engine is stepped here, so that tokens are timed as they arrive. Several requests at once.

    Prefix caching is off: nothing is kept between prompts. Its kernels round in their own way, and it returns no raw
    logits, so that its tokens are compared with plain's and not judged.

    Source: vllm-project/vllm, vllm/entrypoints/llm.py, examples/offline_inference/llm_engine_example.py.
    """

    batches = own_arithmetic = True

    def __init__(self, env: PeerEnv, memory: Memory = None, eager: Eager = False) -> None:
        self._load(env, memory, eager)

    @classmethod
    def check_options(cls, **options: object) -> None:
        """A share or None, and a truth value."""
        memory, eager = options["memory"], options["eager"]
        known = memory is None or (isinstance(memory, int | float) and not isinstance(memory, bool) and 0 < memory <= 1)
        if not known:
            raise SpecdecError(f"memory of the peer vllm is {memory!r}; expected a share, more than 0 and at most 1")
        if not isinstance(eager, bool):
            raise SpecdecError(f"eager of the peer vllm is {eager!r}; expected True or False")

    @classmethod
    def missing(cls) -> str | None:
        """Whether vLLM is installed."""
        return absent("vllm", "vllm")

    def check_params(self, params: SamplingParams) -> None:
        """Refuse what vLLM lacks."""
        refuse_params("vllm", params, PARAMS)

    def _load(self, env: PeerEnv, memory: float | None, eager: bool, **more: Any) -> None:
        """Load the model; ``more``: further arguments of vLLM's ``LLM``."""
        self._module: Any = import_module("vllm")
        self._dtype, self._eager = str(env.dtype).removeprefix("torch."), eager
        start = time.perf_counter()
        self._llm: Any = self._module.LLM(
            model=env.files(),
            dtype=self._dtype,
            max_model_len=env.max_length,
            max_num_seqs=env.max_rows,
            enable_prefix_caching=False,
            enforce_eager=eager,
            **_room(env, memory),
            **more,
        )
        self.set_up_seconds = {"load": time.perf_counter() - start}
        self._names = count()

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode all requests at once, step by step; the tokens of one step are one emission of their request.

        A forward of the target gives every request of its batch a token at least, so that a request has as many
        forwards as emissions.
        """
        if self._llm is None:
            raise SpecdecError("this peer of vLLM is closed; build another")
        engine, watch = self._llm.llm_engine, Stopwatch(torch.device("cpu"))  # a step returns tokens on the host
        names = [str(next(self._names)) for _ in requests]
        tokens: dict[str, list[int]] = {name: [] for name in names}
        arrived: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        counts: dict[str, DraftCounts | None] = {}
        start = watch.mark()
        for name, request in zip(names, requests, strict=True):
            engine.add_request(name, {"prompt_token_ids": list(request.prompt)}, self._params(request))
        while engine.has_unfinished_requests():
            step = engine.step()
            mark = watch.mark()
            for output in step:
                found = list(output.outputs[0].token_ids)  # all so far
                counts[output.request_id] = _counts(output.outputs[0])
                new = len(found) - len(tokens[output.request_id])
                tokens[output.request_id] = found
                if new:
                    arrived[output.request_id].append((mark, new))
        _wait_for_idle_workers()
        return [
            Generation(
                tuple(tokens[name]),
                tuple((watch.seconds(start, mark), new) for mark, new in arrived[name]),
                watch.seconds(start, arrived[name][-1][0]) if arrived[name] else 0.0,
                max(len(arrived[name]) - 1, 0),
                counts=counts.get(name),
            )
            for name in names
        ]

    def _params(self, request: Request) -> Any:
        params = request.params
        sampled = {"seed": params.seed + request.id} if params.temperature > 0 else {}
        return self._module.SamplingParams(
            max_tokens=params.max_new_tokens,
            min_tokens=params.min_new_tokens,
            temperature=params.temperature,
            top_k=params.top_k or -1,
            top_p=params.top_p,
            min_p=params.min_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            logit_bias=dict(params.bias) or None,
            stop_token_ids=list(params.eos),
            ignore_eos=True,  # only the request ends an output, not the model's config
            detokenize=False,
            **sampled,
        )

    def conditions(self) -> dict[str, str]:
        """The dtype, and whether vLLM compiles."""
        return {"dtype": self._dtype, "compile": "no" if self._eager else "by vLLM"}

    def described(self) -> str:
        """Version, dtype, compiling."""
        compiled = "not compiled" if self._eager else "compiled and captured by vLLM"
        return f"vLLM {self._module.__version__}: {self._dtype}, {compiled}, no prefix caching"

    def close(self) -> None:
        """Let go of the engine and collect it."""
        self._llm = None
        gc.collect()


def _room(env: PeerEnv, memory: float | None) -> dict[str, Any]:
    """How much memory vLLM may take. On a CPU a share would be of all memory of the machine, which others use too."""
    if memory is not None or env.device.type != "cpu":
        return {"gpu_memory_utilization": 0.9 if memory is None else memory}
    row = catalog.sizes(env.target, catalog.read_config(env.target), env.dtype).row(env.max_length, 1)
    return {"kv_cache_memory_bytes": max(LEAST_CACHE, DRAFTS_TOO * row * env.max_rows)}


def _wait_for_idle_workers() -> None:
    """Wait, after all that is timed, until vLLM's processes are idle: a worker looks for its next step in a loop, for a
    second after the last one, and would slow down what runs next."""
    end = time.monotonic() + LONGEST_LOOP
    spent = _worked()
    while spent is not None and time.monotonic() < end:
        time.sleep(LOOK)
        before, spent = spent, _worked()
        if spent is None or spent - before < 0.1 * LOOK:
            return


def _worked() -> float | None:
    """The processor seconds of all processes below this one; None if there are none."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            found.append(times.user + times.system)
    return sum(found) if found else None


def _counts(output: Any) -> DraftCounts | None:
    """vLLM's counts of a request by its steps, which come with the last of its tokens."""
    found = getattr(output, "spec_decode_metrics", None)
    if found is None:
        return None
    return DraftCounts.of_steps(zip(found.per_step_drafted, found.per_step_accepted, strict=True))


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``vllm``."""
    register("vllm", Vllm)
