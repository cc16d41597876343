"""Logit processors: from the target's raw logits to the distribution that is sampled.

The order and the meaning are those of transformers' ``LogitsProcessor`` classes: bias, repetition penalty, bad words,
least length, then (sampled rows) temperature, top-k, top-p, min-p. Frequency and presence penalties, which
transformers lacks, follow the repetition penalty, as in vLLM.

Letters: B rows, N slots, V the vocabulary, D the deepest slot's number of proposals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

NEVER = float("-inf")


class Paths(Protocol):
    """Proposals that processors can see: a window, or a draft's proposals so far."""

    @property
    def paths(self) -> Tensor:
        """int64 [B, N, D]: for each slot the proposals from the first to its own, -1 past the end."""


@dataclass(frozen=True)
class Words:
    """Bad words of B rows: ``prefix`` int64 [B, M, L] is what precedes the ``last`` token, int64 [B, M], of each word.

    Prefixes end at the right; -1 fits any token. A ``last`` of -1 is no word.
    """

    prefix: Tensor
    last: Tensor


@dataclass(frozen=True)
class Penalties:
    """Penalties of B rows, and the tokens that they count.

    ``seen`` bool [B, V]: the token is in the prompt; ``emitted`` int32 [B, V]: how often it is in the output;
    ``repetition``, ``frequency``, ``presence`` float32 [B].
    """

    seen: Tensor
    emitted: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


@dataclass(frozen=True)
class Adjustments:
    """What changes the logits of B rows before temperature; a part is None if no row has it.

    ``tokens`` int64 [B, S] are valid up to ``length`` int64 [B]. ``bias`` float32 [B, V]. Below ``least`` tokens in
    prompt and output together, int64 [B], the end tokens ``ends`` int64 [B, E] (-1: none) are forbidden.
    """

    tokens: Tensor
    length: Tensor
    bias: Tensor | None = None
    penalties: Penalties | None = None
    words: Words | None = None
    least: Tensor | None = None
    ends: Tensor | None = None

    @property
    def places(self) -> tuple[tuple[int, tuple[int, ...]] | None, ...]:
        """Address and shape of each tensor, None where there is none: equal where the same tensors are used.

        The shape too: a list that has grown is another tensor, which may lie where an earlier one was freed.
        """
        penalties, words = self.penalties, self.words
        tensors = [self.tokens, self.length, self.bias, self.least, self.ends]
        tensors += [None] * 5 if penalties is None else list(vars(penalties).values())
        tensors += [None] * 2 if words is None else [words.prefix, words.last]
        return tuple(None if tensor is None else (tensor.data_ptr(), tuple(tensor.shape)) for tensor in tensors)


@dataclass(frozen=True)
class StackedParams:
    """The sampling parameters of B rows, on the device.

    ``stream`` int64 [B], the noise key of (seed, request); ``temperature`` float32 [B]; ``top_k`` int64 [B];
    ``top_p`` and ``min_p`` float32 [B]. ``greedy`` (every row at temperature 0), ``filtered`` (some row has top-k,
    top-p or min-p on) and ``adjustments`` (None: no row has any) are known to the host, so that an unused processor
    costs nothing and no device is read.
    """

    stream: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    greedy: bool
    filtered: bool
    adjustments: Adjustments | None = None

    def ungreedy(self) -> StackedParams:
        """The same, but a greedy row has its adjusted logits' own distribution: temperature 1 without filters.

        This is the distribution that logprobs of greedy rows are of; a one-hot distribution would say nothing.
        """
        sampled = self.temperature > 0
        return replace(
            self,
            temperature=torch.where(sampled, self.temperature, 1.0),
            top_k=torch.where(sampled, self.top_k, 0),
            top_p=torch.where(sampled, self.top_p, 1.0),
            min_p=torch.where(sampled, self.min_p, 0.0),
            greedy=False,
        )


