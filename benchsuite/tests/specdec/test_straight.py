"""A model as calls of ops alone: its logits are those of its modules, whose hooks are still called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec import SpecdecError
from specdec.arena import Arena
from specdec.messages import Window
from specdec.model import ArenaModel

LLAMAS = ("llama", "smollm2", "qwen2", "qwen2-hybrid", "mistral")
"""Families of which all layers are one op."""

TEXT = torch.tensor([[5, 9, 200, 31, 7, 7, 64, 255, 3, 90]])


def read_and_forward(target: ArenaModel) -> tuple[Tensor, Tensor, Tensor]:
    """The states of ten tokens, and logits and states of a window of four behind them."""
    arena: Arena = target.arena(1, 32, 4)
    read = target.extend(arena, TEXT, row=0, start=0)
    window = Window.chain(TEXT[:, 3], TEXT[:, 4:7], torch.tensor([3]))
    logits, states = target.forward(arena, window, slice(0, 1), TEXT.shape[1])
    return read, logits, states


def on_cpu(model: PreTrainedModel, bits: int | None = None) -> ArenaModel:
    return ArenaModel(model, registry().backend("cpu"), bits)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", LLAMAS)
@torch.inference_mode()
def test_without_its_modules_a_model_computes_the_same_bits(family: str, dtype: torch.dtype, bits: int | None) -> None:
    target = on_cpu(families.build_model(family, dtype=dtype), bits)
    straight, called = target.swap.straight, list[nn.Module]()
    assert straight
    found = read_and_forward(target)
    target.swap.straight = None
    handle = target.model.base_model.register_forward_pre_hook(lambda module, _: called.append(module))
    expected = read_and_forward(target)
    handle.remove()
    assert len(called) == 2
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("place", ["", "model", "model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"])
@pytest.mark.parametrize("before", [False, True])
@torch.inference_mode()
def test_a_hook_on_a_module_is_called(place: str, before: bool) -> None:
    """Before a module or behind it, and by forwards of windows and of prompts; without it they are what they were."""
    target, called = on_cpu(families.build_model("llama")), list[Any]()
    assert target.swap.straight
    expected = read_and_forward(target)
    module = target.model.get_submodule(place)
    handle = (module.register_forward_pre_hook if before else module.register_forward_hook)(lambda *_: called.append(1))
    assert all(map(torch.equal, read_and_forward(target), expected))
    assert len(called) == (1 if place in ("", "lm_head") else 2), "prompts are read without the head"
    handle.remove()
    assert all(map(torch.equal, read_and_forward(target), expected))
    assert len(called) <= 2


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("before", [False, True])
@torch.inference_mode()
def test_a_hook_on_a_layer_changes_what_it_changes_in_transformers(layer: int, before: bool) -> None:
    """States are doubled before a layer or behind it, in the model over the arena and in an unmodified one."""
    target = on_cpu(families.build_model("llama", layers=3))
    for model in (native := target.twin(), target.model):
        module = model.model.layers[layer]
        if before:
            module.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:]))
        else:
            module.register_forward_hook(lambda _, args, out: out * 2)
    expected = native(TEXT, use_cache=False).logits
    arena = target.arena(1, 32, 10)
    window = Window.chain(TEXT[:, 0], TEXT[:, 1:], torch.tensor([9]))
    logits, _ = target.forward(arena, window, slice(0, 1), 0)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


class LouderBase(LlamaModel):  # type: ignore[misc]
    """The base of Llama, whose embeddings are three times as large."""

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        return super().forward(**given | {"inputs_embeds": self.embed_tokens(input_ids) * 3})


class Louder(LlamaForCausalLM):  # type: ignore[misc]
    """Llama over that base."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model = LouderBase(config)
        self.post_init()


class Softer(LlamaForCausalLM):  # type: ignore[misc]
    """Llama, whose logits are capped."""

    def forward(self, *args: Any, **given: Any) -> Any:
        out = super().forward(*args, **given)
        out.logits = torch.tanh(out.logits)
        return out


@pytest.mark.parametrize("kind", [Louder, Softer])
@torch.inference_mode()
def test_a_model_that_does_more_between_its_parts_keeps_its_modules(kind: type[LlamaForCausalLM]) -> None:
    torch.manual_seed(0)
    model = kind(families.config_of("llama")).eval()
    expected = model(TEXT, use_cache=False).logits[:, -4:]
    target = on_cpu(model)
    assert target.swap.straight is None
    arena, before = target.arena(1, 32, 10), target.ops.ran()
    window = Window.chain(TEXT[:, 0], TEXT[:, 1:], torch.tensor([9]))
    logits, _ = target.forward(arena, window, slice(0, 1), 0)
    torch.testing.assert_close(logits[:, -4:], expected, rtol=0, atol=1e-5)
    assert (target.ops.ran() - before)["decoder_layers", "cpu"] == 1, "its layers are one op all the same"


@torch.inference_mode()
def test_the_model_that_was_taken_out_has_its_modules_again() -> None:
    """Also within a context, and behind it the ops are in place again."""
    target = on_cpu(families.build_model("llama"))
    straight = target.swap.straight
    with target.swap.taken_out():
        assert target.swap.straight is None
    assert target.swap.straight is straight
    target.swap.take_out()
    with pytest.raises(SpecdecError):
        target.model(TEXT, use_cache=False)
    assert target.swap.straight is None
