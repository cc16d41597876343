"""Models with an odd part on our ops keep their logits, and an op runs exactly where a part is the op's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec import sharding
from specdec.amounts import memory_text
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.sharding import shard_model
from specdec.swap import Swap
from specdec_kernels.reference import Reference

IDS = torch.tensor([[5, 9, 20, 31, 7, 7]])

Change = Callable[[Any], None]


def compiled_ops() -> Ops:
    """The C++ ops over the reference."""
    return registry().backend("cpu")


class AnyRMSNorm(nn.Module):
    """An RMSNorm of width 32, but for a share ``off`` of its largest number; ``eps`` is in the field ``where``."""

    def __init__(self, offset: float = 0.0, off: float = 0.0, eps: float | None = 1e-6, where: str = "eps") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 32))
        self.offset, self.off, self.own_eps = offset, off, eps or 0.0
        setattr(self, where, eps)

    def forward(self, x: Tensor) -> Tensor:
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.own_eps)
        got = unit * (self.offset + self.weight)
        largest = torch.zeros_like(got)
        largest[..., 3] = got.abs().amax(-1)
        return got + self.off * largest


def norm(name: str = "AnyRMSNorm", **given: Any) -> Change:
    """Layer 0 gets this norm at its beginning, of a class of this name."""

    def change(model: Any) -> None:
        model.model.layers[0].input_layernorm = type(name, (AnyRMSNorm,), {})(**given)

    return change


def norms_that_add_one(model: Any) -> None:
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = AnyRMSNorm(offset=1.0), AnyRMSNorm(offset=1.0)


def two_eps(model: Any) -> None:
    """transformers' own name comes first."""
    found = AnyRMSNorm(eps=0.5, where="variance_epsilon")
    found.eps = 1e-3  # type: ignore[assignment]
    model.model.layers[0].input_layernorm = found