def process(logits: Tensor, params: StackedParams, paths: Tensor | None = None) -> Tensor:
    """Apply each row's processors to raw logits [B, N, V]; returns a new float32 (or float64) tensor.

    ``paths`` int64 [B, N, D], as in ``Paths``, gives each slot its own history; it is needed if ``params`` has
    adjustments. Top-k keeps all tokens that tie with the k-th logit; top-p applies to the tokens that top-k left,
    min-p to those that top-p left. A greedy row keeps only its top logit: the limit of temperature to 0, a one-hot
    distribution. Where everything is forbidden, nothing is.

    Example: ``process(torch.randn(1, 1, 258), stacked([request], 258, torch.device("cpu")))`` of ``specdec.ledger``
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if params.adjustments is not None:
        assert paths is not None
        logits = adjusted(logits, params.adjustments, paths)
    if params.greedy:
        return _top_only(logits)
    sampled = params.temperature > 0
    scale = torch.where(sampled, params.temperature, 1.0)[:, None, None]
    warped = logits / scale
    if params.filtered:
        warped = _filter(warped, params)
    return torch.where(sampled[:, None, None], warped, _top_only(logits))


def adjusted(logits: Tensor, adjustments: Adjustments, paths: Tensor, strict: bool = False) -> Tensor:
    """Apply bias, penalties and bans to float logits [B, N, V]; ``paths`` as in ``process``. Returns a new tensor.

    Where everything is forbidden, nothing is; ``strict``: everything stays forbidden (-inf).
    """
    if adjustments.bias is not None:
        logits = logits + adjustments.bias[:, None]
    if adjustments.penalties is not None:
        logits = _penalised(logits, adjustments.penalties, paths)
    banned = bans(adjustments, paths)
    if banned is None:
        return logits
    # One column more than there are tokens takes the places without a ban.
    vocabulary = logits.shape[-1]
    ban = logits.new_zeros(*logits.shape[:-1], vocabulary + 1)
    ban.scatter_(-1, torch.where(banned < 0, vocabulary, banned), NEVER)
    left = logits + ban[..., :vocabulary]
    return left if strict else torch.where((left == NEVER).all(dim=-1, keepdim=True), logits, left)


def _penalised(logits: Tensor, penalties: Penalties, paths: Tensor) -> Tensor:
    valid, proposed = paths >= 0, paths.clamp(min=0)
    count = penalties.emitted[:, None].expand(logits.shape).clone()
    count.scatter_add_(2, proposed, valid.to(count.dtype))
    repetition, frequency, presence = (
        value[:, None, None] for value in (penalties.repetition, penalties.frequency, penalties.presence)
    )
    seen = penalties.seen[:, None] | (count > 0)
    logits = torch.where(seen, torch.where(logits < 0, logits * repetition, logits / repetition), logits)
    return logits - frequency * count - presence * (count > 0)


def bans(adjustments: Adjustments, paths: Tensor) -> Tensor | None:
    """int64 [B, N, M]: the tokens that each slot may not be followed by, -1 where there is none; None: nowhere any.

    These are the end tokens before the least length, and the last tokens of bad words whose other tokens the slot's
    history ends with.
    """
    depth = (paths >= 0).sum(dim=2)
    found = []
    if adjustments.least is not None and adjustments.ends is not None:
        early = adjustments.length[:, None] + depth < adjustments.least[:, None]
        found.append(torch.where(early[:, :, None], adjustments.ends[:, None], -1))
    if adjustments.words is not None:
        prefix, last = adjustments.words.prefix, adjustments.words.last
        tail = _tail(adjustments, paths, depth, prefix.shape[2])
        fits = ((prefix[:, None] == tail[:, :, None]) | (prefix[:, None] == -1)).all(dim=3)
        found.append(torch.where(fits, last[:, None], -1))
    return torch.cat(found, dim=2) if found else None


def _tail(adjustments: Adjustments, paths: Tensor, depth: Tensor, size: int) -> Tensor:
    """int64 [B, N, size]: the last tokens of each slot's history, -2 before its start."""
    # Places relative to the first proposal: 0 … depth - 1 are on the path, below 0 in the text before the window.
    place = depth[:, :, None] - torch.arange(size, 0, -1, device=paths.device)
    at = adjustments.length[:, None, None] + place
    text = adjustments.tokens[:, None].expand(-1, paths.shape[1], -1)
    before = torch.where(at >= 0, text.gather(2, at.clamp(0, text.shape[2] - 1)), -2)
    if not paths.shape[2]:
        return before
    return torch.where(place >= 0, paths.gather(2, place.clamp(0, paths.shape[2] - 1)), before)


def _top_only(logits: Tensor) -> Tensor:
    # max(dim) finds the index three times faster than argmax on a CPU.
    top = logits.max(dim=-1, keepdim=True).indices
    return torch.full_like(logits, NEVER).scatter_(-1, top, 0.0)


def _filter(logits: Tensor, params: StackedParams) -> Tensor:
    # Stable: of equal logits the lower id is kept, on every backend.
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    vocabulary = logits.shape[-1]
    kth = torch.where(params.top_k > 0, params.top_k, vocabulary).clamp(max=vocabulary)[:, None, None] - 1
    floor = ordered.gather(-1, kth.expand(*ordered.shape[:-1], 1))
    ordered = ordered.masked_fill(ordered < floor, NEVER)
    distribution = ordered.softmax(dim=-1)
    # A token stays if the mass of the tokens before it is below top_p; the first always stays.
    before = distribution.cumsum(dim=-1) - distribution
    top_p, min_p = (share[:, None, None].to(distribution.dtype) for share in (params.top_p, params.min_p))
    drop = (before >= top_p) & (top_p < 1) | (distribution < min_p * distribution[..., :1])
    drop[..., 0] = False
    return torch.full_like(logits, NEVER).scatter_(-1, order, ordered.masked_fill(drop, NEVER))


def chain_paths(proposals: Tensor) -> Tensor:
    """int64 [B, K + 1, K]: the paths of a chain's slots, from its proposals int64 [B, K]."""
    k = proposals.shape[1]
    slot, column = torch.arange(k + 1, device=proposals.device), torch.arange(k, device=proposals.device)
    return torch.where(column < slot[:, None], proposals[:, None], -1)
