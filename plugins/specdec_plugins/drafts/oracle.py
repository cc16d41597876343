"""oracle: the target's own output, with a chosen acceptance rate; shows the upper bound of the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Annotated

from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.schedule import schedule_of

RATE = 0.8
"""The rate of an oracle that is given nothing."""


class Oracle(Draft):
    """Proposes, with a chosen probability, the token that plain decoding emits, else a wrong one.

    The acceptance is chosen by one of four options. ``rate``: that of each proposal given that those before it were
    accepted; accepted / proposed is lower. ``rates=0.7-0.5-0.3``: the same for each position of a window.
    ``histogram=0.3-0.3-0.2-0.2``: the probabilities of 0, 1, … K accepted proposals. ``length=2.6``: the mean tokens of
    a step, by the schedule of least variance, as vLLM's ``synthetic_acceptance_length``: one or two proposals are
    right. Where a row may propose less than K, what is right beyond that is cut off.

    Noise keyed with (seed, request, i) decides whether the proposal of the text's token i is right. After the output of
    a row differs from plain decoding's (a sampled row under a policy that is not exact), the row gets no more
    proposals.

    With ``cost``, another draft proposes too at every step, and its chains are thrown away: the speed is then that of a
    draft that takes as long, with the chosen acceptance. That draft is told that its own proposals were accepted
    as far as the oracle's were; it then keeps what it would have kept, of other tokens.

    Example: ``oracle(0.8, cost='draft_model(layers=3)')``

    Source: this project; an upper bound and a control.
    """

    def __init__(
        self,
        env: Env,
        rate: Annotated[
            float | None, "chance that a proposal is right, given those before it; 0.8 if not given"
        ] = None,
        cost: Annotated[str, "a draft of chains whose time is spent and whose proposals are not used"] = "",
        length: Annotated[float | None, "in place of rate: mean tokens of a step, of least variance"] = None,
        rates: Annotated[str, "in place of rate: one for each position, as 0.7-0.5-0.3"] = "",
        histogram: Annotated[str, "in place of rate: probabilities of 0, 1, … K accepted, as 0.5-0.3-0.2"] = "",
    ) -> None:
        chosen = (rate, length, rates, histogram) != (None, None, "", "")
        self._env = env
        self._rates = schedule_of(env.max_window - 1, rate if chosen else RATE, length, rates, histogram).rates
        self._cost = env.draft(cost) if cost else None
        self._spent: Window | None = None  # what the cost has proposed in this step
        if self._cost is not None:
            if self._cost.branches:
                raise SpecdecError(f"the cost {cost!r} of oracle proposes trees; expected a draft of chains")
            self.needs_hidden, self.learns = self._cost.needs_hidden, self._cost.learns
            self.hidden_layers, self.needs_logits = self._cost.hidden_layers, self._cost.needs_logits
            self.weight_bytes = self._cost.weight_bytes
        self.small_ops = self._cost is None or self._cost.small_ops
        self._scripts: dict[int, tuple[int, ...]] = {}
        self._starts: dict[int, int] = {}
        self._requests: dict[int, Request] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Look up what plain decoding emits for the request."""
        self._requests[row], self._starts[row] = request, len(request.prompt)
        self._scripts[row] = self._env.plain(request)
        if self._cost:
            self._cost.admit(row, request, prompt)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """The cost's row is free."""
        if self._cost:
            self._cost.release(row, tokens)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move what is known of the request, and the cost's row."""
        self._requests[row], self._starts[row] = request, self._starts[source]
        self._scripts[row] = self._scripts[source]
        if self._cost:
            self._cost.move(source, row, request, tokens)

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """The cost sees the prompt's hidden states."""
        if self._cost:
            self._cost.prefilled(row, tokens, start, hidden)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """The cost observes the verdict as one of its own window, where that is as wide as the oracle's."""
        if self._cost:
            spent = self._spent if own else None
            same = spent is not None and spent.tokens.shape == window.tokens.shape
            self._cost.observe(spent if spent is not None and same else window, verdict, hidden, same)

    def forget(self) -> None:
        """The cost forgets."""
        if self._cost:
            self._cost.forget()

    def info(self) -> Mapping[str, int]:
        """The cost's counters."""
        return self._cost.info() if self._cost else {}

    def propose(self, context: Context) -> Window:
        """Tokens of the stored output from the current position on, some of them replaced by wrong tokens."""
        if self._cost:
            self._spent = self._cost.propose(context)
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
            tokens.append(right if coin < self._rates[index - emitted] else (right + 1) % self._env.target.vocabulary)
        return tokens


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``oracle``."""
    register("oracle", Oracle)
