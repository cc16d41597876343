"""The layer that looks at what drafts are given of the target."""

from __future__ import annotations

import itertools

from benchsuite.conformance.models import tiny
from benchsuite.workshop.machines.read_states import Unmodified, over_reader, reader_of
from specdec import SamplingParams
from specdec.taps import Taps

SAMPLED = SamplingParams(temperature=0.8, repetition_penalty=1.3, seed=3, max_new_tokens=10)


def given_states() -> None:
    """States of three layers, final states and verified logits are the unmodified model's: op by op, and where one op
    runs several layers; of chains and trees, after rejections, in ragged rows that end and move.
    """
    for backend, inner in (("reference", "oracle(0.6)"), ("auto", "forked")):
        taps = Taps((0, 2, 3), final=inner == "forked")
        build = over_reader("llama", backend, inner, taps)
        engine, unmodified = build.engine("reader", k=4), Unmodified.of(build.target)
        tiny.ask(engine, itertools.cycle([4, 4, 0, 2]))
        engine.run(tiny.requests(SAMPLED, 4))
        for text, got in reader_of(engine).texts.items():
            unmodified.check(text[:-1], taps, got, f"{inner} on {backend}, {len(text)} tokens")
