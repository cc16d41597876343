"""How a model is cut over ranks: what is cut and what stays whole, in words, and every number that a rank keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from benchsuite.conformance.models import families
from benchsuite.tests.rig import plan_embeddings
from specdec import SpecdecError, sharding
from specdec.sharding import Sharding, shard_model, sharding_of

TOO_FEW = "attention ({} heads do not divide by {})", "MLP (64 units do not divide by {})"
VOCABULARY = "head and embedding (258 tokens do not divide by {})"
PARTS = ("attention", "MLP", "head", "embedding")


@pytest.fixture(autouse=True)
def embeddings_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are those of the newest transformers."""
    plan_embeddings(monkeypatch)


def by_four(family: str) -> Sharding:
    """Four heads of queries and two of keys; the vocabulary divides by 2, 3 and 6."""
    return Sharding(4, 1, ("MLP",), (TOO_FEW[0].format(2, 4), VOCABULARY.format(4)))


CUTS: dict[tuple[str, int], Sharding] = {
    **{(family, 2): Sharding(2, 2, PARTS, ()) for family in ("llama", "smollm2", "qwen2", "qwen3", "mistral")},
    **{(family, 4): by_four(family) for family in ("llama", "smollm2", "gemma2")},
    ("qwen2", 3): Sharding(3, 1, PARTS[2:], (TOO_FEW[0].format(4, 3), TOO_FEW[1].format(3))),
    ("gemma3", 2): Sharding(2, 2, PARTS[:3], ("embedding (a Gemma3TextScaledWordEmbedding)",)),
    ("gemma2", 3): Sharding(
        3,
        1,
        ("head",),
        (TOO_FEW[0].format(4, 3), TOO_FEW[1].format(3), "embedding (a Gemma2TextScaledWordEmbedding)"),
    ),
}


def biased(family: str) -> Any:
    """A model whose every product has a bias that is not 0."""
    model: Any = families.build_model(family)
    for number, module in enumerate(model.modules()):
        if isinstance(module, nn.Linear):
            module.bias = nn.Parameter(torch.arange(float(module.out_features)) + number)
    return model


@pytest.mark.parametrize(("family", "ranks"), CUTS)
def test_each_rank_keeps_its_part_of_what_divides_and_all_of_the_rest(family: str, ranks: int) -> None:
    whole, made = biased(family), CUTS[family, ranks]
    tied = whole.config.tie_word_embeddings
    for rank in (0, 1, ranks - 1):
        model = biased(family)
        assert sharding_of(model) is None
        assert shard_model(model, rank, ranks) == made
        assert sharding_of(model) == made
        names = dict(whole.named_modules())
        for name, module in model.named_modules():
            kind = "attention" if "self_attn" in name else "MLP" if "mlp" in name else name.rpartition(".")[2]
            kind = {"lm_head": "head", "embed_tokens": "embedding"}.get(kind, kind)
            before, weight = names[name], getattr(module, "weight", None)
            if weight is None:
                continue
            is_cut = kind in made.cut and weight.dim() == 2
            axis = 1 if name.endswith(("o_proj", "down_proj")) else 0
            expected = before.weight.chunk(ranks, dim=axis)[rank] if is_cut else before.weight
            assert torch.equal(weight, expected), name
            assert weight.requires_grad is not is_cut, name
            rows, columns = expected.shape if weight.dim() == 2 else (0, 0)
            if isinstance(module, nn.Linear):
                assert (module.out_features, module.in_features) == (rows, columns), name
                assert all(type(size) is int for size in (module.out_features, module.in_features))
                summed = is_cut and axis == 1
                bias = before.bias.chunk(ranks)[rank] if is_cut and not summed else before.bias
                assert torch.equal(module.bias, torch.zeros_like(bias) if summed and rank else bias), name
                assert module.bias.requires_grad is not (is_cut and (not summed or rank > 0)), name
                joined: Any = sharding.GatheredLinear if kind == "head" else sharding.SummedLinear
                assert type(module) is (joined if is_cut and (summed or kind == "head") else nn.Linear)
            elif kind == "embedding" and is_cut:
                found: Any = module
                assert type(found) is sharding.SummedEmbedding
                assert (found.num_embeddings, found.first, found.padding_idx) == (rows, rank * rows, None)
                assert type(found.num_embeddings) is int
        if "embedding" in made.cut:
            same = model.get_output_embeddings().weight is model.get_input_embeddings().weight
            assert same is tied, "a tied weight is in memory once"


def test_a_model_without_biases_has_none_when_it_is_cut() -> None:
    model = families.build_model("llama")
    shard_model(model, 1, 2)
    assert all(module.bias is None for module in model.modules() if isinstance(module, nn.Linear))


