"""A model of Llama's structure as calls of ops, without the forwards of its modules.

Around its layers, which are one op, transformers' modules take a tenth of a step of int8 weights on a CPU: they copy a
list of layers, look configurations up and make masks that nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from specdec.decoder import DecoderWeights

if TYPE_CHECKING:
    from specdec.arena import Plan
    from specdec.interfaces import Backend

BASE = {"embed_tokens", "layers", "norm", "rotary_emb"}
"""The parts of the base of a model of Llama's structure."""


class Straight:
    """Embedding, layers over the arena, norm and head.

    ``layers`` are the weights of all decoder layers; ``norm`` and ``head`` are the ops in place of these modules. The
    caller must test that the logits are the model's: a family may do more between these parts.

    Example: ``straight.head(straight.hidden(tokens, plan))``
    """

    def __init__(
        self,
        model: nn.Module,
        base: Any,
        layers: Sequence[DecoderWeights],
        ops: Backend,
        norm: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
    ) -> None:
        self._base, self._layers, self._decoder_layers, self._norm = base, tuple(layers), ops.decoder_layers, norm
        self._modules = model, base, *model.children(), *base.children(), *base.layers
        self.head = head

    @staticmethod
    def of(
        model: nn.Module,
        base: nn.Module,
        layers: Sequence[DecoderWeights],
        ops: Backend,
        forwards: Mapping[nn.Module, Callable[..., Any]],
    ) -> Straight | None:
        """None if the model has other parts than those of Llama, or one that no op of ``forwards`` computes."""
        parts = dict(base.named_children())
        head = [child for child in model.children() if child is not base]
        if parts.keys() != BASE or type(parts["embed_tokens"]) is not nn.Embedding or len(head) != 1:
            return None
        if parts["norm"] not in forwards or head[0] not in forwards:
            return None
        if any(layer.join_out or layer.join_down for layer in layers):  # ranks wait for each other in modules
            return None
        return Straight(model, base, layers, ops, forwards[parts["norm"]], forwards[head[0]])

    @property
    def hooked(self) -> bool:
        """Whether a module has a hook, which would not be called here."""
        return any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)

    def hidden(self, tokens: Tensor, plan: Plan) -> Tensor:
        """The states [B, W, H] that the head reads, of tokens int64 [B, W]. In place: the cells of ``plan``.

        Raises IndexError for a token outside of the vocabulary where the host looks it up.
        """
        x = self._base.embed_tokens(tokens)
        turn = self._base.rotary_emb(x, position_ids=plan.position)
        cells = [plan.at(layer) for layer in range(len(self._layers))]
        return self._norm(self._decoder_layers(x, self._layers, turn, cells))
