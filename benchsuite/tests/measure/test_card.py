"""The card: what it says of a target's bytes, of the bandwidth's limit, and of how long all will take."""

from __future__ import annotations

import re

import pytest
import torch

from benchsuite.measure.arms import Arm
from benchsuite.measure.card import card, dry, minutes
from benchsuite.measure.rows import Machine
from benchsuite.tests.rig import SETTING
from specdec import catalog
from specdec.amounts import amount

MACHINE = Machine("tiny", "cpu", "cpu", "bfloat16", 3 * 2**30, 1, 2.0**31, 0)
"""A forward reads 3 GiB at 2 GiB a second."""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "60 s"), (90, "90 s"), (90.5, "2 min"), (149, "2 min"), (3600, "60 min")]
)
def test_a_duration_is_in_seconds_up_to_ninety(seconds: float, text: str) -> None:
    assert minutes(seconds) == text


def test_a_card_has_a_line_for_everything_it_was_given() -> None:
    arms = [Arm(SETTING), Arm(SETTING.replaced(max_new_tokens=7), draft="ngram", k=2)]
    given = {"absent": ["cuda: no driver"], "peers": ["one", "two"], "notes": ["busy"]}
    lines = card(MACHINE, torch.device("cpu"), arms, 5, 1.5, "about 3 min", **given)
    assert lines[0] == "target tiny: 3.00 GiB of bfloat16 weights, backend cpu"
    assert f", {amount(torch.get_num_threads(), 'thread')}, torch {torch.__version__}, transformers " in lines[1]
    assert lines[2:] == [
        "measured read bandwidth 2.1 GB/s, so no forward can take less than 1500.00 ms; one forward took 1500.00 ms",
        "2 arms x 5 prompts x up to 24 tokens: about 3 min",
        *("peer one", "peer two", "without backend cuda: no driver", "note: busy"),
    ]


def test_a_bandwidth_that_a_forward_beats_is_no_limit() -> None:
    said = card(MACHINE, torch.device("cpu"), [Arm(SETTING)], 1, 1.4999, "")[2]
    assert said.startswith(
        "measured read bandwidth 2.1 GB/s, which is no limit: one forward took 1499.90 ms, and would "
    )
    assert "take 1500.00 ms" in said


def test_a_dry_run_says_what_the_target_that_it_stands_for_would_take() -> None:
    setting = SETTING.replaced(batch=512, max_new_tokens=3 * 10**6)
    bytes_of = catalog.sizes("tiny", catalog.read_config("tiny"), torch.bfloat16)
    read, took = dry(setting, torch.bfloat16, torch.device("cpu"), 1e9, longest=10**6, window=4, runs=7)
    found = re.search(
        r"read ([\d.]+) MiB of weights and hold up to ([\d.]+) GiB of keys and values for each arm; ", read
    )
    assert found
    assert float(found[1]) == pytest.approx(bytes_of.weights / 2**20, abs=0.005)
    assert float(found[2]) == pytest.approx(bytes_of.cell * 512 * 4 * 10**6 / 2**30, rel=1e-4)
    assert f"its forwards would take {7 * 3 * 10**6 * bytes_of.weights / 1e9 / 60:.0f} min by the bandwidth" in took
