"""An EAGLE-3 head of random weights, its file, and what the method's formula makes of it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchsuite.conformance.models import tiny
from specdec import Context, Request, SamplingParams, Verdict, Window
from specdec.arena import Arena, LayerShape
from specdec_kernels.reference import Reference
from specdec_plugins.heads.eagle3_head import Eagle3Head
from specdec_plugins.published import read_published
from specdec_plugins.published.reading import Reading, TargetSizes
from specdec_plugins.reading import known_text

SIZE, HEAD, WIDE, KNOWN, VOCABULARY = 32, 8, 24, 60, 258
"""Size of states, of the one attention head, of the SwiGLU; tokens that the head knows, and those of the target."""

KNOWN_IDS = 4 * (torch.arange(KNOWN) // 2) + torch.arange(KNOWN) % 2
EPS, THETA = 1e-5, 10000.0
LAYERS = (2, 1)
"""The target's layers whose outputs the head fuses, in this order."""


def random_feedback_head(folder: Path, norm_output: bool, nested: bool = False) -> Path:
    """Write a head of seeded random weights in the form of speculators or, ``nested``, in that of ModelOpt, whose
    conventions are inside ``eagle_config``; it has no embeddings and knows two tokens of every four."""
    dice = torch.Generator().manual_seed(0)
    matrices = {
        "fc": (SIZE, 2 * SIZE),
        **{f"layers.0.self_attn.{name}_proj": (HEAD, 2 * SIZE) for name in "qkv"},
        "layers.0.self_attn.o_proj": (SIZE, HEAD),
        "layers.0.mlp.gate_proj": (WIDE, SIZE),
        "layers.0.mlp.up_proj": (WIDE, SIZE),
        "layers.0.mlp.down_proj": (SIZE, WIDE),
        "lm_head": (KNOWN, SIZE),
    }
    norms = ("norm", *(f"layers.0.{name}" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")))
    tensors = {f"{name}.weight": torch.randn(size, generator=dice) / 4 for name, size in matrices.items()}
    tensors |= {f"{name}.weight": 1 + torch.randn(SIZE, generator=dice) / 2 for name in norms}
    tensors["d2t"] = KNOWN_IDS - torch.arange(KNOWN)
    layer = {
        "model_type": "llama",
        "hidden_size": SIZE,
        "intermediate_size": WIDE,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "head_dim": HEAD,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": VOCABULARY,
    }
    said = {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in LAYERS], "norm_output": norm_output}
    config: dict[str, object] = {"draft_vocab_size": KNOWN}
    if nested:
        config |= layer | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": said}
    else:
        config |= said | {"speculators_model_type": "eagle3", "transformer_layer_config": layer}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _normed(x: Tensor, gain: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * gain


def _turned(x: Tensor) -> Tensor:
    """Queries or keys [W, d] at positions 0 … W - 1."""
    angle = torch.arange(len(x))[:, None] * THETA ** (-torch.arange(0, HEAD, 2) / HEAD)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def formula_logits(weights: dict[str, Tensor], norm_output: bool, states: Tensor, embedded: Tensor) -> Tensor:
    """Logits [S, D] by the formula of EAGLE-3 (Li et al. 2503.01840, section 3), all over again for each step.

    ``states`` [T, 2 H] are the target's, and ``embedded`` [T + S - 1, H] the tokens after them and those proposed.
    """

    def matrix(name: str) -> Tensor:
        return weights[f"{name}.weight"]

    features, found = list(states @ matrix("fc").T), list[Tensor]()
    layer = "layers.0."
    for length in range(len(states), len(embedded) + 1):
        feature, tokens = torch.stack(features[:length]), embedded[:length]
        own, token = _normed(feature, matrix(f"{layer}hidden_norm")), _normed(tokens, matrix(f"{layer}input_layernorm"))
        pair = torch.cat([token, own], dim=-1)
        query, key, value = (pair @ matrix(f"{layer}self_attn.{name}_proj").T for name in "qkv")
        scores = _turned(query) @ _turned(key).T / HEAD**0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
        x = feature + scores.softmax(-1) @ value @ matrix(f"{layer}self_attn.o_proj").T
        normed = _normed(x, matrix(f"{layer}post_attention_layernorm"))
        gated = F.silu(normed @ matrix(f"{layer}mlp.gate_proj").T) * (normed @ matrix(f"{layer}mlp.up_proj").T)
        own = (x + gated @ matrix(f"{layer}mlp.down_proj").T)[-1]
        after = _normed(own, matrix("norm"))
        found.append(matrix("lm_head") @ after)
        features.append(after if norm_output else own)
    return torch.stack(found)


def feedback_heads_follow_the_formula() -> None:
    """AssertionError unless a head's file, read and run over an arena, gives what its formula gives in three steps, of
    which two begin from its own states; and unless its layers and ids are those that the file means. Where a form
    leaves the meaning of layers open, an option says it."""
    dice = torch.Generator().manual_seed(1)
    states, embedded = torch.randn(5, 2 * SIZE, generator=dice), torch.randn(7, SIZE, generator=dice)
    for norm_output, nested in ((False, False), (True, False), (True, True)):
        with tempfile.TemporaryDirectory() as folder:
            path = random_feedback_head(Path(folder) / "head", norm_output, nested)
            expected = formula_logits(load_file(path / "model.safetensors"), norm_output, states, embedded)
            reading = Reading(layers=LAYERS) if nested else Reading()
            found = read_published(path, TargetSizes(SIZE, VOCABULARY, 4), reading)
        assert found.reading.layers == LAYERS, f"of layers {found.reading.layers} the outputs are read, not {LAYERS}"
        assert found.head.ids.tolist() == KNOWN_IDS.tolist(), "the head's tokens are others"
        logits = _arena_logits(found.head.network, states, embedded)
        apart = (logits - expected).abs().amax(dim=1).tolist()
        said = f"logits of three steps, norm_output={norm_output}{', nested' * nested}"
        assert max(apart) < 1e-4, f"{said}, differ from the formula's by {apart}"


def _arena_logits(network: Eagle3Head, states: Tensor, embedded: Tensor) -> Tensor:
    ops, weights = Reference(), network.weights(Reference())
    shape = LayerShape(network.shape.heads_kv, network.shape.head_dim, None)
    arena = Arena([shape], rows=1, max_length=16, max_window=8, dtype=torch.float32, device=states.device)
    feature, found, start = network.fused(ops, states.view(1, len(states), 2, SIZE), weights), list[Tensor](), 0
    for end in range(len(states), len(embedded) + 1):
        window = known_text(torch.zeros(1, end - start, dtype=torch.int64))
        plan = arena.plan(window, ops, slice(0, 1), start)
        turn = network.turn(plan.position, torch.float32)
        feature = network(ops, embedded[None, start:end], feature, turn, [plan.at(0)], weights)[:, -1:]
        arena.committed += end - start
        start = end
        found.append(network.logits(ops, feature, weights)[0, 0])
    return torch.stack(found)


def feedback_drafts_follow_the_formula() -> None:
    """AssertionError unless every proposal over a target is the formula's, after a prompt and after rejections."""
    build = tiny.assembly("smollm2", backend="reference")
    model, layers, seen = build.target.twin(), list[Tensor](), list[tuple[Tensor, list[int]]]()
    for layer in model.base_model.layers:
        layer.register_forward_hook(lambda module, given, out: layers.append(out[0]))

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        seen.append((context.tokens[0, : context.length_host[0]].clone(), window.tokens[0, 1:].tolist()))

    with tempfile.TemporaryDirectory() as folder:
        path = random_feedback_head(Path(folder) / "head", norm_output=False)
        weights = load_file(path / "model.safetensors")
        engine = build.engine(f"eagle3(head={str(path)!r})", k=3)
        engine.trace = keep
        engine.run([Request(0, tiny.prompts(1)[0], SamplingParams(max_new_tokens=8))])
    for text, proposals in seen:
        layers.clear()
        with torch.no_grad():
            model(text[None, :-1], use_cache=False)
            states = torch.cat([layers[layer] for layer in LAYERS], dim=-1)
            following = torch.cat([text[1:], torch.tensor(proposals[:-1], dtype=torch.int64)])
            best = formula_logits(weights, False, states, model.get_input_embeddings()(following)).argmax(dim=-1)
        assert KNOWN_IDS[best].tolist()[: len(proposals)] == proposals, (
            f"after {len(text)} tokens {proposals} are not the formula's"
        )
