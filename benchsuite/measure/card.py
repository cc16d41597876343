"""The card printed before anything is measured: what must move, how fast it can, how long it will take."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

import torch
import transformers

from benchsuite.machine import provenance
from benchsuite.measure.matrix import Arm
from benchsuite.measure.results import Machine


def card(
    machine: Machine,
    device: torch.device,
    arms: Sequence[Arm],
    prompts: int,
    forward_s: float,
    absent: Sequence[str] = (),
) -> list[str]:
    """The card's lines. ``forward_s`` is one measured forward of one token; ``absent``, backends that cannot run."""
    gib = machine.weight_bytes / 2**30
    floor = machine.weight_bytes / machine.bandwidth
    tokens = max(arm.setting.max_new_tokens for arm in arms)
    # One more plain run of each prompt for drafts that replay it; and a speculative step is slower than a plain
    # one, though a row may gain nothing by it: 1.6 on average here.
    expected = (len(arms) + 1) * prompts * tokens * forward_s * 1.6
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return [
        f"target {machine.target}: {gib:.2f} GiB of {machine.dtype} weights, backend {machine.backend}",
        f"machine {provenance.device_name(device)}, {os.cpu_count()} cores{threads}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}",
        f"measured read bandwidth {machine.bandwidth / 1e9:.1f} GB/s, so no forward can take less than "
        f"{floor * 1e3:.2f} ms; one forward took {forward_s * 1e3:.2f} ms",
        f"{len(arms)} arms x {prompts} prompts x up to {tokens} tokens: about {_minutes(expected)}",
        *(part for reason in absent for part in textwrap.wrap(f"without backend {reason}", 118)),
    ]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
