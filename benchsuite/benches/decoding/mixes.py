"""Requests as users send them, and equal ones beside them: what the benchmark of decoding runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, islice

from specdec.jobs import Job
from specdec.request import SamplingParams

REQUESTS = 200
"""Requests of one queue."""

PROMPT, OUTPUT = (4, 28), (2, 10)
"""The shortest and the longest prompt and output of ragged requests, in tokens; their means lie in the middle."""

ALIKE = {
    "temperature": 0.8,
    "top_p": 0.9,
    "min_p": 0.05,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
}
"""The parameters of equal requests."""

RANGE: dict[str, Sequence[float]] = {
    "temperature": (0.0, 0.7, 1.0, 1.3),
    "top_p": (0.8, 0.9, 1.0),
    "min_p": (0.0, 0.05, 0.1),
    "presence_penalty": (0.0, 0.5, 1.0),
    "frequency_penalty": (0.0, 0.5, 1.0),
    "repetition_penalty": (1.0, 1.1, 1.2),
}
"""The values from which each ragged request has its own."""


def spread(count: int, ends: tuple[int, int], dice: random.Random) -> list[int]:
    """Whole numbers from ``ends``, even in number, whose sum is ``count`` times the middle.

    Example: ``spread(2, (1, 5), random.Random(0))`` are two numbers whose sum is 6.
    """
    half = [dice.randint(*ends) for _ in range(count // 2)]
    found = half + [sum(ends) - number for number in half]
    dice.shuffle(found)
    return found


def ragged_jobs(text: Sequence[int], count: int = REQUESTS) -> list[Job]:
    """Requests of different lengths, budgets and parameters, the same in every run; ``count`` is even.

    ``text`` are the token ids that prompts are cut from. None has an end token: each emits its whole budget.
    """
    dice = random.Random(0)
    lengths, budgets = spread(count, PROMPT, dice), spread(count, OUTPUT, dice)
    return [
        _job(index, text, length, budget, **{name: dice.choice(values) for name, values in RANGE.items()})
        for index, (length, budget) in enumerate(zip(lengths, budgets, strict=True))
    ]


def equal_jobs(text: Sequence[int], count: int = REQUESTS) -> list[Job]:
    """As many requests with as many tokens in all, of one length, budget and parameters."""
    return [_job(index, text, sum(PROMPT) // 2, sum(OUTPUT) // 2, **ALIKE) for index in range(count)]


def _job(index: int, text: Sequence[int], length: int, budget: int, **params: float) -> Job:
    sampling = SamplingParams(seed=index, max_new_tokens=budget)
    return Job(index, index, cut(text, index * PROMPT[1], length), _with(sampling, params), ends=True)


def _with(params: SamplingParams, changes: dict[str, float]) -> SamplingParams:
    return SamplingParams(**{**vars(params), **changes})


def cut(text: Sequence[int], start: int, length: int) -> tuple[int, ...]:
    """``length`` token ids of ``text`` from ``start`` on; after its end it begins again.

    Example: ``cut((1, 2, 3), 2, 3)`` is ``(3, 1, 2)``
    """
    return tuple(islice(cycle(text), start % len(text), start % len(text) + length))


def every_processor(vocabulary: int, ends: tuple[int, ...], budget: int) -> SamplingParams:
    """All processors at once, at temperature 1: none of them keeps a request from emitting its whole ``budget``.

    ``ends`` are the target's end tokens; the least length puts them off. A ``vocabulary`` has at least 64 tokens.
    """
    words = [token for token in range(vocabulary // 2, vocabulary) if token not in ends]
    return SamplingParams(
        temperature=1.0,
        top_k=50,
        top_p=0.95,
        max_new_tokens=budget,
        eos=ends or (0,),
        min_p=0.02,
        presence_penalty=0.3,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={words[0]: 2.0, words[1]: -2.0},
        bad_words=((words[2],), (words[3], words[4]), (words[3], words[4], words[5])),
        min_new_tokens=budget,
    )
