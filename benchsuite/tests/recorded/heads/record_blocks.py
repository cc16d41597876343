"""Records what the ``speculators`` package computes for tiny heads that draft a whole block: DFlash, DSpark, P-EAGLE.

    /path/to/environment/bin/python benchsuite/tests/recorded/heads/record_blocks.py

runs in an environment with ``speculators==0.9.0`` and torch of any kind, and with nothing of this project. Each folder
that it writes holds a head as the package saves it, config.json and model.safetensors; the file beside it that ends in
``-steps.safetensors`` holds inputs, and the logits of every step. ``target.safetensors`` has the target's embeddings,
and the rows of its head.
"""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent
LENGTH, VOCABULARY, HIDDEN, BLOCK, MASK = 24, 258, 32, 4, 257
ANCHORS = (1, 2, 9, 15, 19)
"""Places of the tokens after which a block is drafted."""

LAYER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "tie_word_embeddings": False,
}
MIXED = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]

HEADS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dflash/plain": ("dflash", {"num_hidden_layers": 2}, {"draft_vocab_size": 64}),
    "dflash/windows": ("dflash", {"num_hidden_layers": 3, "layer_types": KINDS, **MIXED}, {"draft_vocab_size": 64}),
    "dflash/ahead": (
        "dflash",
        {"num_hidden_layers": 3, "layer_types": KINDS, "attention_bias": True, **MIXED},
        {"draft_vocab_size": VOCABULARY, "sliding_window_non_causal": True, "sample_from_anchor": True},
    ),
    "dspark/vanilla": ("dspark", {"num_hidden_layers": 2}, {"draft_vocab_size": 64, "markov_rank": 8}),
    "dspark/gated": (
        "dspark",
        {"num_hidden_layers": 1},
        {"draft_vocab_size": 64, "markov_rank": 8, "markov_head_type": "gated"},
    ),
    "dspark/rnn": (
        "dspark",
        {"num_hidden_layers": 1},
        {
            "draft_vocab_size": 64,
            "markov_rank": 8,
            "markov_head_type": "rnn",
            "confidence_head_with_markov": False,
            "sample_from_anchor": False,
        },
    ),
    "peagle/qwen3": (
        "peagle",
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2, **MIXED},
        {"draft_vocab_size": 64, "norm_before_fc": True},
    ),
    "peagle/llama": (
        "peagle",
        {"num_hidden_layers": 1, "model_type": "llama"},
        {"draft_vocab_size": 64, "norm_before_residual": True, "fc_norm": True},
    ),
}


def _package(name: str) -> Any:
    return importlib.import_module(f"speculators.{name}")


