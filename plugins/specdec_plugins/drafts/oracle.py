"""oracle: the target's own output, with a chosen acceptance rate; shows the upper bound of the engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated

from specdec import Context, Draft, Request, SpecdecError, Window, hookimpl
from specdec.interfaces import DraftFactory, Env


class Oracle(Draft):
    """Proposes, with probability ``rate``, the token that plain decoding emits, else a wrong one.

    Noise keyed with (seed, request, i) decides whether the proposal at position i is right, so ``rate`` is the
    acceptance rate of each proposal given that those before it were accepted; accepted / proposed is lower. After the
    output of a row differs from plain decoding's (a sampled row under a policy that is not exact), the row gets no
    more proposals.

    Source: this project; an upper bound and a control.
    """

    def __init__(
        self, env: Env, rate: Annotated[float, "chance that a proposal is right, given those before it"] = 0.8
    ) -> None:
        if not 0 <= rate <= 1:
            raise SpecdecError(f"rate is {rate!r}; expected a probability from 0 to 1")
        self._env, self._rate = env, rate
        self._scripts: dict[int, tuple[int, ...]] = {}
        self._starts: dict[int, int] = {}
        self._requests: dict[int, Request] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Look up what plain decoding emits for the request."""
        self._requests[row], self._starts[row] = request, len(request.prompt)
        self._scripts[row] = self._env.plain(request)

    def propose(self, context: Context) -> Window:
        """Tokens of the stored output from the current position on, some of them replaced by wrong tokens."""
        return Window.ragged(context, [self._follow(context, row) for row in range(context.rows)])

    def _follow(self, context: Context, row: int) -> list[int]:
        script, start, request = self._scripts[row], self._starts[row], self._requests[row]
        emitted = int(context.length_host[row]) - start
        if tuple(context.history[row, start : start + emitted]) != script[:emitted]:
            return []
        tokens = []
        for index in range(emitted, min(emitted + int(context.max_proposals_host[row]), len(script))):
            coin = random.Random(f"{self._env.seed} {request.params.seed} {request.id} {start + index}").random()
            right = script[index]
            tokens.append(right if coin < self._rate else (right + 1) % self._env.target.vocabulary)
        return tokens


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``oracle``."""
    register("oracle", Oracle)
