"""Different prompts as one ragged batch, beside the same prompts one by one, without and with speculation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from benchsuite.benches.decoding.mixes import cut, spread
from benchsuite.benches.decoding.ratios import Contrast, Family, Sample
from benchsuite.benches.decoding.steps import DRAFT, ROWS, K
from benchsuite.machine import clock
from specdec.assembly import Assembly
from specdec.engine import Engine
from specdec.queue import Completion
from specdec.request import Request, SamplingParams

PROMPT, BUDGET = (8, 56), 64
"""The shortest and the longest prompt, and the output of every request, in tokens."""

LONGEST = PROMPT[1] + BUDGET
"""The most tokens of a row."""


def batches_family(assembly: Assembly, text: Sequence[int]) -> Family:
    """The arms whose speeds are compared: the same ``ROWS`` requests, in one batch or each on its own."""
    plain, wide = assembly.engine(None, max_rows=1), assembly.engine(None, max_rows=ROWS)
    drafted, drafted_wide = (assembly.engine(DRAFT, k=K, max_rows=rows) for rows in (1, ROWS))
    requests = different_requests(text)
    speed = ("tokens_per_s", "tokens/s")
    return Family(
        {
            "one by one": partial(emitted, plain, requests),
            "one by one again": partial(emitted, plain, requests),
            "one batch": partial(emitted, wide, requests),
            "one by one, drafts": partial(emitted, drafted, requests),
            "one batch, drafts": partial(emitted, drafted_wide, requests),
        },
        [
            Contrast("one batch", "one by one", *speed),
            Contrast("one by one, drafts", "one by one", *speed),
            Contrast("one batch, drafts", "one batch", *speed),
            Contrast("one by one again", "one by one", *speed),
        ],
        [
            f"batches: {ROWS} different prompts of {PROMPT[0]} to {PROMPT[1]} tokens, outputs of {BUDGET}, greedy; "
            "output tokens per second from the submission of all to the end of the last, prefill included",
            f"drafts: {DRAFT}, K = {K}; the other arms decode without proposals",
        ],
    )


def different_requests(text: Sequence[int]) -> list[Request]:
    """Requests of different lengths from different places of ``text``, the same in every run; none has end tokens."""
    lengths = spread(ROWS, PROMPT, Random(0))
    return [
        Request(row, cut(text, row * len(text) // ROWS, length), SamplingParams(max_new_tokens=BUDGET))
        for row, length in enumerate(lengths)
    ]


def emitted(engine: Engine, requests: Sequence[Request]) -> Sample:
    """Run requests; return ``tokens_per_s``: their output tokens per second, prefill included.

    An engine of one row runs them one after the other.
    """
    done: list[Completion] = []
    seconds = clock.seconds(lambda: done.extend(engine.run(requests)), engine.target.device)
    work = sum(len(request.prompt) for request in requests), sum(len(one.tokens) for one in done)
    return Sample({"tokens_per_s": work[1] / seconds}, work)
