"""The sampling parameters of each row, and what its processors remember.

Bias, counts of tokens, bad words and end tokens are allocated when the first request needs them. Only committed tokens
are counted, so rolling back proposals costs nothing: a window's own tokens are added while it is judged
(``specdec.processors``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec import sampling
from specdec.devices import uploaded
from specdec.processors import Adjustments, Penalties, StackedParams, Words, chain_paths
from specdec.request import Request, SamplingParams


class Ledger:
    """The parameters of R rows over a vocabulary of V tokens; the rows in use are the first ones.

    Example: ``stacked([request], 258, torch.device("cpu"))``
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._sizes = rows, vocabulary, device
        self.stream, self.top_k = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        self.temperature, self.top_p, self.min_p = (torch.zeros(rows, device=device) for _ in range(3))
        self.memory: Memory | None = None
        self.allocations = 5

    def admit(self, row: int, request: Request) -> None:
        """Fill a row from a request, whatever was in it before."""
        params, device = request.params, self.stream.device
        # An assignment of a number would copy it from the host, and wait; a fill is a launch.
        for name in ("temperature", "top_k", "top_p", "min_p"):
            getattr(self, name)[row].fill_(getattr(params, name))
        seed, identity = (torch.full((), number, device=device) for number in (params.seed, request.id))
        self.stream[row] = sampling.stream(seed, identity)
        if self.memory is None and adjusts(params):
            self.memory = Memory(*self._sizes)
        if self.memory is not None:
            self.memory.admit(row, request)

    def move(self, source: int, row: int) -> None:
        """Copy row ``source`` onto ``row``."""
        for tensor in (self.stream, self.top_k, self.temperature, self.top_p, self.min_p):
            tensor[row] = tensor[source]
        if self.memory is not None:
            self.memory.move(source, row)

    def stacked(self, live: Sequence[SamplingParams], tokens: Tensor, length: Tensor) -> StackedParams:
        """Views of the first B rows, whose parameters are ``live``; they follow every change of the ledger in place.

        ``tokens`` int64 [B, S] and ``length`` int64 [B] are the rows' texts.
        """
        rows = slice(0, len(live))
        return StackedParams(
            stream=self.stream[rows],
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            greedy=all(p.temperature == 0 for p in live),
            filtered=any(p.temperature > 0 and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0) for p in live),
            adjustments=self.memory.adjustments(live, tokens, length) if self.memory else None,
        )


def stacked(requests: Sequence[Request], vocabulary: int, device: torch.device) -> StackedParams:
    """The parameters of requests at their start, as the engine stacks them for a batch of these rows.

    Example: ``stacked([request.after(output)], 258, torch.device("cpu"))`` are those after an output
    """
    ledger, longest = Ledger(len(requests), vocabulary, device), max(len(request.prompt) for request in requests)
    for row, request in enumerate(requests):
        ledger.admit(row, request)
    texts = np.zeros((len(requests), longest), dtype=np.int64)
    for row, request in enumerate(requests):
        texts[row, : len(request.prompt)] = request.prompt
    tokens, length = uploaded(device, texts, np.array([len(request.prompt) for request in requests], dtype=np.int64))
    return ledger.stacked([request.params for request in requests], tokens, length)


def output_paths(output: Sequence[int], device: torch.device) -> Tensor:
    """int64 [1, N, N - 1]: the paths before each token of an output, as a window of its first tokens would have them.

    Example: ``output_paths((5, 6, 7), cpu)`` is ``[[[-1, -1], [5, -1], [5, 6]]]``
    """
    return chain_paths(torch.tensor([output[:-1]], dtype=torch.int64, device=device).view(1, -1))


