"""The exact distribution of whole runs: engine, arena, draft, policy, processors and stops, every outcome enumerated.

Nothing is sampled. Only p, q and the random draws are replaced; all other code is the engine's own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from benchsuite.conformance.exact.enumerator import Script, Shape, completions
from benchsuite.conformance.exact.table_target import Table, TableDraft, Tabular, near_table, random_table, with_ids
from benchsuite.judge.sources import Always, EachRow
from specdec import Draft, Engine, Policy, Request, SamplingParams
from specdec.stats import RowStats

Outputs = tuple[tuple[int, ...], ...]
"""Outputs of a run's requests, in their order."""

PROMPTS = ((0, 1), (1,), (1, 1, 0))


def outputs(
    script: Script,
    policy: Policy,
    distributions: tuple[Table, Table],
    vocabulary: int,
    shape: Shape,
    certain: bool,
    requests: Sequence[Request],
    rows: int,
    span: int | None = None,
    draft: Callable[[Table, Shape, bool], Draft] = TableDraft,
    k_of: Callable[[RowStats], int] | None = None,
) -> Outputs:
    """Run the real engine once with scripted draws; return the outputs. ``k_of`` gives each row a K of its own."""
    target, most = Tabular(distributions[0], vocabulary, script, span), len(shape.parents) - 1
    engine = Engine(
        target,
        draft=draft(distributions[1], shape, certain),
        policy=policy,
        controller=EachRow(most, k_of) if k_of else Always(most),
        ops=script,
        max_rows=rows,
        max_length=12,
    )
    return tuple(done.tokens for done in engine.run(requests))


def adjusted_logits(distribution: Sequence[float], request: Request, out: tuple[int, ...]) -> list[float]:
    """Return the logits of the token after ``out`` after bias, penalties and bans, implemented again from definitions.

    ``distribution`` is the target's, so a logit is the logarithm of a share. A forbidden token has -inf.
    """
    params, text = request.params, (*request.prompt, *out)
    left = []
    for token, share in enumerate(distribution):
        logit = (math.log(share) if share else -math.inf) + dict(params.bias).get(token, 0.0)
        if token in text:
            logit = logit * params.repetition_penalty if logit < 0 else logit / params.repetition_penalty
        logit -= params.frequency_penalty * out.count(token) + params.presence_penalty * (token in out)
        completed = any((*text, token)[-len(word) :] == word for word in params.bad_words)
        early = token in params.eos and len(out) < params.min_new_tokens
        left.append(-math.inf if completed or early else logit)
    return left


def warped(distribution: Sequence[float], request: Request, out: tuple[int, ...]) -> list[float]:
    """Return the distribution of the token after ``out``, after all processors, implemented again from definitions."""
    left = adjusted_logits(distribution, request, out)
    return _filtered([math.exp(logit / request.params.temperature) for logit in left], request.params)


def _filtered(left: list[float], params: SamplingParams) -> list[float]:
    order = sorted(range(len(left)), key=lambda token: -left[token])
    for token in order[params.top_k or len(order) :]:
        left[token] = 0.0
    mass, before = sum(left), 0.0
    for token in order:
        here, left[token] = left[token], left[token] if before < params.top_p * mass else 0.0
        before += here
    left = [share if share >= params.min_p * left[order[0]] else 0.0 for share in left]
    return [share / sum(left) for share in left]


def output_distribution(distribution: Table, request: Request, vocabulary: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of a request's whole output under the target alone."""
    params = request.params
    found: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    while open_:
        longer: dict[tuple[int, ...], float] = {}
        for out, weight in open_.items():
            for token, share in enumerate(warped(distribution((*request.prompt, *out)), request, out)):
                if not share:
                    continue
                ends = token in params.eos or len(out) + 1 == params.max_new_tokens
                (found if ends else longer)[*out, token] = weight * share
        open_ = longer
    return found


def run_distance(
    policy: Policy,
    vocabulary: int,
    shape: Shape,
    requests: Sequence[Request],
    *,
    certain: bool = False,
    rows: int = 1,
    zeros: bool = False,
    span: int | None = None,
    seed: int = 0,
    broken: Sequence[float] | None = None,
    draft: Callable[[Table, Shape, bool], Draft] = TableDraft,
    fresh: bool = False,
    k_of: Callable[[RowStats], int] | None = None,
    near: bool = False,
    ids: Sequence[int] | None = None,
) -> float:
    """Return the total variation between the engine's outputs and independent runs of the target alone.

    ``broken`` replaces the draft's distribution in all of the first request's text; ``fresh``: as if every draw and
    coin had noise of its own, whatever their keys; ``k_of``: see ``outputs``. ``near``: the target's tokens are nearly
    equally likely. ``ids``: the tokens have these ids, in prompts too, of a vocabulary that ends with the last.
    """
    q, p = random_table(("q", seed), vocabulary, zeros=zeros), random_table(("p", seed), vocabulary, zeros=zeros)
    if near:
        p = near_table(("p", seed), vocabulary)
    if ids is not None:
        q, p, vocabulary = with_ids(q, ids), with_ids(p, ids), max(ids) + 1
        requests = [replace(request, prompt=tuple(ids[token] for token in request.prompt)) for request in requests]
    first = requests[0].prompt

    def drafted(history: tuple[int, ...]) -> Sequence[float]:
        return q(history) if broken is None or history[: len(first)] != first else broken

    distributions = p, drafted
    got = completions(
        lambda s: outputs(s, policy, distributions, vocabulary, shape, certain, requests, rows, span, draft, k_of),
        fresh=fresh,
    )

    def seen(history: tuple[int, ...]) -> Sequence[float]:
        return distributions[0](history if span is None else history[-span:])

    alone = [output_distribution(seen, request, vocabulary) for request in requests]
    expected = {
        outs: prod(distribution[out] for distribution, out in zip(alone, outs, strict=True))
        for outs in itertools.product(*alone)
    }
    assert abs(float(sum(got.values())) - 1) < 1e-6, "some outcome was lost, or a distribution does not sum to 1"
    every = got.keys() | expected.keys()
    return sum(abs(float(got.get(outs, 0)) - expected.get(outs, 0.0)) for outs in every) / 2


def one(tokens: int, **params: Any) -> list[Request]:
    """Return one request of ``tokens`` tokens at temperature 1."""
    return [Request(0, PROMPTS[0], SamplingParams(**{"temperature": 1.0, "max_new_tokens": tokens, **params}))]
