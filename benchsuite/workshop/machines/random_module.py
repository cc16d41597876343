"""Modules for multi-token prediction with random weights, and what they should propose by their formula."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchsuite.conformance.models import tiny
from specdec import Context, SamplingParams, Verdict, Window

MOST = 3
"""Proposals of a step."""


class ModuleByFormula:
    """A module over a tiny target, in transformers' own parts, and its proposals over a whole text without an arena."""

    def __init__(self, model: Any, one: Any, state_first: bool) -> None:
        size, generator = model.config.hidden_size, torch.Generator().manual_seed(0)
        self.model, self.one, self.state_first = model, copy.deepcopy(one), state_first
        norm = type(self.one.model.norm)
        self.parts = nn.ModuleDict({name: norm(size) for name in ("token_layernorm", "hidden_layernorm")})
        self.parts["input_proj"] = nn.Linear(2 * size, size, bias=False)
        with torch.no_grad():
            for weight in (*self.parts.parameters(), *self.one.model.norm.parameters()):
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(1 + 0.5 * noise if weight.dim() == 1 else noise / weight.shape[1] ** 0.5)
            for weight in self.one.model.layers.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)

    def save(self, folder: Path) -> None:
        """Write it as MiMo's, if the state comes first, else as speculators': their names differ at the start alone."""
        whole, start = self.model.config, "model.mtp_layers.0." if self.state_first else "mtp_layers.0."
        names = (
            *("model_type", "hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size", "head_dim"),
            *("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps"),
        )
        settings: dict[str, Any] = {name: getattr(whole, name) for name in names}
        if not self.state_first:
            settings = {"speculators_model_type": "mtp", "transformer_layer_config": settings}
        own = {**self.parts.state_dict(), "final_layernorm.weight": self.one.model.norm.weight}
        own |= self.one.model.layers[0].state_dict()
        (folder / "config.json").write_text(json.dumps(settings))
        save_file({f"{start}{name}": tensor.clone() for name, tensor in own.items()}, folder / "model.safetensors")

    @torch.no_grad()
    def logits(self, text: Tensor, proposals: list[int]) -> Tensor:
        """Logits [V] of the proposal after a text int64 [T] and other proposals."""
        embed = self.model.get_input_embeddings()
        states = self.model.model(text[None, :-1], use_cache=False).last_hidden_state
        entries = self._joined(embed(text[None, 1:]), states)
        for token in [*proposals, None]:
            last = self.one.model(inputs_embeds=entries, use_cache=False).last_hidden_state[:, -1:]
            if token is not None:
                entries = torch.cat([entries, self._joined(embed(torch.tensor([[token]])), last)], dim=1)
        logits: Tensor = self.model.lm_head(last)[0, 0]
        return logits

    def _joined(self, embedded: Tensor, states: Tensor) -> Tensor:
        pair = [self.parts["token_layernorm"](embedded), self.parts["hidden_layernorm"](states)]
        joined: Tensor = self.parts["input_proj"](torch.cat(pair[::-1] if self.state_first else pair, dim=-1))
        return joined


def modules_propose_by_their_formula() -> None:
    """Raise AssertionError if a proposal is not the likeliest token of its module over the whole text."""
    for state_first in (True, False):
        build = tiny.assembly("qwen2", max_rows=2, backend="reference")
        gain: Tensor = build.target.model.base_model.norm.weight  # a norm of nothing but ones would hide a second one
        gain.data.copy_(torch.linspace(0.2, 2, len(gain)))
        module = ModuleByFormula(build.target.twin(), build.target.twin(1), state_first)
        with tempfile.TemporaryDirectory() as folder:
            module.save(Path(folder))
            engine = build.engine(f"mtp(head={folder!r})", "tree_rejection", k=MOST)
        found: list[tuple[Tensor, list[int]]] = []

        def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict, found: Any = found) -> None:
            for row in range(context.rows):
                text = context.tokens[row, : context.length_host[row]].clone()
                found.append((text, window.tokens[row, 1 : int(window.width[row])].tolist()))

        engine.trace = keep
        tiny.ask(engine, [MOST, 0, 1, MOST, 0, 2] * 20)
        engine.run(tiny.requests(SamplingParams(max_new_tokens=4), 2))
        for text, proposals in [step for step in found if step[1]][:6]:
            for depth, token in enumerate(proposals):
                logits = module.logits(text, proposals[:depth])
                assert logits[token] > logits.max() - 1e-3, f"proposal {depth} is not its module's likeliest token"
