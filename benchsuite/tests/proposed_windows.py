"""What a draft proposes in a run of several requests."""

from __future__ import annotations

from torch import Tensor

from benchsuite.conformance.models.tiny import ask, requests
from specdec import Context, Engine, SamplingParams, Verdict, Window


def proposed_windows(engine: Engine, asked: list[int], params: SamplingParams) -> list[tuple[Tensor, Window]]:
    """Return (tokens of the row so far, its window) for every row of every step with proposals, of six requests.

    K follows ``asked``.
    """
    found: list[tuple[Tensor, Window]] = []

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in range(context.rows):
            width = int(window.width[row])
            if width > 1:
                tokens, parents = window.tokens[row : row + 1, :width], window.parents[row : row + 1, :width]
                text = context.tokens[row, : context.length_host[row]].clone()
                found.append((text, Window(tokens, parents, window.width[row : row + 1])))

    ask(engine, asked * 60)
    engine.trace = keep
    engine.run(requests(params, count=6))
    return found
