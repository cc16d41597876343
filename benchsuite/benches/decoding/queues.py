"""Queues of many requests through few rows: ragged, equal, grouped by length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from transformers import PreTrainedTokenizerBase

from benchsuite.benches.decoding.mixes import ALIKE, OUTPUT, PROMPT, REQUESTS, equal_jobs, ragged_jobs
from benchsuite.benches.decoding.ratios import Contrast, Family, Sample
from benchsuite.benches.decoding.steps import ROWS
from benchsuite.machine import clock
from specdec.assembly import Assembly
from specdec.engine import Engine
from specdec.jobs import Job, Prompts, run_jobs
from specdec.queue import Completion


def queues_family(assembly: Assembly, text: Sequence[int], count: int = REQUESTS) -> Family:
    """The arms whose speeds are compared: one engine of plain decoding, three queues of ``count`` requests."""
    engine = assembly.engine(None, max_rows=ROWS)
    ragged, equal = ragged_jobs(text, count), equal_jobs(text, count)
    run = partial(queued, engine, assembly.tokenizer)
    speed = ("tokens_per_s", "tokens/s")
    values = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in ALIKE.items())
    return Family(
        {
            "equal": partial(run, equal),
            "ragged": partial(run, ragged),
            "ragged again": partial(run, ragged),
            "ragged, grouped": partial(run, ragged, grouped=True),
        },
        [
            Contrast("ragged", "equal", *speed),
            Contrast("ragged, grouped", "ragged", *speed),
            Contrast("ragged again", "ragged", *speed),
        ],
        [
            f"queues: {count} requests through {ROWS} rows, plain decoding; output tokens per second from the first "
            "request to the end of the last, prefill included",
            f"ragged: prompts of {PROMPT[0]} to {PROMPT[1]} tokens, outputs of {OUTPUT[0]} to {OUTPUT[1]}, "
            "temperatures, filters and penalties of their own; in the queue's order",
            f"equal: {sum(PROMPT) // 2} and {sum(OUTPUT) // 2} tokens each, {values}",
            "grouped: the longest prompt and output first, of the same requests",
        ],
        partial(run, ragged[: 2 * ROWS]),
    )


def queued(engine: Engine, tokenizer: PreTrainedTokenizerBase, jobs: Sequence[Job], grouped: bool = False) -> Sample:
    """Run jobs of token ids to their ends; return ``tokens_per_s``: output tokens per second, prefill included."""
    engine.run([])  # forgets the ids of the run before
    done: list[Completion] = []

    def run() -> None:
        with Prompts(tokenizer, jobs) as prompts:
            done.extend(completion for _, completion in run_jobs(engine, prompts, grouped=grouped))

    seconds = clock.seconds(run, engine.target.device)
    work = sum(len(one.request.prompt) for one in done), sum(len(one.tokens) for one in done)
    return Sample({"tokens_per_s": work[1] / seconds}, work)
