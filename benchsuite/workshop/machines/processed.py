"""Processors beside transformers' own classes: the distribution of every slot of a window, from its own history."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdec import Request, Window
from specdec.ledger import Ledger
from specdec.processors import StackedParams, process
from specdec_plugins.engines.transformers import OutputPenalties


def by_transformers(request: Request, output: tuple[int, ...], logits: Tensor) -> Tensor:
    """The distribution [V] of the token after ``output``, from logits [V], by transformers' own classes."""
    params, prompt = request.params, len(request.prompt)
    chain = LogitsProcessorList()
    if params.bias:
        chain.append(SequenceBiasLogitsProcessor({(token,): value for token, value in params.bias}))
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    chain.append(OutputPenalties(params.frequency_penalty, params.presence_penalty, prompt))
    if params.bad_words:
        chain.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words], list(params.eos)))
    if params.eos and params.min_new_tokens:
        chain.append(MinNewTokensLengthLogitsProcessor(prompt, params.min_new_tokens, list(params.eos)))
    if params.temperature > 0:
        chain.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k:
            chain.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            chain.append(TopPLogitsWarper(params.top_p))
        if params.min_p > 0:
            chain.append(MinPLogitsWarper(params.min_p))
    scores = chain(torch.tensor([[*request.prompt, *output]]), logits[None].clone())[0]
    if params.temperature == 0:
        return torch.nn.functional.one_hot(scores.argmax(), len(scores)).to(scores.dtype)
    distribution: Tensor = scores.softmax(dim=-1)
    return distribution


def counted_params(requests: list[Request], outputs: list[tuple[int, ...]], vocabulary: int) -> StackedParams:
    """The parameters of requests after outputs that were counted step by step, as the engine counts them."""
    ledger = Ledger(len(requests), vocabulary, torch.device("cpu"))
    for row, request in enumerate(requests):
        ledger.admit(row, request)
    emitted = torch.zeros(len(requests), max(map(len, outputs)), dtype=torch.int64)
    for row, output in enumerate(outputs):
        emitted[row, : len(output)] = torch.tensor(output, dtype=torch.int64)
    if ledger.memory:
        ledger.memory.count(emitted, torch.tensor([len(output) for output in outputs]))
    texts = [[*request.prompt, *output] for request, output in zip(requests, outputs, strict=True)]
    length = torch.tensor([len(text) for text in texts])
    padded = torch.tensor([[*text, *[0] * (20 - len(text))] for text in texts])
    return ledger.stacked([request.params for request in requests], padded, length)


def slots_beside_transformers(
    requests: list[Request], outputs: list[tuple[int, ...]], window: Window, logits: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield for every slot of the rows' windows its place in words, our distribution [V] and that of transformers.

    ``outputs`` are what the requests emitted before the window; ``logits`` float64 [B, W, V].
    """
    ours = process(logits, counted_params(requests, outputs, logits.shape[2]), window.paths).softmax(dim=-1)
    tokens, parents = window.tokens.tolist(), window.parents.tolist()
    for row, request in enumerate(requests):
        for slot in range(len(tokens[row])):
            path: list[int] = []
            at = slot
            while at > 0:
                path.insert(0, tokens[row][at])
                at = parents[row][at]
            theirs = by_transformers(request, (*outputs[row], *path), logits[row, slot])
            yield f"row {row}, slot {slot}, {request.params}", ours[row, slot], theirs
