"""Sampled outputs of one endpoint, read under the lists of a judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb

from benchsuite.benches.serving.asked import Connect, Read, ask_all
from benchsuite.benches.serving.certificate import SampledEvidence
from benchsuite.benches.serving.kept_answers import KeptAnswers, known_over_new
from benchsuite.benches.serving.timed_samples import timed_samples
from benchsuite.benches.serving.timed_texts import AskedFor, TimedText
from benchsuite.judge.transforms import read_tokens
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

ROUNDED = 2
"""Of a nucleus so many times as many tokens are wanted as exact lists need: rounding puts some tokens on the other side
of its end (one of 517 before vLLM), and each counts as much as a hundred inside."""


def sampled_evidence(
    connect: Connect,
    reading: Read,
    judge: str,
    asks: Sequence[Ask],
    asked_for: AskedFor,
    other: Endpoint,
    timed: Sequence[TimedText],
) -> SampledEvidence:
    """Read an endpoint's sampled outputs, and its timed texts, under the lists of the judge.

    The plain server's own are the control. Which outputs can be read may depend on their tokens. The p-values are
    therefore multiplied by the number of ways in which so many could have been left out (Boole's inequality), and
    outputs that nobody read are not certified.
    """
    answers = ask_all(connect, other, asks)
    replies = [(ask, reply) for ask, reply in zip(asks, answers.replies, strict=True) if reply]
    # An answer that ended at once has no token to be read.
    read = [reading(ask, reply) if reply.text or reply.tokens else () for ask, reply in replies]
    sample = read_tokens([tokens for tokens in read if tokens])
    left = len(asks) - sum(tokens is not None for tokens in read)
    certified = {n: reply for n, reply in enumerate(answers.replies) if reply}
    evidence = SampledEvidence(
        judge,
        len(asks),
        left,
        sample.tokens,
        failures=answers.failures,
        asked_for=asked_for,
        timed=timed_samples(timed, asks, certified, reading),
        kept=KeptAnswers(known_over_new(answers, asked_for)),
    )
    if sample.tokens:
        even, ratios = sample.p_values(comb(len(asks), left))
        evidence = replace(
            evidence,
            even=even,
            ratios=ratios,
            factor=sample.heat_found(),
            needs=(sample.tokens_for(1.1), sample.tokens_for(1.2), ROUNDED * sample.tokens_for_nucleus(0.95)),
        )
    return evidence
