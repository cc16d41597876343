"""Builds engines over one target from the names of strategies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from specdec.calibration import Calibration
from specdec.devices import records, synchronize
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.exact import WIDTHS, require_exact
from specdec.interfaces import Draft, Env
from specdec.model import ArenaModel
from specdec.ranks import RankZeroDecides, joined_ranks
from specdec.registry import Registry
from specdec.request import Request
from specdec.runtime import CudaGraphs, Eager, Graphed, Recorder

T = TypeVar("T")


class Assembly:
    """Builds engines that share a target, its tokenizer and sizes, each with its own arena.

    ``graphs``: where it is possible, they record the parts of their steps and replay them (``specdec.runtime``).
    ``exact``: windows of every width give the same bits; what cannot be proved to is refused (``specdec.exact``).
    ``calibration``: what the target's forwards cost; by default measured as plugins ask for it.

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
        exact: bool = False,
        calibration: Calibration | None = None,
    ) -> None:
        self.registry, self.target, self.tokenizer = registry, target, tokenizer
        self.calibration = calibration or Calibration(target)
        self._env = Env(
            target,
            tokenizer,
            target.ops,
            max_rows,
            max_length,
            1,
            seed,
            self.plain,
            self._no_draft,
            Eager(),
            self.calibration,
        )
        self.max_length = max_length
        # Collective calls are never captured here.
        self._graphs = graphs and records(target.device.type) and target.sharding is None
        self._exact, self._proved = exact, set[tuple[int, int]]()
        self._replayer: Engine | None = None
        self._replayed: dict[Request, tuple[int, ...]] = {}

    def engine(
        self,
        draft: str | None,
        policy: str = "match",
        controller: str = "fixed",
        k: int | None = None,
        max_rows: int | None = None,
        eager: bool = False,
        recorder: Recorder | None = None,
    ) -> Engine:
        """An engine with the named strategies; ``draft=None`` is plain decoding. ``eager``: it records nothing.

        ``recorder`` records the parts of its steps in place of CUDA's graphs.
        Its ``replayed`` counts the calls of ``Env.plain`` by these strategies. Raises SpecdecError for names, options
        or a K that do not exist or do not fit, and if it must be exact and is not.
        """
        calls = Counter[str]()

        def plain(request: Request) -> tuple[int, ...]:
            calls["plain"] += 1
            return self.plain(request)

        recorder = recorder or (CudaGraphs() if self._graphs and not eager else None)
        runtime = Graphed(recorder, self.target.ops) if recorder else Eager()
        env = replace(self._env, max_rows=max_rows or self._env.max_rows, plain=plain, runtime=runtime)
        chosen, controller_s = self._timed(lambda: self.registry.controller(controller, env, k))
        ranks = joined_ranks() if self.target.sharding else None
        if ranks and not chosen.deterministic:
            chosen = RankZeroDecides(chosen, ranks)
        window = replace(env, max_window=chosen.max_k + 1, confidence=chosen.reads_confidence)
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
            runtime=runtime,
        )
        engine.set_up_seconds = {"controller": controller_s, "draft": draft_s}
        if self._exact:
            self._prove(engine, draft)
        return engine

    def _prove(self, engine: Engine, draft: str | None) -> None:
        """Refuse an engine that is not exact; one proof for all engines of the same sizes."""
        if engine.draft is not None and engine.draft.branches:
            raise SpecdecError(
                f"the draft {draft!r} proposes trees, whose nodes attend to cells in another order than single tokens "
                "do, so that sums are rounded otherwise; exact needs chains: choose a draft that proposes them, or "
                "leave out exact (--specdec-exact)"
            )
        sizes = engine.max_rows, max(engine.max_window, *WIDTHS)
        if sizes not in self._proved:
            require_exact(self.target, *sizes)
            self._proved.add(sizes)
        engine.exact = True

    def _timed(self, build: Callable[[], T]) -> tuple[T, float]:
        """What ``build`` returns, and the seconds that it took on host and device."""
        synchronize(self.target.device)
        start = time.perf_counter()
        built = build()
        synchronize(self.target.device)
        return built, time.perf_counter() - start

    def _no_draft(self, text: str) -> Draft:
        raise SpecdecError(f"the draft {text!r} can be built for an engine only; its window is not known yet")

    def wipe(self) -> None:
        """Set the cells of the engine that decodes plainly to zero (``Arena.wipe``)."""
        if self._replayer:
            self._replayer.arena.wipe()

    def plain(self, request: Request) -> tuple[int, ...]:
        """The tokens that plain decoding emits for a request; decoded alone at the first call, then remembered."""
        request = request.alone()
        if request not in self._replayed:
            if self._replayer is None:
                self._replayer = self.engine(None, k=0, max_rows=1)
            self._replayed[request] = self._replayer.run([request])[0].tokens
        return self._replayed[request]
