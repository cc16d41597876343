"""Medusa's heads: in the form of Medusa's own repository, and in that of vLLM."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig

from specdec import SpecdecError
from specdec_plugins.heads.medusa_heads import MedusaBlocks
from specdec_plugins.published.checkpoint import Checkpoint
from specdec_plugins.published.reading import Choice, Published, Reading, TargetSizes, settled

FORM = "medusa"


@dataclass(frozen=True)
class MedusaNames:
    """The names of one dialect: of block l of head n, and of the rows of head n, which has L blocks.

    ``heads`` and ``layers`` are the settings with their numbers. ``biased``: a block always has a bias; else
    ``medusa_fc_bias`` says whether it has.
    """

    dialect: str
    block: str
    rows: str
    heads: str
    layers: str
    biased: bool


_DIALECTS = tuple(
    MedusaNames(dialect, start + block, start + rows, heads, layers, dialect == "Medusa")
    for dialect, starts, block, rows, heads, layers in (
        ("Medusa", ("", "medusa_head."), "{n}.{l}.linear", "{n}.{L}", "medusa_num_heads", "medusa_num_layers"),
        ("vLLM", ("", "medusa_heads."), "blocks.{n}.layers.{l}", "lm_heads.{n}", "num_heads", "num_hidden_layers"),
    )
    for start in starts
)

_HARMLESS = (
    *("base_model_name_or_path", "transformers_version", "torch_dtype", "_name_or_path", "rope_theta", "rope_scaling"),
    *("max_paths", "topk", "max_seq_len"),
)
"""Settings that say nothing about what the heads compute, beside those of the model below them."""


def knows(checkpoint: Checkpoint) -> bool:
    """Whether it has a residual block of Medusa's."""
    return _dialect(checkpoint) is not None


def read(checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[MedusaBlocks]:
    """All heads of a checkpoint; see ``Form``."""
    names, settings, tensors = _dialect(checkpoint), checkpoint.settings, checkpoint.tensors
    assert names is not None
    if reading != Reading(final=reading.final):
        raise SpecdecError("Medusa's heads are read in one way but for the option final; leave the others out")
    count = next(n for n in itertools.count() if names.block.format(n=n, l=0) + ".weight" not in tensors)
    layers = next(i for i in itertools.count() if names.block.format(n=0, l=i) + ".weight" not in tensors)
    said = settings.take(names.heads, int, count)
    if said > count or settings.take(names.layers, int, layers) != layers:
        raise SpecdecError(
            f"{checkpoint.path} has {count} heads of {layers} blocks; expected as many as its settings say: "
            f"{names.heads} {said}, {names.layers} {settings.peek(names.layers)}"
        )
    for key, size in (("hidden_size", sizes.hidden), ("vocab_size", sizes.vocabulary)):
        if (got := settings.take(key, int, size)) != size:
            raise SpecdecError(f"{checkpoint.path} is for another model: {key} is {got} and the target's {size}")
    biased = settings.take("medusa_fc_bias", bool, names.biased)
    settings.fixed("logit_scale", 1.0)
    rule = [("after", "the heads of Medusa's repository read what its model returns")]
    final = settled("final", reading.final, rule, "medusa(head=…, final=after)")

    def parts(kind: str, *shape: int) -> Tensor:
        return torch.stack(
            [
                torch.stack([tensors.take(f"{names.block.format(n=n, l=i)}.{kind}", shape) for i in range(layers)])
                for n in range(count)
            ]
        )

    blocks = parts("weight", sizes.hidden, sizes.hidden)
    bias = parts("bias", sizes.hidden) if biased else None
    ids = _token_map(checkpoint, sizes)
    rows, source = _rows(checkpoint, names, sizes, count, layers, ids)
    settings.harmless(*_HARMLESS, *LlamaConfig().to_dict())
    choices = (
        final,
        Choice("heads", count, f"the tensors; {names.heads} {settings.peek(names.heads)}"),
        Choice("output", "target" if rows is None else "own", source),
        Choice("ids", "all" if ids is None else "id", "no token_map" if ids is None else "tensor token_map"),
    )
    head = MedusaBlocks(blocks, bias, rows, ids)
    return Published(FORM, names.dialect, head, Reading.of(final=str(final.value)), choices)


def alternatives(published: Published[MedusaBlocks], sizes: TargetSizes) -> dict[str, Reading]:
    """The target's states from the other side of its norm; see ``Form``."""
    if published.reading.final == "after":
        return {"the target's states from before its last norm": Reading(final="before")}
    return {"the target's states from after its last norm": Reading(final="after")}


def _dialect(checkpoint: Checkpoint) -> MedusaNames | None:
    return next((names for names in _DIALECTS if names.block.format(n=0, l=0) + ".weight" in checkpoint.tensors), None)


def _token_map(checkpoint: Checkpoint, sizes: TargetSizes) -> Tensor | None:
    """The target's ids of a reduced vocabulary, int64 [D]; None for all tokens."""
    settings, shapes = checkpoint.settings, checkpoint.tensors.shapes
    size = settings.take("truncated_vocab_size", int, sizes.vocabulary)
    if "token_map" not in shapes:
        if size != sizes.vocabulary:
            raise SpecdecError(
                f"{checkpoint.path} has a truncated_vocab_size of {size} and no tensor token_map; expected one that "
                f"says which of the target's {sizes.vocabulary} tokens these are"
            )
        return None
    ids = checkpoint.tensors.take("token_map", (size,), "integers").long()
    if len(ids.unique()) < size or int(ids.min()) < 0 or int(ids.max()) >= sizes.vocabulary:
        most = sizes.vocabulary - 1
        raise SpecdecError(f"token_map in {checkpoint.path} repeats ids or has some that are not from 0 to {most}")
    return ids


def _rows(
    checkpoint: Checkpoint, names: MedusaNames, sizes: TargetSizes, count: int, layers: int, ids: Tensor | None
) -> tuple[Tensor | None, str]:
    """The rows that read tokens, [N, D, H] or [D, H] for all heads; None for the target's own; and what says so."""
    tensors = checkpoint.tensors
    named = [names.rows.format(n=n, L=layers) + ".weight" for n in range(count)]
    shared = checkpoint.settings.take("original_lm_head", bool, False)
    if shared or named[0] not in tensors:
        named = named[:1]
    if named[0] not in tensors:
        return None, f"no tensor {named[0]}"
    every = tensors.shapes[named[0]][:1] == (sizes.vocabulary,)
    size = sizes.vocabulary if every or ids is None else len(ids)
    rows = [tensors.take(name, (size, sizes.hidden)) for name in named]
    if every and ids is not None:
        rows = [one[ids] for one in rows]
    return (rows[0], "original_lm_head") if shared else (torch.stack(rows), f"tensor {named[0]}")
