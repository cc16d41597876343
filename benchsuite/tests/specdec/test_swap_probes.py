"""How parts of a model are tried before they are replaced, and a model that is cut over ranks and runs on the ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec import sharding, swap
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.sharding import shard_model
from specdec.swap import Swap

TRIED = {
    "linear": [(1, 64), (64, 64)],
    "rms_norm": [(1, 64)],
    "rotary": [(1, 1, 1, 64), (1, 1, 1, 64)],
    "silu_mul": [(1, 64)],
}


def taking_ops(taken: str, name: str, asked: dict[str, list[Any]], packs: bool = False) -> Ops:
    """A backend that takes one op alone, over a reference that takes everything."""

    def backend(name: str, all_of: bool) -> Any:
        def takes(op: str, *tensors: Any) -> bool:
            asked[op] = list(tensors)
            return all_of or op == taken

        made = SimpleNamespace(name=name, priority=1, takes=takes, devices=("cpu",))
        made.pack = (lambda weight: weight * 1) if packs and not all_of else (lambda weight: weight)
        for op in registry().backend("reference")._routes:
            setattr(made, op, None)
        return made

    return Ops([backend(name, False), backend("reference", True)])


@pytest.mark.parametrize("taken", [*TRIED, "sample"])
@pytest.mark.parametrize("name", ["quick", "reference"])
def test_a_model_is_worth_replacing_if_another_backend_takes_one_op_of_a_layer_for_a_row_of_64(
    taken: str, name: str
) -> None:
    asked: dict[str, list[Any]] = {}
    weight = nn.Parameter(torch.ones(2, 3, dtype=torch.float16))
    found = swap._accelerates(taking_ops(taken, name, asked), weight)
    assert found == (taken in TRIED and name == "quick")
    for op, tensors in asked.items():
        assert [tuple(tensor.shape) for tensor in tensors] == TRIED[op]
        assert {tensor.dtype for tensor in tensors} == {torch.float16}
    if not found:
        assert asked.keys() == TRIED.keys()
    assert not swap._accelerates(SimpleNamespace(), weight)  # type: ignore[arg-type]


def test_the_dtype_of_a_model_is_that_of_its_first_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_embedding() -> Any:
        model: Any = families.build_model("llama")
        model.model.embed_tokens.to(torch.bfloat16)
        return model

    model = half_embedding()
    found = Swap(model, registry().backend("reference"))
    assert [module for module, _ in found._forwards] == [model.lm_head]
    asked: dict[str, list[Any]] = {}
    Swap(half_embedding(), taking_ops("linear", "quick", asked))
    assert asked["linear"][0].dtype == torch.bfloat16
    packed: list[Any] = []
    ops = taking_ops("none", "quick", asked)

    def packing(ops: Ops, weight: Any) -> Any:
        packed.append(weight)
        return weight

    def picking(ops: Ops, op: str, x: Tensor, weight: Any) -> Any:
        picked.append((op, x))
        return SimpleNamespace(own_threads=True)

    monkeypatch.setattr(Ops, "pack", packing)
    Swap(half_embedding(), ops)
    assert (packed[0].dtype, tuple(packed[0].shape)) == (torch.bfloat16, (1, 1))
    made = Swap(half_embedding(), taking_ops("linear", "quick", asked))
    made._layers, made._matrices = [(nn.Identity(), lambda x: x)], {nn.Identity(): (torch.ones(2, 2), None)}
    made._layers[0][0].forward = lambda x: x
    picked: list[Any] = []
    monkeypatch.setattr(Ops, "pick", picking)
    assert made.own_threads
    [(op, x)] = picked
    assert (op, x.dtype, tuple(x.shape)) == ("linear", torch.bfloat16, (1, 1, 1))


def llama_turns(query: Any, keys: Any, cos: Any, sin: Any) -> Any:
    """Llama's rotary positions."""

    def half(x: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    cos, sin = cos[:, None], sin[:, None]
    return query * cos + half(query) * sin, keys * cos + half(keys) * sin


def attention_of(function: Any) -> nn.Module:
    """A module whose class's forward calls the function by transformers' name."""
    names: dict[str, Any] = {"apply_rotary_pos_emb": function}
    exec("def forward(self, *x, more=1):\n    return (*apply_rotary_pos_emb(*x), more)\n", names)
    return type("RotaryAttention", (nn.Module,), {"forward": names["forward"]})()  # type: ignore[no-any-return]


@pytest.mark.parametrize("place", range(5))
def test_a_rotary_function_that_shifts_one_of_its_arguments_is_another(place: int) -> None:
    def shifted(*given: Any) -> Any:
        return llama_turns(*(x.roll(1, dims=-1) if index == place else x for index, x in enumerate(given)))

    assert swap._turns(attention_of(shifted)) is (place == 4)


def test_positions_that_turn_a_part_of_each_head_are_left_to_the_family() -> None:
    calls: list[str] = []

    def usual(query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        calls.append("usual")
        return query + 1, keys + 1

    def own(query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        calls.append("ours")
        return query + 2, keys + 2

    made: Any = SimpleNamespace(ops=SimpleNamespace(rotary=own))
    module = attention_of(usual)
    forward = Swap._attention(made, module)
    query, keys = torch.zeros(1, 2, 4, 8), torch.zeros(1, 1, 4, 8)
    for size, name, number in ((8, "ours", 2), (4, "usual", 1)):
        turned, other, more = forward(query, keys, torch.ones(1, 4, size), torch.ones(1, 4, size))
        assert (calls.pop(), float(turned.max()), float(other.min()), more) == (name, number, number, 1)
    module.forward(query, keys, torch.ones(1, 4, 8), torch.ones(1, 4, 8))
    assert calls == ["usual"], "the class is as it was"


def test_products_of_one_input_are_computed_once_and_not_kept_for_the_next() -> None:
    parts = [nn.Linear(4, size) for size in (3, 2, 5)]
    counted: list[Tensor] = []

    def product(some: Any) -> Any:
        def joined(x: Tensor) -> Tensor:
            counted.append(x)
            return torch.cat([part(x) for part in some], dim=-1)

        return joined

    made: Any = SimpleNamespace(_product=product)
    forwards = Swap._side_by_side(made, parts)
    x = torch.ones(2, 3, 4)
    for number in (1.0, 2.0):
        x.fill_(number)
        for part, forward in zip(parts, forwards, strict=True):
            torch.testing.assert_close(forward(x), part(torch.full((2, 3, 4), number)))
    assert len(counted) == 2
    other = torch.zeros(2, 3, 4)
    forwards[0](x)
    torch.testing.assert_close(forwards[0](other), parts[0](other))
    assert len(counted) == 4, "another input is another product"


def test_matrices_of_other_memory_or_another_order_are_copied_though_they_lie_side_by_side() -> None:
    numbers = np.arange(24, dtype=np.float32).reshape(6, 4)
    whole = torch.from_numpy(numbers.copy())
    apart = [torch.from_numpy(numbers[:3]), torch.from_numpy(numbers[3:])]
    shifted = [torch.from_numpy(numbers[:4])[1:3], torch.from_numpy(numbers[3:5])]
    base = torch.arange(48.0)
    turned = [base[:24].view(4, 6).t(), base[24:].view(6, 4)]
    for weights, expected in (
        (apart, whole),
        (shifted, whole[1:5]),
        (turned, torch.cat([base[:24].view(4, 6).t(), base[24:].view(6, 4)])),
    ):
        first = weights[0].data_ptr()
        made = swap._stacked(weights)
        assert torch.equal(made, expected)
        assert made.data_ptr() != first
    joined = torch.arange(24.0).view(6, 4)
    one = swap._stacked([joined[:2], joined[2:4], joined[4:]])
    assert (one.data_ptr(), one.stride()) == (joined.data_ptr(), (4, 1))
    apart = [joined[:2], joined[2:4].clone(), joined[4:]]
    assert swap._stacked(apart).data_ptr() != joined.data_ptr()


class SiLUActivation(nn.Module):
    """transformers' name for it."""


def test_the_gate_of_an_mlp_is_silu_by_its_class_or_its_name() -> None:
    gates = nn.SiLU(), SiLUActivation(), nn.GELU(), nn.Identity()
    assert [swap._is_silu(SimpleNamespace(act_fn=gate)) for gate in gates] == [True, True, False, False]


def test_a_norm_of_zeros_is_one() -> None:
    norm: Any = families.build_model("llama").model.norm
    with torch.no_grad():
        norm.weight.zero_()
        assert swap._norm_offset(norm) == 0.0


def layer_parts() -> tuple[Any, dict[nn.Module, Any]]:
    """A decoder layer of Llama's, and its parts as if they were replaced."""
    layer: Any = families.build_model("llama").model.layers[0]
    parts = layer.mlp, layer.input_layernorm, layer.post_attention_layernorm, layer.self_attn
    return layer, dict.fromkeys(parts)


def test_a_layer_has_exactly_llamas_parts_all_of_them_replaced_and_of_one_dtype() -> None:
    layer, forwards = layer_parts()
    assert swap._is_layer(layer, forwards)
    layer.self_attn.rotary_emb = nn.Identity()
    assert swap._is_layer(layer, forwards), "some versions have it there"
    for part in forwards:
        assert not swap._is_layer(layer, {other: None for other in forwards if other is not part})  # type: ignore[misc]
    for owner, name in (("", "extra"), ("self_attn", "q_norm")):
        layer, forwards = layer_parts()
        layer.get_submodule(owner).add_module(name, nn.Identity())
        assert not swap._is_layer(layer, forwards), name
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        layer, forwards = layer_parts()
        delattr(layer.self_attn, name)
        assert not swap._is_layer(layer, forwards), name
    layer, forwards = layer_parts()
    layer.mlp.to(torch.float64)
    assert not swap._is_layer(layer, forwards)
    assert not swap._is_layer(nn.Sequential(nn.Identity()), {})


class TwoRanks:
    """``torch.distributed`` for rank 0 of a few: a sum is three times its own part, the others' parts are its own."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def get_world_size(self) -> int:
        return self.ranks

    def all_reduce(self, part: Tensor) -> None:
        part *= 3

    def all_gather(self, into: list[Tensor], part: Tensor) -> None:
        for number, place in enumerate(into):
            place.copy_(part + number)


@pytest.mark.parametrize(("family", "ranks"), [("llama", 2), ("llama", 4), ("qwen2", 2), ("smollm2", 3)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@torch.inference_mode()
def test_a_model_that_is_cut_joins_the_same_parts_on_the_ops(
    family: str, ranks: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "dist", TwoRanks(ranks))
    ids = torch.tensor([[5, 9, 20, 31, 7, 7]])
    model = families.build_model(family)
    shard_model(model, 0, ranks)
    native = model(ids, use_cache=False)
    made = Swap(model, registry().backend(backend))
    made.put_in()
    torch.testing.assert_close(model(ids, use_cache=False).logits, native.logits, rtol=1e-3, atol=1e-3)
    made.take_out()
    target = ArenaModel(model, registry().backend(backend))
    inner: Any = model.model
    hidden = target.extend(target.arena(1, 64, 8), ids, 0, 0)
    target.swap.take_out()
    model.set_attn_implementation(target.native_attention)
    expected = inner(ids, use_cache=False).last_hidden_state
    torch.testing.assert_close(hidden, expected, rtol=1e-3, atol=1e-3)


def test_the_number_of_layers_is_that_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if all of its layers are alike, they run as one."""
    model: Any = families.build_model("llama")
    own = model.config
    monkeypatch.setattr(
        type(own), "get_text_config", lambda config, decoder=False: config if decoder else SimpleNamespace()
    )
    stacks: list[Any] = []

    def noted(made: Swap, modules: Any) -> list[Any]:
        stacks.append(list(modules))
        return []

    monkeypatch.setattr(Swap, "_stack", noted)
    Swap(model, registry().backend("cpu"))
    layers = list(model.model.layers)
    assert stacks == [layers]
    stacks.clear()
    own.num_hidden_layers = 3
    Swap(model, registry().backend("cpu"))
    assert stacks == [[layer] for layer in layers]


def test_a_layer_is_told_what_its_norms_add_to_their_weights() -> None:
    class OneRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.linspace(0.5, 1.5, 32)), 1e-4

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)

    for changed in (True, False):
        model: Any = families.build_model("llama")
        for layer in model.model.layers:
            if changed:
                layer.input_layernorm, layer.post_attention_layernorm = OneRMSNorm(), OneRMSNorm()
        with torch.no_grad():
            found = Swap(model, registry().backend("cpu"))._weights(model.model.layers[0])
        assert found.norm_offset == (1.0 if changed else 0.0)
        assert (found.heads, found.heads_kv, found.head_dim) == (4, 2, 8)
        assert (type(found.heads), type(found.heads_kv)) == (int, int)
        assert found.eps_before == found.eps_after == (1e-4 if changed else model.config.rms_norm_eps)
        assert (found.join_out, found.join_down) == (None, None)