def _model(form: str, layer: dict[str, Any], given: dict[str, Any], seed: int) -> Any:
    """A model of the package with random weights, all of which a bfloat16 can hold."""
    core, config, greedy = _package("config"), _package(f"models.{form}.config"), _package("proposals.greedy")
    transformers: Any = importlib.import_module("transformers")
    kind = layer.get("model_type", "qwen3")
    shape = transformers.AutoConfig.for_model(kind, **LAYER, **{k: v for k, v in layer.items() if k != "model_type"})
    shape._attn_implementation = "eager"
    taps = "eagle_aux_hidden_state_layer_ids" if form == "peagle" else "aux_hidden_state_layer_ids"
    names = {"dflash": "DFlash", "dspark": "DSpark", "peagle": "PEagle"}
    block = {} if form == "peagle" else {"block_size": BLOCK}
    made = getattr(config, f"{names[form]}SpeculatorConfig")(
        transformer_layer_config=shape,
        mask_token_id=MASK,
        **{taps: [1, 2]},
        **block,
        **given,
        speculators_config=core.SpeculatorsConfig(
            algorithm=form,
            proposal_methods=[greedy.GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)],
            default_proposal_method="greedy",
            verifier=core.VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    model = getattr(_package(f"models.{form}.core"), f"{names[form]}DraftModel")(made).eval()
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape) * (0.2 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
        if "norm" in name:
            drawn += 1
        parameter.data = drawn.bfloat16().float()
    if given["draft_vocab_size"] < VOCABULARY:
        known = torch.zeros(VOCABULARY, dtype=torch.bool)
        known[torch.randperm(VOCABULARY - 1)[: given["draft_vocab_size"]]] = True
        ids = known.nonzero()[:, 0]
        model.load_vocab_mappings(known, ids - torch.arange(len(ids)))
    if form != "peagle":  # which trains embeddings of its own
        model.embed_tokens.weight.data = TARGET["embedding"].float()
    if given["draft_vocab_size"] == VOCABULARY:
        model.lm_head.weight.data = TARGET["rows"].float()
    return model


torch.manual_seed(7)
TARGET = {
    "embedding": torch.randn(VOCABULARY, HIDDEN).bfloat16(),
    "rows": (torch.randn(VOCABULARY, HIDDEN) / 4).bfloat16(),
}


@torch.no_grad()
def _blocks(form: str, model: Any, states: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Of the block after each anchor the logits, the likeliest tokens one after another, and the confidence."""
    core, first = _package(f"models.{form}.core"), model.config.sample_from_anchor
    anchors = torch.tensor(ANCHORS)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for anchor in ANCHORS:
        text = torch.cat([tokens[: anchor + 1], torch.full((BLOCK + 1,), MASK)])[None]
        given = torch.cat([states[:anchor], torch.randn(BLOCK + 2, states.shape[1])])[None]
        for filled in range(BLOCK):
            seen: dict[str, Any] = {}

            def keep(logits: Tensor, targets: Tensor, *rest: Any, seen: dict[str, Any] = seen, **more: Any) -> Any:
                seen.update(logits=logits[0], confidence=rest[0])
                return torch.zeros(()), {}

            def select(*_: Any, at: int = anchor) -> tuple[Tensor, Tensor]:
                return torch.tensor([at]), torch.tensor([True])

            with (
                patch.object(core, "compute_metrics", keep),
                patch("speculators.models.dflash.core.select_anchors", select),
            ):
                model(
                    given,
                    text,
                    torch.ones_like(text),
                    torch.zeros(1, text.shape[1], HIDDEN),
                    torch.zeros_like(text),
                    max_anchors=1,
                )
            logits: Tensor = seen["logits"]
            place = filled if first else filled + 1
            if place < BLOCK:  # the likeliest token becomes part of the text that the next slot is given
                token = logits[place].argmax()
                text[0, anchor + 1 + filled] = token if model.d2t is None else token + model.d2t[token]
        sure = seen["confidence"][0] if form == "dspark" else torch.zeros(BLOCK)
        found.append((logits, text[0, anchor + 1 : anchor + 1 + BLOCK - (not first)], sure))
    return {
        "anchors": anchors,
        "logits": torch.stack([logits for logits, _, _ in found]),
        "chains": torch.stack([chain for _, chain, _ in found]),
        **({"confidence": torch.stack([sure for _, _, sure in found])} if form == "dspark" else {}),
    }


@torch.no_grad()
def _depths(model: Any, states: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Of P-EAGLE the logits after each entry, [T, D], and those of each anchor's masks, [A, BLOCK - 1, D]."""
    anchors = torch.tensor(ANCHORS)
    depths = torch.arange(1, BLOCK).repeat(len(anchors))
    places = torch.cat([torch.arange(LENGTH), anchors.repeat_interleave(BLOCK - 1)])
    order = torch.cat([torch.zeros(LENGTH, dtype=torch.long), depths])
    seen: dict[str, Any] = {}

    def keep(**given: Any) -> Any:
        seen.update(given)
        return torch.zeros(()), {}

    core = _package("models.peagle.core")
    with (
        patch.object(core, "compute_metrics", keep),
        patch.object(core, "generate_cod_sample_indices", lambda **_: (places, order)),
    ):
        model(
            states[None],
            tokens[None],
            torch.zeros(1, LENGTH, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, LENGTH, HIDDEN),
        )
    logits: Tensor = seen["logits"][0]
    return {"anchors": anchors, "entries": logits[:LENGTH], "masks": logits[LENGTH:].view(len(anchors), BLOCK - 1, -1)}


def record_blocks() -> None:
    """Write every head, and the target's tensors."""
    for seed, (name, (form, layer, given)) in enumerate(HEADS.items()):
        model = _model(form, layer, given, seed)
        folder = HERE / name
        # A copy, because the rotary's frequencies of the model itself would be rounded too.
        copy.deepcopy(model).bfloat16().save_pretrained(folder)
        torch.manual_seed(100 + seed)
        states = torch.randn(LENGTH, 2 * HIDDEN).bfloat16().float()
        tokens = torch.randint(0, MASK, (LENGTH,))
        found = _depths(model, states, tokens) if form == "peagle" else _blocks(form, model, states, tokens)
        steps = {"states": states.bfloat16(), "tokens": tokens, **found}
        save_file({key: value.contiguous() for key, value in steps.items()}, HERE / f"{name}-steps.safetensors")
        (folder / "config.py").unlink()  # a copy of the package's code, for the hub
        print(name, {key: tuple(value.shape) for key, value in found.items()})
    save_file(TARGET, HERE / "target.safetensors")


if __name__ == "__main__":
    record_blocks()
