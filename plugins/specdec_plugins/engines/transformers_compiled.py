"""transformers_compiled: transformers' ``generate`` over a static cache, its decoding forward compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import CompileConfig, StaticCache

from specdec import Generation, PeerEnv, Request, hookimpl
from specdec.peer import PeerFactory
from specdec_plugins.engines.transformers import Transformers

MOST_GRAPHS = 256
"""Compiled forms of the forward that may be kept in a process: torch counts those of all models and lengths together,
and its own limit of 8 is for functions that should not be compiled at all."""


def _may_compile() -> AbstractContextManager[None]:
    limits: Any = torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS, accumulated_recompile_limit=MOST_GRAPHS)
    return cast(AbstractContextManager[None], limits)


def _skipped_graphs() -> int:
    """How often this process's compiled code ran without the CUDA graph that its mode asks for."""
    return int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])


class TransformersCompiled(Transformers):
    """``generate`` over one static cache of ``max_length`` tokens, its decoding forward compiled by ``torch.compile``.

    On CUDA the mode is ``reduce-overhead``, which records graphs, elsewhere ``default``; prefill is never compiled, as
    in transformers. Nothing is compiled in a run that is timed: ``warm_up`` compiles, and a request for which something
    else must be compiled (a sliding window that fills up) is decoded again. All of this is booked as set-up. A forward
    that cannot be compiled as one graph raises torch's error.

    Source: huggingface/transformers, docs/source/en/llm_optims.md.
    """

    reference = "transformers"

    def __init__(self, env: PeerEnv) -> None:
        self._load(env, {})
        self.set_up_seconds["compile"], self._skipped = 0.0, 0
        self._mode = "reduce-overhead" if self._model.device.type == "cuda" else "default"
        self._config = CompileConfig(fullgraph=True, mode=self._mode)
        self._config._compile_all_devices = True  # without it transformers compiles on accelerators alone
        # Another cache for each request would have other addresses, for which graphs would be recorded again.
        self._cache = StaticCache(config=self._model.config, max_cache_len=env.max_length)

    @classmethod
    def check_options(cls, **options: object) -> None:
        """There are none."""

    def _given(self) -> dict[str, Any]:
        self._cache.reset()
        return {"compile_config": self._config, "past_key_values": self._cache}

    def warm_up(self, first: Request) -> None:
        """Compile the decoding forward."""
        self._compile([first])

    def _compile(self, requests: Sequence[Request]) -> None:
        start, skipped = time.perf_counter(), _skipped_graphs()
        with _may_compile():
            super().generate(requests)
        self._skipped += _skipped_graphs() - skipped
        self.set_up_seconds["compile"] += time.perf_counter() - start

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one request, as ``transformers`` does; again, if something had to be compiled."""
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                return super().generate(requests)
        except RuntimeError:
            self._compile(requests)  # where the error was another one, it is raised here
        with torch.compiler.set_stance("fail_on_recompile"):
            return super().generate(requests)

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        """As ``transformers``; what has to be compiled for it is compiled."""
        with _may_compile():
            return super().logits_at(request, index)

    def conditions(self) -> dict[str, str]:
        """The model's dtype, and as ``compile`` the mode of torch.compile, with the CUDA graphs that it skipped."""
        skipped = f", {self._skipped} CUDA graphs skipped" * bool(self._skipped)
        return {**super().conditions(), "compile": self._mode + skipped}

    def described(self) -> str:
        """Version, cache, attention, dtype, mode."""
        return (
            f"transformers {transformers.__version__} generate: static cache, "
            f"{self._model.config._attn_implementation} attention, {self.conditions()['dtype']}, compiled by "
            f"torch.compile, mode {self.conditions()['compile']}"
        )


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``transformers_compiled``."""
    register("transformers_compiled", TransformersCompiled)
