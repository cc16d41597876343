"""Sources of outputs: they repeat a decoding, and return the logits from which a token was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specdec.engine import Engine
from specdec.messages import Context, Verdict, Window
from specdec.request import Request

Tokens = tuple[int, ...]


class TokenSource(Protocol):
    """Decodes requests, with the same result each time."""

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Decode requests; return their outputs in the given order."""

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Return raw logits [V] from which output token ``index`` of the request with id ``request`` was drawn.

        Runs the same requests again; None if the run ends before.
        """


class EngineSource:
    """An engine as a source of tokens.

    Example: ``EngineSource(assembly.engine("ngram", k=4)).tokens([Request(0, prompt)])``
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Run the engine; return the outputs in request order."""
        return [completion.tokens for completion in self.engine.run(requests)]

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Run again with the engine's tracer and return one row of logits, float32 [V]; None if the run ends before."""
        prompt = {r.id: len(r.prompt) for r in requests}[request]
        found: list[Tensor] = []

        def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
            for row, live in enumerate(context.request.tolist()):
                depth = index - (int(context.length_host[row]) - prompt)
                if live == request and 0 <= depth <= int(verdict.num_accepted[row]):
                    found.append(logits[row, verdict.path[row, depth]].float().clone())

        self.engine.trace = keep
        try:
            self.engine.run(requests)
        finally:
            self.engine.trace = None
        return found[0] if found else None
