"""P-EAGLE as it is published: EAGLE-3's network, and what stands for tokens and states that are not there yet.

Keys and names as of speculators 0.9 and SpecForge a6b6b023 (November 2026). The second writes neither the mask's token
nor the layers into a checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from torch import Tensor, nn

from specdec import SpecdecError
from specdec_plugins.published import eagle3
from specdec_plugins.published.checkpoint import Checkpoint
from specdec_plugins.published.eagle3 import Eagle3Parts
from specdec_plugins.published.reading import Published, Reading, TargetSizes, settled

FORM = "peagle"


class PeagleParts(nn.Module):
    """EAGLE-3's parts; ``mask``, the token of every place past the first; and ``states`` [1, 1, n, H] that stand for
    the target's there, in the order of the head's layers."""

    states: Tensor

    def __init__(self, eagle: Eagle3Parts, mask: int, states: Tensor) -> None:
        super().__init__()
        self.eagle, self.mask = eagle, mask
        self.register_buffer("states", states)


def knows(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is a P-EAGLE head."""
    kind = checkpoint.settings.peek("speculators_model_type")
    return kind == FORM or (kind is None and checkpoint.settings.peek("architectures") == ["PEagleDraftModel"])


def read(checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[PeagleParts]:
    """The head, and how it was read; SpecdecError for one that does not fit or is not decided."""
    named = checkpoint.settings.take("mask_token_id", int, None)
    choice = settled("mask", reading.mask, [(named, "mask_token_id")], "peagle(head=…, mask=151669)")
    mask = cast(int, choice.value)
    if not 0 <= mask < sizes.vocabulary:
        last = sizes.vocabulary - 1
        raise SpecdecError(f"the mask of {checkpoint.path} is token {mask} ({choice}); expected one from 0 to {last}")
    found = eagle3.read(checkpoint, sizes, replace(reading, mask=None))
    shape = found.head.network.shape
    states = checkpoint.tensors.take("mask_hidden", (1, 1, shape.states * shape.state_size))
    parts = PeagleParts(found.head, mask, states.unflatten(2, (shape.states, shape.state_size)))
    dialect = "SpecForge" if found.dialect != "speculators" else found.dialect
    return Published(FORM, dialect, parts, replace(found.reading, mask=mask), (*found.choices, choice))


def alternatives(published: Published[PeagleParts], sizes: TargetSizes) -> dict[str, Reading]:
    """The other readings of EAGLE-3's network that would load: nothing of it is fed back, and the mask is known."""
    inner = Published(eagle3.FORM, published.dialect, published.head.eagle, published.reading, published.choices)
    others = eagle3.alternatives(inner, sizes)
    return {name: other for name, other in others.items() if other.states == published.reading.states}
