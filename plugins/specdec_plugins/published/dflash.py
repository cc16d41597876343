"""DFlash as it is published: in the form of the speculators package, and in that of the method's authors.

Keys and names as of speculators 0.9 and z-lab/dflash 44947fb (November 2026). The first counts the target's states as
inputs of layers, the second as outputs.
"""

from __future__ import annotations

from typing import Any

from specdec import SpecdecError
from specdec_plugins.heads.dflash_head import DFlashHead
from specdec_plugins.published import blocks
from specdec_plugins.published.blocks import BlockKeys
from specdec_plugins.published.checkpoint import Checkpoint
from specdec_plugins.published.reading import Published, Reading, TargetSizes

FORM = "dflash"

OPTION = "dflash(head=…, layers=1-9-17)"


def knows(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is a DFlash head of either dialect."""
    return checkpoint.settings.peek("speculators_model_type") == FORM or _of_the_authors(checkpoint)


def read(checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[DFlashHead]:
    """The head, and how it was read; SpecdecError for one that does not fit or is not decided."""
    settings = checkpoint.settings
    authors = _of_the_authors(checkpoint)
    layer = settings if authors else settings.inside("transformer_layer_config")
    keys = _keys_of_the_authors(checkpoint, sizes) if authors else package_keys(checkpoint, OPTION, False)
    found = blocks.blocks_of(checkpoint, layer, keys, sizes, reading)
    head = DFlashHead(found.shape, found.mask, found.inverse, found.magnitude, found.bias)
    blocks.fill_blocks(head, found, checkpoint.tensors, sizes.vocabulary)
    return Published(FORM, "z-lab" if authors else "speculators", head, found.reading, found.choices)


def alternatives(published: Published[Any], sizes: TargetSizes) -> dict[str, Reading]:
    """The other readings that would load, each by its name in plain words."""
    return blocks.other_readings(published, sizes)


def package_keys(checkpoint: Checkpoint, option: str, always_first: bool | None) -> BlockKeys:
    """What the speculators package says of a head that drafts blocks.

    ``always_first``: what is meant where ``sample_from_anchor`` is absent, None if that decides nothing.
    """
    settings = checkpoint.settings
    aux = settings.integers("aux_hidden_state_layer_ids")
    ahead = settings.take("sliding_window_non_causal", bool, None)
    first = settings.take("sample_from_anchor", bool, always_first)
    return BlockKeys(
        block=settings.take("block_size", int),
        mask=settings.take("mask_token_id", int),
        reduced=settings.take("draft_vocab_size", int),
        layers=(
            None if aux is None else tuple(one - 1 for one in aux),
            "aux_hidden_state_layer_ids less 1: they count inputs of layers",
        ),
        inside=(None if ahead is None else "all" if ahead else "causal", "sliding_window_non_causal"),
        first=(None if first is None else "proposes" if first else "given", "sample_from_anchor"),
        anchored=True,
        option=option,
    )


def _of_the_authors(checkpoint: Checkpoint) -> bool:
    settings = checkpoint.settings
    named = settings.peek("architectures") == ["DFlashDraftModel"]
    return named and "speculators_model_type" not in settings


def _keys_of_the_authors(checkpoint: Checkpoint, sizes: TargetSizes) -> BlockKeys:
    """z-lab's keys. Their code reads ``hidden_states[id + 1]`` of transformers, the output of layer ``id`` but for the
    last layer, whose entry is behind the final norm."""
    settings, inner, path = checkpoint.settings, checkpoint.settings.inside("dflash_config"), checkpoint.path
    layers = inner.integers("target_layer_ids")
    count = settings.take("num_target_layers", int, sizes.layers)
    if count != sizes.layers:
        raise SpecdecError(f"{path} is for a target of {count} layers, and this target has {sizes.layers}")
    if layers is not None and sizes.layers - 1 in layers:
        raise SpecdecError(
            f"{path} reads the target's last layer behind the final norm (target_layer_ids {layers}); expected layers "
            f"from 0 to {sizes.layers - 2}: a head reads outputs of layers"
        )
    places = [where for where in (settings, inner) if "block_size" in where]
    if len(places) != 1:
        raise SpecdecError(f"{path} has block_size {len(places)} times; expected it at the top or in dflash_config")
    inner.fixed("use_aux_hidden_state", True)
    inner.fixed("use_swa", False)
    inner.fixed("causal", False)
    causal = inner.peek("causal")
    vocabulary = settings.peek("vocab_size")
    return BlockKeys(
        block=places[0].take("block_size", int),
        mask=inner.take("mask_token_id", int),
        reduced=settings.take("draft_vocab_size", int, vocabulary if isinstance(vocabulary, int) else 0),
        layers=(layers, "dflash_config.target_layer_ids, which are outputs of layers"),
        inside=(None if causal is None else "all", "dflash_config.causal"),
        first=("given", "the form has no other"),
        anchored=False,
        option=OPTION,
    )
