"""Hybrids without a model: lookups by rules and drafts by tables, small enough that every outcome is enumerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from benchsuite.conformance.exact.enumerator import Shape
from benchsuite.conformance.exact.table_target import Table, TableDraft
from specdec import Context, Draft, Env, Window
from specdec_plugins.drafts.hybrid import Hybrid
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.lookup import History


class Listed(Draft):
    """Looks up chains by a row's last token: those of ``chains[token]``.

    Example: ``Listed([[1, 2]], [[0], [2]])`` proposes 1 2 after 0, and after 1 both 0 and 2.
    """

    looks_up = True

    def __init__(self, *chains: Sequence[Sequence[int]]) -> None:
        self._chains = chains

    def propose(self, context: Context) -> Window:
        """Nothing: a hybrid calls ``look_up``."""
        return Window.root(context)

    def look_up(self, context: Context, row: int) -> Sequence[Sequence[int]]:
        """The chains, within the row's room."""
        room, last = int(context.max_proposals_host[row]), int(context.history[row, context.length_host[row] - 1])
        return [chain[:room] for chain in self._chains[last]] if room else []


class Behind(Ngram):
    """Finds nothing by itself, and goes on behind others' proposals."""

    def __init__(self) -> None:
        super().__init__(None, n_max=2, n_min=1)  # type: ignore[arg-type]

    def continuations(self, row: int, history: History, limit: int) -> list[list[int]]:
        """Nothing."""
        return []


class Brief(Ngram):
    """The first two tokens of what n-grams find: a lookup that leaves slots to others."""

    def __init__(self, env: Env) -> None:
        super().__init__(env, n_min=1)

    def continuations(self, row: int, history: History, limit: int) -> list[list[int]]:
        """At most two tokens."""
        return super().continuations(row, history, min(limit, 2))


BRIEF = ("draft", "brief", Brief)
"""A registration for an assembly over a tiny target."""


def hybrid_over(*sources: Draft, rows: int = 1, **options: Any) -> Hybrid:
    """Return a hybrid of drafts that are built already, for an engine on the CPU."""
    env: Any = SimpleNamespace(
        draft=lambda name: sources[int(name)], max_rows=rows, target=SimpleNamespace(device=torch.device("cpu"))
    )
    return Hybrid(env, sources=", ".join(map(str, range(len(sources)))), **options)


def hybrid_maker(*lookups: Draft, model_k: int, **options: Any) -> Callable[[Table, Shape, bool], Hybrid]:
    """Return what makes a hybrid of ``lookups`` and of a table's draft, as ``exact_runs.run_distance`` asks for it.

    The table draws the first ``model_k`` slots of a shape, whose size is K.
    """

    def made(distribution: Table, shape: Shape, certain: bool) -> Hybrid:
        drawn, slots = TableDraft(distribution, shape, certain), len(shape.parents) - 1
        return hybrid_over(*lookups, drawn, rows=3, model_k=model_k, slots=slots, **options)

    return made
