"""What a plugin does not claim is not run, and the skip names the claim."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchsuite import conformance
from benchsuite.conformance import drafts
from benchsuite.conformance.claims import Checks
from specdec import Engine
from specdec.assembly import Assembly

SKIPPED: list[tuple[type[Checks], str, dict[str, Any], str]] = [
    (
        conformance.draft("garbage", memoryless=False),
        "test_what_it_proposes_follows_from_the_text",
        {"params": drafts.GREEDY, "policy": "coupled"},
        "memoryless=False",
    ),
    (
        conformance.draft("garbage", memoryless=False),
        "test_a_prompt_read_in_chunks_is_a_prompt_read_at_once",
        {},
        "memoryless=False, so that two runs may propose differently",
    ),
    (
        conformance.draft("garbage", fakes=False),
        "test_a_step_is_fit_for_a_gpu",
        {"params": drafts.GREEDY},
        "fakes=False",
    ),
    *(
        (conformance.draft("garbage"), name, {}, "sampled=False")
        for name in (
            "test_q_is_the_distribution_that_its_proposals_were_drawn_from",
            "test_its_own_noise_is_new_in_every_step",
        )
    ),
    *(
        (
            conformance.policy("typical", greedy="lossy", sampled="lossy"),
            f"test_{name}_outputs_are_plain_where_claimed",
            {},
            f"{name}=lossy",
        )
        for name in ("greedy", "sampled")
    ),
    (
        conformance.controller("goodput", deterministic=False),
        "test_it_repeats_where_claimed",
        {"draft": "garbage"},
        "deterministic=False",
    ),
    (
        conformance.engine("transformers", own_arithmetic=True),
        "test_its_tokens_are_the_targets",
        {},
        "own_arithmetic=True",
    ),
]


@pytest.mark.parametrize(("kit", "check", "given", "claim"), SKIPPED, ids=lambda value: str(value)[:40])
def test_what_is_not_claimed_is_not_run_and_the_skip_names_the_claim(
    kit: type[Checks], check: str, given: dict[str, Any], claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine", "run"):
        monkeypatch.setattr(Assembly if name == "engine" else Engine, name, None)
    with pytest.raises(pytest.skip.Exception) as skipped:
        getattr(kit(), check)(**given)
    assert str(skipped.value) == f"claimed: {claim}"


def test_an_accelerators_checks_are_skipped_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(pytest.skip.Exception, match="no CUDA device here"):
        conformance.draft("garbage")().test_it_changes_no_output(drafts.GREEDY, "cuda", torch.float32)