def test_what_was_cut_is_said_in_words() -> None:
    assert str(Sharding(2, 2, PARTS[:2], ())) == "each of 2 ranks holds a part of attention, MLP"
    assert str(Sharding(3, 1, ("head",), ("a", "b"))) == (
        "each of 3 ranks holds a part of head; whole on every rank: a, b"
    )


KNOWN_WORDS = (
    "colwise, rowwise, colwise_gather_output, colwise_rep, embedding_rowwise, replicate, replicated_with_grad_allreduce"
)
AFTER = " (tp_plan of transformers); run it in one process, or choose a Llama, Qwen2, Qwen3, Mistral or Gemma model"


def llama_planned(monkeypatch: pytest.MonkeyPatch, **changed: str | None) -> Any:
    """A model of Llama's kind whose plan has other words; None takes one out."""
    model: Any = families.build_model("llama")
    names = {"head": "lm_head", "embedding": "model.embed_tokens", "norm": "model.layers.*.input_layernorm"}
    names |= {"up": "model.layers.*.mlp.up_proj", "out": "model.layers.*.self_attn.o_proj"}
    plan = dict(model.tp_plan)
    for name, word in changed.items():
        plan.pop(names[name], None)
        if word is not None:
            plan[names[name]] = word
    monkeypatch.setattr(type(model), "tp_plan", property(lambda self: plan))
    return model


def test_a_plan_with_other_words_is_refused_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecdecError) as refused:
        shard_model(llama_planned(monkeypatch, up="wise", out="strange", norm="replicate"), 0, 2)
    assert str(refused.value) == (
        f"a llama model cannot be cut over 2 ranks: its plan says strange, wise, and known are {KNOWN_WORDS}{AFTER}"
    )
    with pytest.raises(SpecdecError) as refused:
        shard_model(families.build_model("gpt2"), 0, 3)
    assert str(refused.value) == f"a gpt2 model cannot be cut over 3 ranks: it has no plan{AFTER}"


@pytest.mark.parametrize("word", ["replicate", "replicated_with_grad_allreduce"])
def test_what_a_plan_says_every_rank_keeps_stays_whole(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama_planned(monkeypatch, norm=word)
    assert shard_model(model, 0, 2) == Sharding(2, 2, PARTS, ())
    assert tuple(model.model.layers[0].input_layernorm.weight.shape) == (32,)


@pytest.mark.parametrize(
    ("changed", "cut", "whole"),
    [
        ({"head": "colwise_rep"}, PARTS, ()),
        ({"head": "colwise"}, PARTS[:2], ("head and embedding (the plan does not cut the head)",)),
        ({"head": None}, PARTS[:2], ("head and embedding (the plan does not cut the head)",)),
        ({"embedding": None}, PARTS[:3], ("embedding (the plan does not cut it)",)),
        ({"embedding": "replicate"}, PARTS[:3], ("embedding (the plan does not cut it)",)),
    ],
)
def test_the_vocabulary_is_cut_as_the_plan_says(
    changed: Any, cut: tuple[str, ...], whole: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama_planned(monkeypatch, **changed)
    assert shard_model(model, 0, 2) == Sharding(2, 2, cut, whole)
    assert model.lm_head.out_features == (129 if "head" in cut else 258)
    assert model.model.embed_tokens.num_embeddings == (129 if "embedding" in cut else 258)


class OtherLinear(nn.Linear):
    """A linear module of another class."""


def test_modules_of_another_class_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = families.build_model("llama")
    for layer in model.model.layers:
        layer.mlp.up_proj.__class__ = OtherLinear
    model.lm_head.__class__ = OtherLinear
    made = shard_model(model, 0, 2)
    assert made == Sharding(
        2, 2, ("attention",), ("MLP (up_proj is a OtherLinear)", "head and embedding (the plan does not cut the head)")
    )


def test_a_model_of_which_nothing_divides_is_refused_with_the_reasons() -> None:
    with pytest.raises(SpecdecError) as refused:
        shard_model(families.build_model("llama"), 0, 5)
    assert str(refused.value) == (
        f"nothing of this llama model can be divided by 5: {TOO_FEW[0].format(4, 5)}, {TOO_FEW[1].format(5)}, "
        f"{VOCABULARY.format(5)}; choose a number of processes that divides them (torchrun --nproc-per-node)"
    )


def test_layers_that_divide_are_cut_beside_an_mlp_that_does_not() -> None:
    """Only attention must be alike in all layers, because the arena holds its heads."""
    model: Any = families.build_model("llama")
    mlp = model.model.layers[0].mlp
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = nn.Linear(32, 33), nn.Linear(32, 33), nn.Linear(33, 32)
    made = shard_model(model, 0, 2)
    assert made == Sharding(2, 2, PARTS, ("MLP (33 units do not divide by 2)",))
    assert (model.model.layers[0].mlp.up_proj.out_features, model.model.layers[1].mlp.up_proj.out_features) == (33, 32)
