"""Builds engines over one target from the names of strategies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from specdec.devices import synchronize
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.interfaces import Draft, Env
from specdec.model import ArenaModel
from specdec.registry import Registry
from specdec.request import Request
from specdec.runtime import CudaGraphs, Graphed

T = TypeVar("T")


class Assembly:
    """Builds engines that share a target, its tokenizer and sizes, each with its own arena.

    ``graphs``: on CUDA, they record the parts of their steps and replay them (``specdec.runtime``).

    Example: ``Assembly(Registry(), target, tokenizer, max_rows=1, max_length=256).engine("ngram", k=4)``
    """

    def __init__(
        self,
        registry: Registry,
        target: ArenaModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_rows: int,
        max_length: int,
        seed: int = 0,
        graphs: bool = False,
    ) -> None:
        self.registry, self.target, self.tokenizer = registry, target, tokenizer
        self._env = Env(target, tokenizer, target.ops, max_rows, max_length, 1, seed, self.plain, self._no_draft)
        self._graphs = graphs and target.device.type == "cuda"
        self._replayer: Engine | None = None
        self._replayed: dict[Request, tuple[int, ...]] = {}

    def engine(
        self,
        draft: str | None,
        policy: str = "match",
        controller: str = "fixed",
        k: int | None = None,
        max_rows: int | None = None,
    ) -> Engine:
        """An engine with the named strategies; ``draft=None`` is plain decoding.

        Its ``replayed`` counts the calls of ``Env.plain`` by these strategies. Raises SpecdecError for names, options
        or a K that do not exist or do not fit.
        """
        calls = Counter[str]()

        def plain(request: Request) -> tuple[int, ...]:
            calls["plain"] += 1
            return self.plain(request)

        env = replace(self._env, max_rows=max_rows or self._env.max_rows, plain=plain)
        chosen, controller_s = self._timed(lambda: self.registry.controller(controller, env, k))
        window = replace(env, max_window=chosen.max_k + 1)
        whole = replace(window, draft=lambda text: self.registry.draft(text, whole))
        drafter, draft_s = self._timed(lambda: None if draft is None else self.registry.draft(draft, whole))
        engine = Engine(
            self.target,
            draft=drafter,
            policy=self.registry.policy(policy, whole),
            controller=chosen,
            ops=whole.ops,
            max_rows=whole.max_rows,
            max_length=whole.max_length,
            tokenizer=self.tokenizer,
            replayed=lambda: calls["plain"],
            runtime=Graphed(CudaGraphs(), whole.ops) if self._graphs else None,
        )
        engine.set_up_seconds = {"controller": controller_s, "draft": draft_s}
        return engine

    def _timed(self, build: Callable[[], T]) -> tuple[T, float]:
        """What ``build`` returns, and the seconds that it took on host and device."""
        synchronize(self.target.device)
        start = time.perf_counter()
        built = build()
        synchronize(self.target.device)
        return built, time.perf_counter() - start

    def _no_draft(self, text: str) -> Draft:
        raise SpecdecError(f"the draft {text!r} can be built for an engine only; its window is not known yet")

    def plain(self, request: Request) -> tuple[int, ...]:
        """The tokens that plain decoding emits for a request; decoded alone at the first call, then remembered."""
        request = request.alone()
        if request not in self._replayed:
            if self._replayer is None:
                self._replayer = self.engine(None, k=0, max_rows=1)
            self._replayed[request] = self._replayer.run([request])[0].tokens
        return self._replayed[request]
