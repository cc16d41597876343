"""The parts of a step of a full batch: with every processor, with none, with log-probabilities, with taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from benchsuite.benches.decoding.mixes import cut, every_processor
from benchsuite.benches.decoding.ratios import Contrast, Family, Sample
from specdec.assembly import Assembly
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.request import Request, SamplingParams

ROWS, K = 8, 4
"""Rows that decode together, and proposals of a step."""

DRAFT = "oracle(0.8)"
"""The draft, whose acceptance depends on no processor."""

PROMPT_TOKENS, BUDGET = 32, 32
"""Tokens of each prompt and of each output."""


def steps_family(assembly: Assembly, text: Sequence[int], ends: tuple[int, ...]) -> Family:
    """The arms whose steps are compared: one engine, eight requests, different parameters."""
    engine, arms = assembly.engine(DRAFT, k=K, max_rows=ROWS), params_of_arms(assembly.target.vocabulary, ends)
    tapped = partial(stepped, reading_three(assembly), eight(text, arms["greedy"]))
    share, whole = ("rest_share", "% of a step"), ("step_ms", "ms a step")
    return Family(
        {name: partial(stepped, engine, eight(text, params)) for name, params in arms.items()} | {"taps": tapped},
        [
            Contrast("all processors", "greedy", *share),
            Contrast("all processors", "temperature 1", *share),
            Contrast("all processors", "greedy", *whole),
            Contrast("logprobs=5", "greedy", *whole),
            Contrast("taps", "greedy", *whole),
            Contrast("greedy again", "greedy", *share),
            Contrast("greedy again", "greedy", *whole),
        ],
        [
            f"steps: {ROWS} requests, {DRAFT}, K = {K}; of a run the median over its steps with {ROWS} rows that all "
            f"propose {K}",
            "% of a step: its time outside the forwards of target and draft (processors, acceptance, commit, host)",
            "all processors: temperature 1, top-k, top-p, min-p, bias, the three penalties, bad words, least length",
            "greedy, temperature 1: no processor but that",
            "taps: greedy, with a draft that also reads the outputs of three layers, and does nothing with them",
        ],
    )


def reading_three(assembly: Assembly) -> Engine:
    """The engine of the other arms, with a draft that reads the outputs of the first, a middle and the last layer."""
    plain, count = assembly.engine(DRAFT, k=K, max_rows=ROWS), len(assembly.target.layers)
    assert plain.draft
    plain.draft.hidden_layers = tuple(sorted({0, count // 2, count - 1}))
    return Engine(
        plain.target,
        draft=plain.draft,
        policy=plain.policy,
        controller=plain.controller,
        ops=plain.ops,
        max_rows=plain.max_rows,
        max_length=plain.max_length,
        tokenizer=plain.tokenizer,
        runtime=plain.runtime,
    )


def params_of_arms(vocabulary: int, ends: tuple[int, ...]) -> dict[str, SamplingParams]:
    """What the requests of each arm ask for, by its name; ``ends`` are the target's end tokens."""
    greedy = SamplingParams(max_new_tokens=BUDGET)
    return {
        "greedy": greedy,
        "greedy again": greedy,
        "temperature 1": replace(greedy, temperature=1.0),
        "all processors": every_processor(vocabulary, ends, BUDGET),
        "logprobs=5": replace(greedy, logprobs=5),
    }


def eight(text: Sequence[int], params: SamplingParams) -> list[Request]:
    """The requests of a full batch, with prompts of one length."""
    return [Request(row, cut(text, row * PROMPT_TOKENS, PROMPT_TOKENS), params) for row in range(ROWS)]


def stepped(engine: Engine, requests: Sequence[Request]) -> Sample:
    """Run requests; return the medians over their full steps: ``rest_share``, a fraction, and ``step_ms``.

    ``rest_share`` is the share of a step outside the forwards of target and draft. Raises SpecdecError if no step was
    full.
    """
    done = engine.run(requests)
    full = [step for step in engine.stats.steps if step.rows == len(requests) and step.proposed == step.rows * K]
    if not full:
        raise SpecdecError(f"no step had {len(requests)} rows with {K} proposals each; give the outputs more tokens")
    times = [engine.stats.times(step) for step in full]
    return Sample(
        {
            "rest_share": median(time.rest / (time.booked + time.host) for time in times),
            "step_ms": median((time.booked + time.host) * 1e3 for time in times),
        },
        (sum(len(request.prompt) for request in requests), sum(len(one.tokens) for one in done)),
    )
