"""DSpark in the form of the speculators package: DFlash with a bias by the token before and a confidence.

Keys and names as of speculators 0.9 (November 2026).
"""

from __future__ import annotations

from typing import Any

from specdec import SpecdecError
from specdec_plugins.heads.dspark_head import DSparkHead, DSparkParts, Markov, MarkovKind
from specdec_plugins.published import blocks
from specdec_plugins.published.checkpoint import Checkpoint, Settings, Tensors
from specdec_plugins.published.dflash import package_keys
from specdec_plugins.published.reading import Published, Reading, TargetSizes

FORM = "dspark"

OPTION = "dspark(head=…, layers=1-9-17)"

KINDS: dict[str, MarkovKind] = {"vanilla": "vanilla", "gated": "gated", "rnn": "rnn"}


def knows(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is a DSpark head."""
    return checkpoint.settings.peek("speculators_model_type") == FORM


def read(checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[DSparkHead]:
    """The head, and how it was read; SpecdecError for one that does not fit or is not decided."""
    settings, tensors = checkpoint.settings, checkpoint.tensors
    layer, parts = settings.inside("transformer_layer_config"), _parts(settings, checkpoint.path)
    # Where sample_from_anchor is absent the package takes True and vLLM 0.32 False.
    found = blocks.blocks_of(checkpoint, layer, package_keys(checkpoint, OPTION, None), sizes, reading)
    reduced = sizes.vocabulary if found.ids is None else len(found.ids)
    head = DSparkHead(
        found.shape, parts, sizes.vocabulary, reduced, found.mask, found.inverse, found.magnitude, found.bias
    )
    blocks.fill_blocks(head, found, tensors, sizes.vocabulary)
    if head.markov is not None:
        _fill_markov(head.markov, tensors)
    if head.sure is not None and head.sure_bias is not None:
        head.sure.data = tensors.take("confidence_head.proj.weight", tuple(head.sure.shape))
        head.sure_bias.data = tensors.take("confidence_head.proj.bias", (1,))
    return Published(FORM, "speculators", head, found.reading, found.choices)


def alternatives(published: Published[Any], sizes: TargetSizes) -> dict[str, Reading]:
    """The other readings that would load, each by its name in plain words."""
    return blocks.other_readings(published, sizes)


def _parts(settings: Settings, path: str) -> DSparkParts:
    rank, kind = settings.take("markov_rank", int), settings.take("markov_head_type", str)
    if kind not in KINDS:
        raise SpecdecError(f"markov_head_type in {path} is {kind!r}; expected {', '.join(KINDS)}")
    confident, by_token = (
        settings.take("enable_confidence_head", bool),
        settings.take("confidence_head_with_markov", bool),
    )
    if confident and by_token and not rank:
        raise SpecdecError(f"confidence_head_with_markov in {path} is true and markov_rank is 0; expected a rank")
    return DSparkParts(KINDS[kind] if rank else None, rank, ("token" if by_token else "state") if confident else None)


def _fill_markov(markov: Markov, tensors: Tensors) -> None:
    markov.before.data = tensors.take("markov_head.markov_w1.weight", tuple(markov.before.shape))
    markov.after.data = tensors.take("markov_head.markov_w2.weight", tuple(markov.after.shape))
    if markov.mix is not None and markov.mix_bias is not None:
        name = {"gated": "gate_proj", "rnn": "joint_proj"}[markov.kind]
        markov.mix.data = tensors.take(f"markov_head.{name}.weight", tuple(markov.mix.shape))
        markov.mix_bias.data = tensors.take(f"markov_head.{name}.bias", tuple(markov.mix_bias.shape))
