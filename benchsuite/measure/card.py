"""The card printed before a measurement: bytes of the weights, limit of the bandwidth, expected duration."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transformers

from benchsuite.machine import provenance
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.rows import Machine
from specdec import catalog, devices
from specdec.amounts import amount, memory_text


def card(
    machine: Machine,
    device: torch.device,
    arms: Sequence[Arm],
    prompts: int,
    forward_s: float,
    expected: str,
    absent: Sequence[str] = (),
    peers: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> list[str]:
    """Return the card's lines.

    ``forward_s``: measured seconds of a forward of one token; ``expected``: how long all will take, in words;
    ``absent``: backends that cannot run, each with its reason; ``peers``: what each peer runs (``Peer.described``);
    ``notes``: on the target's memory and on the machine's load.
    """
    tokens = max(arm.setting.sampling.max_new_tokens for arm in arms)
    threads = f", {amount(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    return [
        f"target {machine.target}: {memory_text(machine.weight_bytes)} of {machine.dtype} weights, backend "
        f"{machine.backend}",
        f"machine {provenance.device_name(device)}, {provenance.cores_line()}{threads}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}",
        _limit(machine.weight_bytes / machine.bandwidth, machine.bandwidth, forward_s),
        *(f"gpu {line}" for line in _gpu(device)),
        f"{amount(len(arms), 'arm')} x {amount(prompts, 'prompt')} x up to {amount(tokens, 'token')}: {expected}",
        *(f"peer {line}" for line in peers),
        *(f"without backend {line}" for line in absent),
        *(f"note: {line}" for line in notes),
    ]


def _limit(floor: float, bandwidth: float, forward_s: float) -> str:
    """What the bandwidth says of a forward: a limit, unless the forward was faster than it."""
    measured, took = f"measured read bandwidth {bandwidth / 1e9:.1f} GB/s", f"one forward took {forward_s * 1e3:.2f} ms"
    if forward_s >= floor:
        return f"{measured}, so no forward can take less than {floor * 1e3:.2f} ms; {took}"
    return (
        f"{measured}, which is no limit: {took}, and would take {floor * 1e3:.2f} ms; the machine was busy when the "
        "bandwidth was measured, or a cache holds the weights"
    )


def dry(
    setting: Setting,
    dtype: torch.dtype,
    device: torch.device,
    bandwidth: float,
    *,
    longest: int,
    window: int,
    runs: int,
) -> list[str]:
    """Return the lines of a dry run on the target that it stands for: bytes, room, and the time to read its weights.

    ``longest``: tokens of the longest prompt; ``window``: slots of the widest window; ``runs``: of a prompt by an arm.
    The tiny model's tokenizer counts bytes, so prompts are counted longer than they are. Of the target only the config
    is read.
    """
    found = catalog.sizes(setting.target, catalog.read_config(setting.target), dtype)
    arena = setting.batch * found.row(longest + setting.sampling.max_new_tokens, window)
    free = devices.available_bytes(device)
    seconds = runs * setting.sampling.max_new_tokens * found.weights / bandwidth
    states = " and states" if found.state else ""
    return [
        f"dry run: {setting.target} would read {memory_text(found.weights)} of weights and hold up to "
        f"{memory_text(arena)} of keys and values{states} for each arm; {memory_text(free)} are free",
        f"dry run: its forwards would take {minutes(seconds)} by the bandwidth that was just measured; every model "
        "here is tiny, and no figure means anything",
    ]


def _gpu(device: torch.device) -> list[str]:
    if device.type != "cuda":
        return []
    index = torch.cuda.current_device() if device.index is None else device.index
    return [provenance.accelerator_line(provenance.accelerator(index))]


def minutes(seconds: float) -> str:
    """Return a duration in seconds or minutes, for example ``90 s`` or ``3 min``."""
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