class Memory:
    """What the processors of R rows remember over a vocabulary of V tokens: see ``specdec.processors.Adjustments``."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        def filled(*shape: int, dtype: torch.dtype = torch.int64, value: float = 0) -> Tensor:
            return torch.full((rows, *shape), value, dtype=dtype, device=device)

        self.vocabulary = vocabulary
        self.bias = filled(vocabulary, dtype=torch.float32)
        self.seen = filled(vocabulary, dtype=torch.bool)
        self.emitted = filled(vocabulary, dtype=torch.int32)
        self.repetition = filled(dtype=torch.float32, value=1)
        self.frequency, self.presence = filled(dtype=torch.float32), filled(dtype=torch.float32)
        self.least, self.ends = filled(), filled(0, value=-1)
        self.prefix, self.last = filled(0, 0, value=-1), filled(0, value=-1)

    def admit(self, row: int, request: Request) -> None:
        """Fill a row from a request, whatever was in it before."""
        params, words = request.params, request.params.bad_words
        self.ends = _wider(self.ends, len(params.eos))
        self.last = _wider(self.last, len(words))
        self.prefix = _wider(self.prefix, len(words), max((len(word) - 1 for word in words), default=0))
        ends, last, prefix = (np.full(t.shape[1:], -1, dtype=np.int64) for t in (self.ends, self.last, self.prefix))
        # An id past the vocabulary cannot be emitted, so it needs no ban.
        able = [token for token in params.eos if token < self.vocabulary]
        ends[: len(able)] = able
        for index, (*before, token) in enumerate(words):
            last[index] = token
            prefix[index, prefix.shape[1] - len(before) :] = before
        ids, values = zip(*params.bias, strict=True) if params.bias else ((), ())
        text, biased, bias, *rest = uploaded(
            self.bias.device,
            np.array(request.prompt, dtype=np.int64),
            np.array(ids, dtype=np.int64),
            np.array(values, dtype=np.float32),
            ends,
            last,
            prefix,
        )
        for tensor, new in zip((self.ends, self.last, self.prefix), rest, strict=True):
            tensor[row] = new
        output = text[len(text) - request.emitted :]
        # In this row, a number is filled in; an assignment would copy it from the host, and wait.
        self.bias[row].zero_().index_copy_(0, biased, bias)
        self.seen[row].zero_().index_fill_(0, text, value=True)
        self.emitted[row].zero_().scatter_add_(0, output, torch.ones_like(output, dtype=self.emitted.dtype))
        self.repetition[row].fill_(params.repetition_penalty)
        self.frequency[row].fill_(params.frequency_penalty)
        self.presence[row].fill_(params.presence_penalty)
        self.least[row].fill_(len(text) + params.min_new_tokens)

    def move(self, source: int, row: int) -> None:
        """Copy row ``source`` onto ``row``."""
        for tensor in vars(self).values():
            if isinstance(tensor, Tensor):
                tensor[row] = tensor[source]

    def count(self, emitted: Tensor, num_emitted: Tensor) -> None:
        """Count the first ``num_emitted`` int64 [B] of ``emitted`` int64 [B, D] as output of the first B rows.

        In place; waits for no device.
        """
        new = torch.arange(emitted.shape[1], device=emitted.device) < num_emitted[:, None]
        self.emitted[: len(emitted)].scatter_add_(1, torch.where(new, emitted, 0), new.to(self.emitted.dtype))

    def adjustments(self, live: Sequence[SamplingParams], tokens: Tensor, length: Tensor) -> Adjustments | None:
        """Views of the first rows, as many as ``live``; None if none of these needs any.

        ``tokens`` int64 [B, S] and ``length`` int64 [B] are the rows' texts.
        """
        rows = slice(0, len(live))
        biased, penalised, worded, least = (any(flags) for flags in zip(*map(_needs, live), strict=True))
        if not (biased or penalised or worded or least):
            return None
        return Adjustments(
            tokens,
            length,
            self.bias[rows] if biased else None,
            Penalties(
                self.seen[rows],
                self.emitted[rows],
                self.repetition[rows],
                self.frequency[rows],
                self.presence[rows],
            )
            if penalised
            else None,
            Words(self.prefix[rows], self.last[rows]) if worded else None,
            self.least[rows] if least else None,
            self.ends[rows] if least else None,
        )


def adjusts(params: SamplingParams) -> bool:
    """Whether a request changes logits before temperature: by a bias, a penalty, bad words or a least length."""
    return any(_needs(params))


def _needs(params: SamplingParams) -> tuple[bool, bool, bool, bool]:
    """Whether a request has a bias, a penalty, bad words, and a least length that an end token could break."""
    return (
        bool(params.logit_bias),
        params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0,
        bool(params.bad_words),
        params.min_new_tokens > 0 and bool(params.eos),
    )


def _wider(tensor: Tensor, *sizes: int) -> Tensor:
    """``tensor`` [R, M] or [R, M, L] with room for ``sizes``; new places hold -1, and those of L come first."""
    more = [max(size - have, 0) for size, have in zip(sizes, tensor.shape[1:], strict=True)]
    padding = [0, more[0]] if len(more) == 1 else [more[1], 0, 0, more[0]]
    return torch.nn.functional.pad(tensor, padding, value=-1) if any(more) else tensor