def llama_turns(query: Any, keys: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    """Llama's rotary positions."""

    def half(x: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return query * cos + half(query) * sin, keys * cos + half(keys) * sin


def neighbours(query: Any, keys: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions of neighbours, as GPT-J has them."""

    def turned(x: Any) -> Any:
        other = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return x * cos[:, None] + other * sin[:, None]

    return turned(query), turned(keys)


def first_half(query: Any, keys: Any, cos: Any, sin: Any) -> Any:
    """Turn as many numbers of each head as there are cosines."""
    size = cos.shape[-1]
    turned = llama_turns(query[..., :size], keys[..., :size], cos, sin)
    return tuple(torch.cat([new, old[..., size:]], -1) for new, old in zip(turned, (query, keys), strict=True))


def shifted(place: int) -> Any:
    """Llama's positions of arguments one of which is shifted."""

    def turns(*given: Any) -> Any:
        return llama_turns(*(x.roll(1, dims=-1) if index == place else x for index, x in enumerate(given)))

    return turns


def without_cosines(query: Any, keys: Any, *positions: Any) -> Any:
    if positions[0].shape[-1] == 4:  # the shapes of a test call
        raise ValueError
    return query, keys


def turning(function: Any) -> Change:
    """The attention of layer 0 has a class of its own, whose forward calls ``function`` by transformers' name."""

    def change(model: Any) -> None:
        attention = model.model.layers[0].self_attn
        native = type(attention).forward
        while hasattr(native, "__wrapped__"):
            native = native.__wrapped__
        names = {**native.__globals__, "apply_rotary_pos_emb": function}
        forward = FunctionType(native.__code__, names, native.__name__, native.__defaults__, native.__closure__)
        forward.__kwdefaults__ = native.__kwdefaults__
        attention.__class__ = type("OwnAttention", (type(attention),), {"forward": forward})

    return change


class HalfTurned(nn.Module):
    """A model's rotary embedding, of half as many numbers of each head."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        cos, sin = self.whole(*given, **named)
        return cos[..., ::2], sin[..., ::2]


def half_turned(model: Any) -> None:
    for layer in model.model.layers:
        turning(first_half)(type("Of", (), {"model": type("One", (), {"layers": [layer]})}))
    model.model.rotary_emb = HalfTurned(model.model.rotary_emb)


def gate(made: nn.Module) -> Change:
    def change(model: Any) -> None:
        model.model.layers[0].mlp.act_fn = made

    return change


def mlp(forward: Any) -> Change:
    """The MLP of layer 0 has a class of its own with this forward."""

    def change(model: Any) -> None:
        module = model.model.layers[0].mlp
        module.__class__ = type("OwnMLP", (type(module),), {"forward": forward})

    return change


def halved(self: Any, x: Tensor) -> Any:
    return self.down_proj(self.act_fn(self.gate_proj(x) * 0.5) * self.up_proj(x))


def limited(self: Any, x: Tensor) -> Any:
    return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=self.hidden_size)) * self.up_proj(x))


def dropped(self: Any, x: Tensor) -> Any:
    return nn.functional.dropout(
        self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)), training=self.training
    )


class SiLUActivation(nn.SiLU):
    """transformers' name for it."""


class NamedOnly(nn.Module):
    """SiLU by its class's name alone."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(x)


NamedOnly.__name__ = "SiLUActivation"


class AddsOne(nn.Linear):
    """A linear layer that does more."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def projection(name: str, bias: bool = False, kind: type[nn.Linear] = nn.Linear) -> Change:
    """A projection of layer 0's attention has a bias, or another class."""

    def change(model: Any) -> None:
        attention = model.model.layers[0].self_attn
        old = getattr(attention, name)
        new = kind(old.in_features, old.out_features, bias=bias)
        new.weight = old.weight
        setattr(attention, name, new)

    return change


def extra(owner: str) -> Change:
    def change(model: Any) -> None:
        model.model.layers[0].get_submodule(owner).add_module("extra", nn.Identity())

    return change


def own_positions(model: Any) -> None:
    """Some versions have it there."""
    model.model.layers[0].self_attn.rotary_emb = nn.Identity()


def more_layers_said(model: Any) -> None:
    model.config.num_hidden_layers += 1


LAYERS = 2
PER_LAYER = {"linear": 4, "rms_norm": 2, "rotary": 1, "silu_mul": 1}
WHOLE = Counter({op: LAYERS * count for op, count in PER_LAYER.items()}) + Counter(linear=1, rms_norm=1)
"""Calls of a forward of the unchanged model: products for q, k and v, for o, for up and gate, for down; a head."""

ONE_STACK, ALONE, ONE_LEFT, NONE = (1, False), (LAYERS, False), (LAYERS - 1, True), (0, True)
"""Calls of ``decoder_layers`` over the arena, and whether other products ran: one call for all layers, one for each,
one for each but layer 0, and none."""

ODD: dict[str, tuple[Change, dict[str, int], tuple[int, bool]]] = {
    "nothing": (lambda model: None, {}, ONE_STACK),
    "norm": (norm(), {}, ONE_STACK),
    "norm: transformers' eps": (norm(where="variance_epsilon"), {}, ONE_STACK),
    "norm: two eps": (two_eps, {}, ONE_STACK),
    "norm: large eps": (norm(eps=0.5), {}, ONE_STACK),
    "norms: add one": (norms_that_add_one, {}, ONE_STACK),
    "norm: not the formula": (norm(off=0.03), {"rms_norm": -1}, ONE_LEFT),
    "norm: below the formula": (norm(off=-0.03), {"rms_norm": -1}, ONE_LEFT),
    "norm: adds a half": (norm(offset=0.5), {"rms_norm": -1}, ONE_LEFT),
    "norm: named otherwise": (norm("LayerNorm"), {"rms_norm": -1}, ONE_LEFT),
    "norm: no eps": (norm(eps=None), {"rms_norm": -1}, ONE_LEFT),
    "positions: the same": (turning(llama_turns), {}, ONE_STACK),
    "positions: neighbours": (turning(neighbours), {"rotary": -1, "linear": 2}, ONE_LEFT),
    **{
        f"positions: argument {place} shifted": (turning(shifted(place)), {"rotary": -1, "linear": 2}, ONE_LEFT)
        for place in range(4)
    },
    "positions: refuse": (turning(without_cosines), {"rotary": -1, "linear": 2}, ONE_LEFT),
    "positions: half of each head": (half_turned, {"rotary": -LAYERS}, NONE),
    "gate: torch's": (gate(nn.SiLU()), {}, ONE_STACK),
    "gate: by name": (gate(NamedOnly()), {}, ONE_STACK),
    "gate: another": (gate(nn.GELU()), {"silu_mul": -1, "linear": 1}, ONE_LEFT),
    "mlp: a number": (mlp(halved), {"silu_mul": -1, "linear": 1}, ONE_LEFT),
    "mlp: a limit": (mlp(limited), {"silu_mul": -1, "linear": 1}, ONE_LEFT),
    "mlp: dropout": (mlp(dropped), {}, ONE_STACK),
    "projections: one bias": (projection("k_proj", bias=True), {"rotary": -1, "linear": 2}, ONE_LEFT),
    "projections: another class": (projection("v_proj", kind=AddsOne), {"rotary": -1, "linear": 1}, ONE_LEFT),
    "layer: another part": (extra(""), {}, ONE_LEFT),
    "attention: another part": (extra("self_attn"), {}, ONE_LEFT),
    "attention: an embedding of its own": (own_positions, {}, ONE_STACK),
    "layers: more are said": (more_layers_said, {}, ALONE),
}
"""How a model is odd, with the calls that a forward has more or fewer, and those of whole layers over the arena."""


def ran_in(ops: Ops, call: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """The result of a call, and how often each op ran in it."""
    before = ops.ran()
    with torch.inference_mode():
        found = call()
    ran = Counter[str]()
    for (op, _), count in (ops.ran() - before).items():
        ran[op] += count
    return found, ran


@pytest.mark.parametrize("odd", ODD)
def test_a_model_with_an_odd_part_keeps_its_logits_and_that_part(odd: str) -> None:
    change, more, _ = ODD[odd]
    model, ops = families.build_model("llama"), compiled_ops()
    change(model)
    with torch.inference_mode():
        expected = model(IDS, use_cache=False).logits
    swap = Swap(model, ops)
    swap.put_in()
    logits, ran = ran_in(ops, lambda: model(IDS, use_cache=False).logits)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    wanted = Counter(WHOLE)
    wanted.update(more)
    assert {op: ran[op] for op in wanted} == dict(wanted)


@pytest.mark.parametrize("odd", ODD)
def test_layers_run_whole_over_the_arena_where_each_part_is_an_op(odd: str) -> None:
    change, _, stacks = ODD[odd]
    model, ops = families.build_model("llama"), compiled_ops()
    change(model)
    inner: Any = model.model
    with torch.inference_mode():
        expected = inner(IDS, use_cache=False).last_hidden_state
    target = ArenaModel(model, ops)
    hidden, ran = ran_in(ops, lambda: target.extend(target.arena(1, 64, 8), IDS, 0, 0))
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)
    assert (ran["decoder_layers"], ran["linear"] > 0) == stacks


def one_op(op: str) -> Ops:
    """A backend that takes one op alone, over a reference that takes every one."""

    class Quick(Reference):
        name, priority = "quick", 1

        def takes(self, name: str, *tensors: Any) -> bool:
            return name == op

    return Ops([Quick(), Reference()])


@pytest.mark.parametrize("op", [*PER_LAYER, "sample"])
def test_a_model_is_on_the_ops_if_another_backend_than_the_reference_takes_one_of_a_layer(op: str) -> None:
    model, ops = families.build_model("llama"), one_op(op)
    swap = Swap(model, ops)
    swap.put_in()
    _, ran = ran_in(ops, lambda: model(IDS, use_cache=False))
    assert ran == (WHOLE if op in PER_LAYER else Counter())
    assert (ops.ran()[op, "quick"] > 0) == (op in PER_LAYER)


@pytest.mark.parametrize("op", PER_LAYER)
def test_a_backend_that_takes_an_op_of_a_single_row_of_whole_vectors_alone_is_found(op: str) -> None:
    """As a step of one request is; of a product also its weights are whole."""

    class Narrow(Reference):
        name, priority = "narrow", 1

        def takes(self, name: str, *tensors: Any) -> bool:
            x, *weights = tensors if name == "linear" else (tensors[0],)
            sizes = [x.shape[-1], *(size for weight in weights for size in weight.shape)]
            return name == op and x.numel() == x.shape[-1] and not any(size % 16 for size in sizes)

    model = families.build_model("llama")
    made = Swap(model, Ops([Narrow(), Reference()]))
    made.put_in()
    assert any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("op", ["linear", "decoder_layers"])
def test_padding_is_left_out_only_if_products_and_layers_do_it(op: str) -> None:
    class Leaving(Reference):
        name, priority, skips_padding = "leaving", 1, True

        def takes(self, name: str, *tensors: Any) -> bool:
            return name in ("linear", "decoder_layers")

    class Padding(Leaving):
        name, priority, skips_padding = "padding", 2, False

        def takes(self, name: str, *tensors: Any) -> bool:
            return name == op

    for chain, skips in (([Leaving()], True), ([Padding(), Leaving()], False)):
        made = Swap(families.build_model("llama"), Ops([*chain, Reference()]))
        made.put_in()
        assert made.skips_padding is skips


def test_a_backend_that_multiplies_otherwise_than_its_base_is_asked_for_slots_too() -> None:
    """The base leaves padding out in a way of its own."""

    class Base(Reference):
        name, priority = "base", 1

        def linear(self, x: Any, weight: Any, bias: Any, wide: bool = False) -> Any:
            return super().linear(x, weight, bias, wide)

        def linear_of_slots(self, x: Any, weight: Any, bias: Any, width: Any, wide: bool = False) -> Any:
            return torch.zeros(*x.shape[:2], len(weight))

    class Derived(Base):
        def linear(self, x: Any, weight: Any, bias: Any, wide: bool = False) -> Any:
            return super().linear(x, weight, bias, wide)

    given = torch.ones(1, 2, 3), torch.ones(4, 3), None, torch.tensor([2])
    for backend, product in ((Base(), 0.0), (Derived(), 3.0)):
        ops = Ops([backend, Reference()])
        assert torch.equal(ops.linear_of_slots(*given), torch.full((1, 2, 4), product))
        assert ops.ran()["linear", "base"] == 1


def test_the_head_of_a_model_in_half_precision_is_replaced_also_where_the_reference_is_alone() -> None:
    model: Any = families.build_model("llama", dtype=torch.bfloat16)
    swap = Swap(model, registry().backend("reference"))
    swap.put_in()
    assert [module for module in model.modules() if "forward" in module.__dict__] == [model.lm_head]
    assert model(IDS, use_cache=False).logits.dtype == torch.float32


def test_products_of_one_input_are_computed_once_and_not_kept_for_the_next() -> None:
    model, ops = families.build_model("llama"), compiled_ops()
    attention: Any = model.model.layers[0].self_attn
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    weights = [part.weight.detach().clone() for part in parts]
    Swap(model, ops).put_in()
    x = torch.ones(1, 3, 32)
    for number in (1.0, 2.0):
        x.fill_(number)
        found, ran = ran_in(ops, lambda: [part(x) for part in parts])
        for got, weight in zip(found, weights, strict=True):
            torch.testing.assert_close(got, x @ weight.T)
        assert ran["linear"] == 1, "in place, a tensor is the next input"
    other = torch.zeros(1, 3, 32)
    found, _ = ran_in(ops, lambda: [parts[0](x), parts[0](other)])
    assert not found[1].any(), "another input is another product"


def memory(layout: str, whole: np.ndarray[Any, Any]) -> list[Tensor]:
    """q, k and v, 32, 16 and 16 rows of ``whole``, in memory of this layout."""
    tensor, behind = torch.from_numpy(whole), np.concatenate([whole, whole])
    return {
        "behind others": list(torch.from_numpy(behind)[64:].split([32, 16, 16])),
        "behind others, of other owners": [
            torch.from_numpy(behind[:96])[64:],
            torch.from_numpy(behind[96:112]),
            torch.from_numpy(behind[112:]),
        ],
        "side by side": [tensor[:32], tensor[32:48], tensor[48:]],
        "of other owners": [torch.from_numpy(part) for part in (whole[:32], whole[32:48], whole[48:])],
        "one apart": [tensor[:32], tensor[32:48].clone(), tensor[48:]],
        "in another order": [tensor[32:], tensor[16:32], tensor[:16]],
        "the first by columns": [tensor[:32].T, tensor[32:48], tensor[48:]],
    }[layout]


IN_PLACE = ("side by side", "behind others")
"""The layouts in which one storage has all three in their order."""


@pytest.mark.parametrize(
    "layout",
    [
        *(*IN_PLACE, "of other owners", "behind others, of other owners"),
        *("one apart", "in another order", "the first by columns"),
    ],
)
def test_matrices_become_one_wherever_they_lie_and_stay_the_models_own(layout: str) -> None:
    model, ops = families.build_model("llama"), compiled_ops()
    attention: Any = model.model.layers[0].self_attn
    whole = np.random.default_rng(0).standard_normal((64, 32), dtype=np.float32)
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    for part, weight in zip(parts, memory(layout, whole), strict=True):
        part.weight = nn.Parameter(weight)
    wanted = [part.weight.detach().clone() for part in parts]
    first = parts[0].weight.data_ptr()
    Swap(model, ops)
    assert all(torch.equal(part.weight, one) for part, one in zip(parts, wanted, strict=True))
    assert (parts[0].weight.data_ptr() == first) == (layout in IN_PLACE), "what lies right is not moved"
    for part, after in pairwise(parts):
        assert after.weight.data_ptr() == part.weight.data_ptr() + part.weight.nbytes


def test_weights_are_packed_as_long_as_a_copy_and_a_quarter_more_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    products = sum(m.weight.nbytes for m in families.build_model("llama").modules() if isinstance(m, nn.Linear))
    needed = products * 5 // 4
    room = needed
    monkeypatch.setattr("specdec.swap.available_bytes", lambda device: room)
    assert Swap(families.build_model("llama"), compiled_ops()).copied_bytes > 0
    room = needed - 1
    poor = Swap(families.build_model("llama"), compiled_ops())
    assert (poor.copied_bytes, len(poor.notes())) == (0, 1)
    assert poor.notes()[0].startswith(f"the weights are not packed: a copy needs {memory_text(needed)} and ")
    assert Swap(families.build_model("llama"), compiled_ops(), 8).notes() == [], "codes are no copy"
    assert Swap(families.build_model("llama"), registry().backend("reference")).notes() == []


def test_all_threads_are_a_backends_own_only_while_every_part_is_replaced_by_one_that_has_such() -> None:
    model = families.build_model("llama")
    made = Swap(model, compiled_ops())
    assert not made.own_threads
    made.put_in(layers=False)
    assert not made.own_threads, "the layers run op by op"
    made.put_in()
    assert made.own_threads
    with made.taken_out():
        assert not made.own_threads
        assert not any("forward" in module.__dict__ for module in model.modules())
    assert made.own_threads
    made.take_out()
    with made.taken_out():
        pass
    assert not any("forward" in module.__dict__ for module in model.modules()), "what was out stays out"
    for name, backend in (("llama", "reference"), ("gpt2", "cpu")):  # GPT-2 has no layer that is replaced whole
        other = Swap(families.build_model(name), registry().backend(backend))
        other.put_in()
        assert not other.own_threads


class RankZero:
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
    monkeypatch.setattr(sharding, "dist", RankZero(ranks))
    model = families.build_model(family)
    shard_model(model, 0, ranks)
    native = model(IDS, use_cache=False)
    made = Swap(model, registry().backend(backend))
    made.put_in()
    torch.testing.assert_close(model(IDS, use_cache=False).logits, native.logits, rtol=1e-3, atol=1e-3)
    made.take_out()
    target = ArenaModel(model, registry().backend(backend))
    inner: Any = model.model
    hidden = target.extend(target.arena(1, 64, 8), IDS, 0, 0)
    target.swap.take_out()
    model.set_attn_implementation(target.native_attention)
    expected = inner(IDS, use_cache=False).last_hidden_state
    torch.testing.assert_close(hidden, expected, rtol=1e-3, atol=1e-3)
