"""The live rows: the state of each request, on the device and on the host.

Live rows are 0 … b - 1. The step itself writes the device side; the host side is updated from the step's one
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec.devices import uploaded
from specdec.ledger import Ledger
from specdec.lengths import Ks, Price
from specdec.logprobs import TokenLogprobs, unpack
from specdec.messages import Context, Verdict, Window
from specdec.processors import StackedParams
from specdec.request import Request
from specdec.stats import RowStats
from specdec.stops import FinishReason, StopWatcher

if TYPE_CHECKING:
    from specdec.interfaces import Backend

TAIL = 4
"""How many numbers follow a row's emitted tokens in the step's read."""

Kind = Literal["accepted", "recovered", "bonus", "plain"]


@dataclass
class Live:
    """One request in a row: its stop watcher, the kind and time of each emitted token, the time of its submission.

    ``logprobs`` stay empty unless the request asks for them; ``counts`` is what controllers see of it.
    """

    request: Request
    limit: int  # largest number of tokens of prompt and output together
    watcher: StopWatcher
    tokens: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    submitted: float = 0.0
    prefill: tuple[int, int] = (0, 0)  # stopwatch marks of its begin and end
    finish: FinishReason | None = None
    counts: RowStats = field(init=False)

    def __post_init__(self) -> None:
        self.counts = RowStats(self.request.id)


class Rows:
    """State of up to R rows: tokens [R, S], lengths, parameters, on the device and (history) on the host."""

    def __init__(self, max_rows: int, max_tokens: int, vocabulary: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        self.tokens, self.length, self.request = zeros(max_rows, max_tokens), zeros(max_rows), zeros(max_rows)
        self.limit, self._room = zeros(max_rows), zeros(max_rows)
        self.ledger = Ledger(max_rows, vocabulary, device)
        self.history = np.zeros((max_rows, max_tokens), dtype=np.int64)
        self.length_host = np.zeros(max_rows, dtype=np.int64)
        self.limit_host = np.zeros(max_rows, dtype=np.int64)
        self.live: list[Live] = []
        self._stacked: StackedParams | None = None  # of the live rows; None after these have changed
        self.most_logprobs: int | None = None  # alternatives that a row of the last context wants; None: none wants any
        self.allocations = 5 + self.ledger.allocations

    def admit(self, row: int, live: Live) -> None:
        """Fill a row's state from a request; ``row`` is a freed row or the first row after the live rows."""
        prompt = live.request.prompt
        self.history[row, : len(prompt)] = prompt
        self.length_host[row], self.limit_host[row] = len(prompt), live.limit
        self.tokens[row, : len(prompt)] = uploaded(self.tokens.device, self.history[row, : len(prompt)])[0]
        # An assignment of a number would copy it from the host, and wait; a fill is a launch.
        self.length[row].fill_(len(prompt))
        self.limit[row].fill_(live.limit)
        self.request[row].fill_(live.request.id)
        self.ledger.admit(row, live.request)
        self.live[row : row + 1] = [live]
        self._stacked = None

    def move(self, source: int, row: int) -> None:
        """Copy the last live row, ``source``, onto a freed row."""
        for tensor in (self.tokens, self.length, self.request, self.limit):
            tensor[row] = tensor[source]
        for array in (self.history, self.length_host, self.limit_host):
            array[row] = array[source]
        self.ledger.move(source, row)
        self.live[row] = self.live[source]
        self._stacked = None

    def drop(self) -> None:
        """The last live row is free."""
        self.live.pop()
        self._stacked = None

    def clear(self) -> None:
        """All rows are free."""
        self.live = []
        self._stacked = None

    def params(self) -> StackedParams:
        """The parameters of the live rows, as views."""
        if self._stacked is None:
            b, params = len(self.live), [live.request.params for live in self.live]
            self._stacked = self.ledger.stacked(params, self.tokens[:b], self.length[:b])
            self.most_logprobs = max((p.logprobs for p in params if p.logprobs is not None), default=None)
        return self._stacked

    def counted(self) -> tuple[RowStats, ...]:
        """What controllers see of the live rows, with their lengths and room of now."""
        for row, live in enumerate(self.live):
            live.counts.length = int(self.length_host[row])
            live.counts.room = int(self.limit_host[row]) - live.counts.length - 1
        return tuple(live.counts for live in self.live)

    def context(self, k: Ks, ops: Backend, coupled: bool, price: Price | None = None) -> Context:
        """The step's context: views of the live rows. K is limited to each row's budget and room."""
        b = len(self.live)
        # A step emits at most one token more than it proposes.
        room = torch.sub(self.limit[:b], self.length[:b], out=self._room[:b]).sub_(1)
        room_host = self.limit_host[:b] - self.length_host[:b] - 1
        if isinstance(k, int):
            room.clamp_(max=k)
        else:
            torch.minimum(room, uploaded(room.device, np.array(k, dtype=np.int64))[0], out=room)
        return Context(
            request=self.request[:b],
            tokens=self.tokens[:b],
            history=self.history[:b],
            length=self.length[:b],
            length_host=self.length_host[:b],
            max_proposals=room,
            max_proposals_host=np.minimum(room_host, k),
            params=self.params(),
            ops=ops,
            coupled=coupled,
            price=price,
        )

    def extend(self, window: Window, verdict: Verdict, ops: Backend) -> Tensor:
        """Write the emitted tokens to the device side; returns the packed integers of the step's read.

        Packed int64 [B, D + TAIL]: see ``Backend.emit``.
        """
        b = len(self.live)
        length = self.length[:b]
        packed = ops.emit(window, verdict, self.tokens[:b], length)
        length += verdict.num_accepted + 1
        if self.ledger.memory is not None:
            self.ledger.memory.count(packed[:, :-TAIL], verdict.num_accepted + 1)
        return packed

    def absorb(self, row: int, emitted: list[int], accepted: int, proposed: int, now: float) -> int:
        """Append a row's emitted tokens on the host, cut at its stop; returns the number of tokens kept."""
        live, start = self.live[row], int(self.length_host[row])
        for index, token in enumerate(emitted):
            last: Kind = "plain" if proposed == 0 else "bonus" if accepted == proposed else "recovered"
            live.tokens.append(token)
            live.kinds.append("accepted" if index < accepted else last)
            live.times.append(now)
            live.finish = live.watcher.feed(token)
            if live.finish:
                break
        kept = index + 1
        self.history[row, start : start + kept] = emitted[:kept]
        self.length_host[row] += len(emitted)
        return kept

    def absorb_logprobs(self, packed: npt.NDArray[np.int64], depth: int) -> None:
        """Append the log-probabilities of the tokens just absorbed, from the part of the read that ``pack`` made."""
        for live, part in zip(self.live, packed, strict=True):
            if (wanted := live.request.params.logprobs) is not None:
                live.logprobs += unpack(part, depth, wanted)[: len(live.tokens) - len(live.logprobs)]
