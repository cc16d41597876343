"""Sources of outputs: they repeat a decoding, and return the logits from which a token was drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from specdec.engine import Engine
from specdec.interfaces import Controller
from specdec.lengths import Ks
from specdec.messages import Context, Verdict, Window
from specdec.request import Request
from specdec.stats import RowStats, Stats

Tokens = tuple[int, ...]


class TokenSource(Protocol):
    """Decodes requests, with the same result each time."""

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Decode requests; return their outputs in the given order."""

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Return raw logits [V] from which output token ``index`` of the request with id ``request`` was drawn.

        Runs the same requests again; None if the run ends before.
        """


class Recorded(Controller):
    """The K of each step of an earlier run, then 0: a run that is repeated takes the same windows.

    Where a draft heeded prices, which follow the clock, K of a row is as many as it proposed.

    Example: ``Recorded(engine.stats, engine.controller.max_k)``
    """

    def __init__(self, run: Stats, most: int) -> None:
        self._most, self._chosen = most, run.chosen
        if run.heeds_price:
            self._chosen = [tuple(row.proposed for row in step.each) for step in run.steps]

    @property
    def max_k(self) -> int:
        """The largest K of the controller that chose."""
        return self._most

    def next_k(self, stats: Stats) -> Ks:
        """The K that was chosen for this step."""
        step = len(stats.steps)
        return self._chosen[step] if step < len(self._chosen) else 0


class Always(Controller):
    """The same K in every step."""

    def __init__(self, k: int) -> None:
        self._k = k

    @property
    def max_k(self) -> int:
        """The constant K."""
        return self._k

    def next_k(self, stats: Stats) -> int:
        """Return the constant K."""
        return self._k


class EachRow(Controller):
    """A K for each row, from what is known of its request.

    Example: ``EachRow(4, lambda row: row.request % 5)``
    """

    def __init__(self, most: int, k_of: Callable[[RowStats], int]) -> None:
        self._most, self._k_of = most, k_of

    @property
    def max_k(self) -> int:
        """The largest K that may be asked for."""
        return self._most

    def next_k(self, stats: Stats) -> list[int]:
        """Return the K of each row."""
        return [self._k_of(row) for row in stats.rows]


class EngineSource:
    """An engine as a source of tokens. It repeats its last run of some requests with the K that was chosen then.

    Example: ``EngineSource(assembly.engine("ngram", k=4)).tokens([Request(0, prompt)])``
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._runs: dict[tuple[Request, ...], Stats] = {}

    def _remember(self, requests: Sequence[Request]) -> None:
        """Keep the engine's last run, which was of ``requests``."""
        self._runs[tuple(requests)] = self.engine.stats

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Run the engine; return the outputs in request order."""
        done = self.engine.run(requests)
        self._remember(requests)
        return [completion.tokens for completion in done]

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Run again with the engine's tracer and return one row of logits, float32 [V]; None if the run ends before.

        A controller that reads the clock would choose other windows, whose logits are rounded otherwise: where the
        requests have been run, the K of that run are taken.
        """
        prompt = {r.id: len(r.prompt) for r in requests}[request]
        found: list[Tensor] = []

        def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
            for row, live in enumerate(context.request.tolist()):
                depth = index - (int(context.length_host[row]) - prompt)
                if live == request and 0 <= depth <= int(verdict.num_accepted[row]):
                    found.append(logits[row, verdict.path[row, depth]].float().clone())

        own, run = self.engine.controller, self._runs.get(tuple(requests))
        self.engine.controller = own if run is None else Recorded(run, own.max_k)
        self.engine.trace = keep
        try:
            self.engine.run(requests)
        finally:
            self.engine.trace, self.engine.controller = None, own
        return found[0] if found else None
