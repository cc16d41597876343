"""Swapped modules: the same model on our ops; modules are put in and taken out again."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import prompts, registry
from benchsuite.tests.rig import slow_after
from specdec import Request, SamplingParams, catalog
from specdec.amounts import memory_text
from specdec.assembly import Assembly
from specdec.choices import BITS
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.quantised import Quantised
from specdec.swap import Swap

IDS = torch.tensor([[5, 9, 200, 31, 7, 7, 64, 255]])


def cpu_ops() -> Ops:
    """The C++ ops over the reference."""
    return registry().backend("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", families.CONFIGS)
@torch.inference_mode()
def test_a_swapped_model_errs_no_more_than_the_unswapped(family: str, dtype: torch.dtype) -> None:
    model = families.build_model(family, dtype=dtype)
    truth = families.build_model(family).double()
    truth.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    expected = truth(IDS, use_cache=False).logits
    native = model(IDS, use_cache=False).logits
    swap = Swap(model, cpu_ops())
    swap.put_in()
    swapped = model(IDS, use_cache=False).logits
    swap.take_out()
    unit = torch.finfo(dtype).eps * float(expected.abs().max())
    own, got = (float((logits.double() - expected).abs().max()) for logits in (native, swapped))
    assert got <= 2 * own + unit
    assert torch.equal(model(IDS, use_cache=False).logits, native), "taken out, the model must be what it was"


@pytest.mark.parametrize("family", families.CONFIGS)
def test_every_part_that_an_op_computes_is_found(family: str) -> None:
    """Counts calls: each layer's products, norms, rotary and gates, and the head."""
    model, ops = families.build_model(family), cpu_ops()
    layers = model.config.num_hidden_layers
    swap = Swap(model, ops)
    swap.put_in()
    with torch.inference_mode():
        model(IDS, use_cache=False)
    ran = {op: count for (op, backend), count in ops.ran().items() if backend == "cpu"}
    if family == "gpt2":  # its products are transposed; its norm and its gate are different functions
        assert ran == {"linear": 1}
        return
    gemma = family.startswith("gemma")
    norms = {"gemma2": 4, "gemma3": 6, "qwen3": 4}.get(family, 2)
    assert ran["linear"] == layers * (5 if gemma else 4) + 1
    assert ran["rms_norm"] == layers * norms + 1
    assert ran["rotary"] == layers
    gates = sum(count for (op, _), count in ops.ran().items() if op == "silu_mul")  # few elements go to the reference
    assert gates == (0 if gemma else layers)


@pytest.mark.parametrize("family", ["llama", "smollm2", "qwen2", "qwen2-hybrid", "mistral"])
def test_all_layers_of_a_forward_over_the_arena_are_one_call(family: str) -> None:
    target = ArenaModel(families.build_model(family), cpu_ops())
    arena = target.arena(1, 64, 8)
    before = target.ops.ran()
    target.extend(arena, IDS[:1, :6], 0, 0)
    planned = {("kv_plan", "cpu"): len(arena.capacity)}
    assert target.ops.ran() - before == {("decoder_layers", "cpu"): 1, ("rms_norm", "cpu"): 1, **planned}


def test_a_target_says_how_large_its_copies_are_and_when_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ArenaModel(families.build_model("llama"), cpu_ops())
    products = sum(m.weight.nbytes for m in target.model.modules() if isinstance(m, torch.nn.Linear))
    copied = target.swap.copied_bytes
    assert products <= copied < 1.05 * products  # the last tile of a matrix may have outputs that are 0
    assert target.swap.notes() == [f"{memory_text(copied)} of packed weights beside the model's own"]
    monkeypatch.setattr("specdec.swap.available_bytes", lambda device: products)
    poor = ArenaModel(families.build_model("llama"), cpu_ops())
    assert poor.swap.copied_bytes == 0
    assert "are not packed: a copy needs" in poor.swap.notes()[0]
    assert not ArenaModel(families.build_model("llama"), cpu_ops(), 8).swap.notes(), "codes are no copy"
    for model in (target, poor):
        arena = model.arena(1, 64, 8)
        hidden = model.extend(arena, IDS[:1, :6], 0, 0)
        torch.testing.assert_close(hidden, target.extend(target.arena(1, 64, 8), IDS[:1, :6], 0, 0))


