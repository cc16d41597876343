"""Pins of test_laws.py: tests that read what is private."""

from __future__ import annotations

import pytest

from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import Make
from specdec import Request, SamplingParams


def test_a_short_probe_is_repeated_to_24_tokens_and_a_longer_one_kept(assemble: Make) -> None:
    target = assemble().target
    for probe, expected in (
        (range(5), (*range(5), *range(5), *range(5), *range(5), *range(4))),
        (range(23), (*range(23), 0)),
        (range(24), tuple(range(24))),
        (range(31), tuple(range(31))),
    ):
        assert Judge(target, probe)._probe == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_judge_draws_from_an_engines_logits_the_token_that_the_engine_draws(
    temperature: float, assemble: Make
) -> None:
    build = assemble()
    judge = Judge(build.target, range(40))
    for seed in range(6):
        params = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=3)
        request = Request(seed, tuple(range(3 + seed, 12)), params)
        output = build.plain(request)
        for place, token in enumerate(output):
            logits = judge.logits((*request.prompt, *output[:place]))
            assert judge.choice(logits, request.after(output[:place])) == token
