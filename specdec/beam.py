"""Beam search over the arena: a plain way to decode, not a speculative one.

Of all texts grown so far the ``width`` likeliest (the beams) grow on, each by one token per forward of the target.
Nothing is proposed and nothing is verified, so drafts, policies and controllers have no part in it. The search calls
the target's forward itself and has its own counter, because beams of one prompt replace each other, which the
engine's rows never do.

Each beam lives in one row of the arena. A beam that survives stays in its row; only where two or more beams grow out
of one are the committed cells copied, into rows whose beams have died.

Source: ``GenerationMixin._beam_search`` in transformers' ``generation/utils.py`` (5.23), whose ids and scores these
are; Lowerre, The Harpy Speech Recognition System (1976); the length penalty after Wu et al., arXiv 1609.08144,
section 7, in transformers' form: score / length ** penalty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec.devices import uploaded
from specdec.errors import SpecdecError
from specdec.ledger import adjusts, stacked
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.processors import adjusted
from specdec.request import Request

FLOOR = -1e9
"""transformers' score of a place that no hypothesis has taken; a text that scores no more is never kept."""

STEEPEST = 5.0
"""The largest length penalty, either way: 100,000 tokens to this power are 1e25, so that scores stay in float32."""


@dataclass(frozen=True)
class Beams:
    """How a beam search runs; the defaults and the meanings are those of transformers' ``generate``.

    ``width``: the number of beams (``num_beams``). ``returned``: the number of hypotheses of a request
    (``num_return_sequences``). ``length_penalty``: the score of a text of n tokens is the sum of its log-probabilities
    / n ** length_penalty, so that above 0 long texts gain and below 0 short ones. ``early_stopping``: True ends the
    search once ``width`` texts have ended; False also when the best beam, at its present length, scores no more than
    the worst of them; "never" when it would score no more at any length that it may still reach. One beam is greedy
    decoding and ends with its first end token, whatever ``early_stopping`` says.

    Raises SpecdecError, naming the field, when a value is out of range.

    Example: ``Beams(width=4, returned=2, length_penalty=0.8)``
    """

    width: int = 4
    returned: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        penalty, early = self.length_penalty, self.early_stopping
        number = isinstance(penalty, int | float) and not isinstance(penalty, bool)
        checks = (
            ("width", self.width, type(self.width) is int and self.width >= 1, "a whole number, 1 or more"),
            (
                "returned",
                self.returned,
                type(self.returned) is int and 1 <= self.returned <= self.width,
                f"a whole number from 1 to the width, {self.width}",
            ),
            (
                "length_penalty",
                penalty,
                number and -STEEPEST <= penalty <= STEEPEST,
                f"a number from {-STEEPEST} to {STEEPEST}",
            ),
            ("early_stopping", early, isinstance(early, bool) or early == "never", 'True, False or "never"'),
        )
        for name, got, fits, expected in checks:
            if not fits:
                raise SpecdecError(f"{name} is {got!r}; expected {expected}")

    def score(self, log_probability: float, length: int) -> float:
        """The score of ``length`` tokens: their log-probability (in nats) / length ** length_penalty, in float32.

        Example: ``Beams(length_penalty=2).score(-8.0, 2)`` is -2.0.
        """
        # transformers divides in float32, and a comparison of nearly equal scores must come out the same here.
        return float(np.float32(log_probability) / np.float32(length**self.length_penalty))


@dataclass(frozen=True)
class Hypothesis:
    """A text that a beam search found: its new tokens, its score (see ``Beams``), and the reason for its end.

    An end token is the last of ``tokens``; the prompt is not part of them.
    """

    tokens: tuple[int, ...]
    score: float
    finish_reason: Literal["eos", "length"]


@dataclass(frozen=True)
class _Beam:
    """A text that still grows: the arena row that it grew out of, all its tokens, their log-probability (nats).

    The prompt is part of ``tokens``, not of ``log_probability``. The last token is pending: its key and value are not
    in the arena yet. Several beams may have grown out of one row.
    """

    origin: int
    tokens: tuple[int, ...]
    log_probability: float


UNUSED: tuple[tuple[str, object], ...] = (
    ("temperature", 0),
    ("top_k", 0),
    ("top_p", 1),
    ("min_p", 0),
    ("stop", ()),
    ("logprobs", None),
)
"""Parameters that a beam search has no use for, with the values that it accepts."""