def test_with_the_reference_alone_nothing_is_swapped() -> None:
    model, ops = families.build_model("llama"), registry().backend("reference")
    swap = Swap(model, ops)
    swap.put_in()
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_weights_are_laid_side_by_side_once_and_stay_the_models_own() -> None:
    model = families.build_model("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = {id(p) for p in model.parameters()}
    Swap(model, cpu_ops())
    first = model.model.layers[0].self_attn
    assert first.k_proj.weight.data_ptr() == first.q_proj.weight.data_ptr() + first.q_proj.weight.nbytes
    pointers = [p.data_ptr() for p in model.parameters()]
    Swap(model, cpu_ops())
    assert [p.data_ptr() for p in model.parameters()] == pointers, "a second swap moved what already lay right"
    assert {id(p) for p in model.parameters()} == parameters
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_twin_is_unswapped_and_its_target_stays_swapped() -> None:
    target = ArenaModel(families.build_model("llama"), cpu_ops())
    twin = target.twin()
    assert not any("forward" in module.__dict__ for module in twin.modules())
    assert any("forward" in module.__dict__ for module in target.model.modules())


@pytest.mark.parametrize("bits", BITS.values())
@torch.inference_mode()
def test_a_quantised_model_is_its_rounded_model_on_the_codes(bits: int) -> None:
    """The unswapped model has the rounded weights in float, so it is the reference for the quantised codes."""
    rounded = families.build_model("llama")
    target = ArenaModel(families.build_model("llama"), cpu_ops(), bits)
    for name, parameter in rounded.named_parameters():
        if parameter.dim() == 2 and "embed" not in name:
            parameter.copy_(Quantised.of(parameter, bits).dequantise())
    expected = rounded(IDS, use_cache=False).logits
    assert torch.equal(target.twin()(IDS, use_cache=False).logits, expected)
    swapped = target.swap
    target.model.set_attn_implementation(target.native_attention)
    swapped.put_in()
    torch.testing.assert_close(target.model(IDS, use_cache=False).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", BITS.values())
def test_quantised_weights_take_fewer_bytes(bits: int) -> None:
    plain, target = (ArenaModel(families.build_model("llama"), cpu_ops(), b) for b in (None, bits))
    products = sum(p.numel() for n, p in plain.model.named_parameters() if p.dim() == 2 and "embed" not in n)
    saved = plain.weight_bytes - target.weight_bytes
    assert products * (4 - bits / 8) * 0.8 < saved < products * (4 - bits / 8)


@pytest.mark.parametrize("bits", BITS.values())
def test_codes_are_the_nearest_and_rounding_twice_changes_nothing(bits: int) -> None:
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    once = Quantised.of(weight, bits)
    assert once.shape == (5, 64)
    step = once.scale if bits == 8 else once.scale.repeat_interleave(32, dim=1)
    assert bool(((once.dequantise() - weight).abs() <= step / 2 * 1.001).all())
    again = Quantised.of(once.dequantise(), bits)
    assert torch.equal(again.codes, once.codes)
    torch.testing.assert_close(again.dequantise(), once.dequantise())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 1.0]))
@pytest.mark.parametrize("bits", slow_after(1, [None, *BITS.values()]))
def test_speculation_on_the_ops_is_plain_decoding(bits: int | None, temperature: float) -> None:
    target = ArenaModel(families.build_model("llama"), cpu_ops(), bits)
    build = Assembly(registry(), target, catalog.byte_tokenizer(), max_rows=2, max_length=192)
    params = SamplingParams(temperature=temperature, max_new_tokens=30)
    work = [Request(i, prompt, params) for i, prompt in enumerate(prompts(3))]
    plain = build.engine(None).run(work)
    for draft in ("ngram", "garbage", "oracle(0.8)"):
        got = build.engine(draft, "match", k=5).run(work)
        assert [done.tokens for done in got] == [done.tokens for done in plain], draft
    ran = target.ops.ran()
    assert ran["linear", "cpu"]
    assert ran["sample", "cpu"]
    assert ran["verify_prefix", "cpu"]
    assert ran["decoder_layers", "cpu"]
