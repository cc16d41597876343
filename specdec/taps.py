"""Taps: which hidden states of a target drafts ask for, and the one tensor in which these are handed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.errors import SpecdecError

if TYPE_CHECKING:
    from specdec.interfaces import Draft


@dataclass(frozen=True)
class Taps:
    """The outputs of decoder ``layers``, ascending from 0, and with ``final`` the states after the final norm.

    They are handed over as one tensor [B, W, n, H], in this order; without layers it is that of the final states alone,
    [B, W, H]. docs/design.md has a picture of what an index means.

    Example: ``Taps((2, 14, 29)).gathered(outputs, final)``
    """

    layers: tuple[int, ...] = ()
    final: bool = False

    @staticmethod
    def of(drafts: Sequence[Draft]) -> Taps:
        """What drafts ask for together; SpecdecError for ``hidden_layers`` that are no ascending tuple of indices."""
        for draft in drafts:
            asked: object = draft.hidden_layers
            if (
                not isinstance(asked, tuple)
                or not all(type(layer) is int for layer in asked)
                or any(layer >= following for layer, following in pairwise((-1, *asked)))
            ):
                raise SpecdecError(
                    f"hidden_layers of the draft {type(draft).__name__} are {asked!r}; expected a tuple of ascending "
                    "indices of decoder layers, the first layer being 0: (2, 14, 29)"
                )
        layers = sorted({layer for draft in drafts for layer in draft.hidden_layers})
        return Taps(tuple(layers), any(draft.needs_hidden for draft in drafts))

    def __bool__(self) -> bool:
        """Whether any state is asked for."""
        return self.final or bool(self.layers)

    def refuse_beyond(self, count: int, owner: str) -> None:
        """Raise SpecdecError, by the name of a draft, for a layer that a target of ``count`` layers does not have."""
        if self.layers and self.layers[-1] >= count:
            raise SpecdecError(
                f"the draft {owner} reads the output of layer {self.layers[-1]}, and the target has {count} layers; "
                f"expected hidden_layers from 0 to {count - 1}"
            )

    def gathered(self, outputs: Sequence[Tensor], final: Tensor) -> Tensor:
        """The one tensor, of the layers' outputs and the final states, [B, W, H] each."""
        return torch.stack([*outputs, *[final] * self.final], dim=2) if self.layers else final

    def part(self, states: Tensor, asked: Taps) -> Tensor | None:
        """Of ``states`` gathered for these taps the tensor of ``asked``, a part of them; None if that asks for none."""
        if not asked or asked == self:
            return states if asked else None
        if not asked.layers:
            return states[:, :, -1]
        places = [*map(self.layers.index, asked.layers), *[len(self.layers)] * asked.final]
        return torch.stack([states[:, :, place] for place in places], dim=2)


NO_LAYERS = Taps()
"""Of a forward the states after the final norm alone."""