class BeamSearch:
    """Runs requests by beam search, one after the other, the beams of one request as the rows of one forward.

    ``width`` is the largest number of beams, ``max_length`` the longest prompt and output together, in tokens. The
    arena, of ``width`` rows, is allocated here, once. A request's bias, penalties, bad words and least length change
    the log-probabilities of every beam before they are added up, as in transformers' beam search.

    ``counts`` covers the last run: ``target_forwards`` (one a step, for all beams), ``prefill_forwards``,
    ``host_reads`` (one a step), ``kv_beam_rows_copied`` and ``kv_beam_bytes_copied`` (bytes that were really copied).

    Example: ``BeamSearch(target, width=4, max_length=256).run([Request(0, prompt)], Beams(width=4))[0][0].tokens``
    """

    def __init__(self, target: ArenaModel, *, width: int, max_length: int) -> None:
        if type(width) is not int or width < 1:
            raise SpecdecError(f"width is {width!r}; expected a whole number, 1 or more")
        self.target, self.width, self.max_length = target, width, max_length
        self.arena = target.arena(width, max_length, 1)
        self.counts: Counter[str] = Counter()
        self._longest = max_length if target.limit is None else min(max_length, target.limit)

    @torch.inference_mode()
    def run(self, requests: Sequence[Request], beams: Beams) -> list[tuple[Hypothesis, ...]]:
        """Search for every request's best continuations; returns ``beams.returned`` of each, the best first.

        An output ends where ``max_length`` or the model's positions end, too. There are fewer hypotheses where the
        request's parameters allow fewer texts, or where fewer score above ``FLOOR``; transformers then fills up with
        copies or with unfinished texts. In place: the arena and ``counts``.

        Raises SpecdecError, before anything runs, for more beams than the search has rows, for a prompt that does not
        fit, and for parameters that a beam search does not use: temperature, top_k, top_p, min_p, stop and logprobs.
        """
        if beams.width > self.width:
            raise SpecdecError(f"width is {beams.width}; expected 1 to {self.width}, the rows of this beam search")
        for request in requests:
            self._refuse_unfit(request)
        self.counts = Counter()
        return [self._search(request, beams) for request in requests]

    def _refuse_unfit(self, request: Request) -> None:
        params, prompt = request.params, request.prompt
        whose = f"of request {request.id}"
        for name, unused in UNUSED:
            got = getattr(params, name)
            if got != unused:
                raise SpecdecError(f"{name} {whose} is {got!r}; a beam search does not use it: expected {unused!r}")
        if not 1 <= len(prompt) < self._longest:
            raise SpecdecError(
                f"the prompt {whose} has {len(prompt)} tokens; expected 1 to {self._longest - 1} (the beam search was "
                f"built for {self.max_length}, the model has {self.target.limit or 'unlimited'} positions)"
            )
        strange = [token for token in prompt if not 0 <= token < self.target.vocabulary]
        if strange:
            raise SpecdecError(
                f"the prompt {whose} has the token id {strange[0]}; expected 0 to {self.target.vocabulary - 1}"
            )

    def _search(self, request: Request, beams: Beams) -> tuple[Hypothesis, ...]:
        start, ends = len(request.prompt), frozenset(request.params.eos)
        limit = min(request.params.max_new_tokens, self._longest - start)
        # A beam has at most one continuation for each end token, so that of these at least ``width`` grow on.
        keep = beams.width * max(2, 1 + len(ends))
        growing, done = [self._prefill(request.prompt)], list[Hypothesis]()
        for length in range(1, limit + 1):
            candidates = self._continue(request, self._place(growing), keep)
            for beam in candidates[: beams.width]:
                ended, score = beam.tokens[-1] in ends, beams.score(beam.log_probability, length)
                if (ended or length == limit) and score > FLOOR:
                    done.append(Hypothesis(beam.tokens[start:], score, "eos" if ended else "length"))
            done = sorted(done, key=lambda one: one.score, reverse=True)[: beams.width]
            growing = [beam for beam in candidates if beam.tokens[-1] not in ends][: beams.width]
            if not growing or not _may_improve(growing[0], done, beams, length, limit):
                break
        return tuple(done[: beams.returned])

    def _prefill(self, prompt: tuple[int, ...]) -> _Beam:
        """Commit all prompt tokens except the last, in row 0 alone; the first beams that share it will copy it."""
        for _ in self.target.prefill(self.arena, 0, prompt):
            self.counts["prefill_forwards"] += 1
        return _Beam(0, prompt, 0.0)

    def _place(self, beams: Sequence[_Beam]) -> dict[int, _Beam]:
        """Give every beam a row of its own; returns the beams by row.

        The first beam of an origin stays there, the others take the lowest free rows. Rows that are copied have a beam
        and rows that are written had none, so that the order of the copies does not matter. In place: the written
        rows of the arena.
        """
        committed = len(beams[0].tokens) - 1
        free = sorted(set(range(self.width)) - {beam.origin for beam in beams}, reverse=True)
        placed: dict[int, _Beam] = {}
        for beam in beams:
            row = beam.origin
            if row in placed:
                row = free.pop()
                self.counts["kv_beam_rows_copied"] += 1
                self.counts["kv_beam_bytes_copied"] += self.arena.move(beam.origin, row, committed)
            placed[row] = beam
        return placed

    def _continue(self, request: Request, beams: Mapping[int, _Beam], keep: int) -> list[_Beam]:
        """One step: the ``keep`` likeliest continuations of all beams (by row) by one token, the likeliest first.

        In place: every beam's pending token is committed in its row.
        """
        length, device = len(next(iter(beams.values())).tokens), self.target.device
        rows = slice(0, 1 + max(beams))
        # A row without a beam is in the forward too, with a likelihood of zero. There are such rows only if the request
        # or the vocabulary allows fewer continuations than there are beams; each had a beam of this request before.
        last, before = np.zeros(rows.stop, dtype=np.int64), np.full(rows.stop, -np.inf, dtype=np.float32)
        for row, beam in beams.items():
            last[row], before[row] = beam.tokens[-1], beam.log_probability
        pending, likelihood = uploaded(device, last, before)
        nothing = pending[:, None][:, :0]  # is proposed
        root = Window.chain(pending, nothing, torch.zeros_like(pending))
        logits, _ = self.target.forward(self.arena, root, rows, length - 1)
        self.counts["target_forwards"] += 1
        self.arena.committed[rows] += 1
        log_probs = logits[:, -1].float().log_softmax(dim=-1)  # float32 for every model, as transformers adds them up
        if adjusts(request.params):
            texts = [beams[row].tokens if row in beams else request.prompt for row in range(rows.stop)]
            given = [request.after(text[len(request.prompt) :]) for text in texts]
            adjustments = stacked(given, log_probs.shape[1], device).adjustments
            if adjustments is not None:  # else the least length is reached
                log_probs = adjusted(log_probs[:, None], adjustments, nothing[:, None], strict=True)[:, 0]
        total = log_probs + likelihood[:, None]
        top = total.flatten().topk(min(keep, total.numel()))
        bits, indices = self.read(torch.stack([top.values.view(torch.int32).long(), top.indices]))  # one transfer
        log_probabilities = bits.astype(np.int32).view(np.float32)
        grown = []
        for log_probability, index in zip(log_probabilities.tolist(), indices.tolist(), strict=True):
            row, token = divmod(index, total.shape[1])
            if log_probability > float("-inf"):  # neither a forbidden token nor a row without a beam
                grown.append(_Beam(row, (*beams[row].tokens, token), log_probability))
        return grown

    def read(self, packed: Tensor) -> npt.NDArray[np.int64]:
        """Copy ``packed`` to the host: the only transfer of a step from the device."""
        self.counts["host_reads"] += 1
        return packed.cpu().numpy()


def _may_improve(best: _Beam, done: Sequence[Hypothesis], beams: Beams, length: int, limit: int) -> bool:
    """Whether the search goes on: the best beam, of ``length`` new tokens, may still beat the worst of ``done``."""
    full = len(done) == beams.width
    if full and (beams.early_stopping is True or beams.width == 1):
        return False
    if beams.early_stopping == "never" and beams.length_penalty > 0:
        length = limit  # more tokens make the same log-probability a better score
    return beams.score(best.log_probability, length) > (done[-1].score if full else FLOOR)
