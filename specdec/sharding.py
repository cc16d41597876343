"""Cuts a model's matrices over the ranks of a run, by the plan that transformers gives the model (``model.tp_plan``).

transformers 5.23 applies that plan itself, with parameters that are DTensors and forwards that are set on the modules.
Our ops take plain tensors, packed or not, and ``Swap`` sets forwards too, so the cut is made here: every module keeps a
plain local part of its weight, and two kinds of modules join what the ranks computed. Source of the plan's words:
``transformers.distributed.tensor_parallel``; of the cut: Shoeybi et al., Megatron-LM, arXiv 1909.08053.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from specdec.errors import SpecdecError

KEPT = ("replicate", "replicated_with_grad_allreduce")
"""Words of a plan for modules that every rank keeps whole."""


class Joined(nn.Linear):
    """A linear module of which a rank holds a part; ``join`` makes the whole output of every rank's."""

    def join(self, part: Tensor) -> Tensor:
        """The whole output, on every rank, of each rank's ``part``; a collective call."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """The whole output [..., N] of a part of the weights."""
        return self.join(super().forward(x))


class SummedLinear(Joined):
    """Holds some of the inputs: the ranks' outputs [..., N] are added. Rank 0 alone has the bias, others zeros."""

    def join(self, part: Tensor) -> Tensor:
        """Add the ranks' parts; in place where that is possible."""
        return summed_over_ranks(part)


class GatheredLinear(Joined):
    """Holds some of the outputs: those of the ranks, [..., N / ranks] each, are put side by side."""

    def join(self, part: Tensor) -> Tensor:
        """Put the ranks' parts side by side, in the order of the ranks."""
        return _gathered(part).movedim(0, -2).flatten(-2)


class SummedEmbedding(nn.Embedding):
    """Holds the vectors of tokens from ``first`` on; a rank gives zeros for the others' tokens, and all are added."""

    first: int

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors [..., H] of ids int64 [...] of the whole vocabulary."""
        local = ids - self.first
        inside = (local >= 0) & (local < self.num_embeddings)
        found = super().forward(torch.where(inside, local, 0))
        return summed_over_ranks(found * inside[..., None])


def summed_over_ranks(part: Tensor) -> Tensor:
    """The sum of the ranks' tensors of one shape, the same bits on every rank; a collective call."""
    part = part.contiguous()
    dist.all_reduce(part)
    return part


def _gathered(part: Tensor) -> Tensor:
    """The tensors of all ranks, [ranks, *shape]; a collective call."""
    whole = part.new_empty(dist.get_world_size(), *part.shape)
    dist.all_gather(list(whole), part.contiguous())
    return whole


def joined_output(module: nn.Module, part: Tensor) -> Tensor:
    """What a linear module gives, of the product of its own weight: joined over the ranks if the module is cut."""
    return module.join(part) if isinstance(module, Joined) else part


def whole_weight(module: nn.Linear | nn.Embedding) -> Tensor:
    """The weight [N, H] of a head or an embedding, put together if it is cut; then a collective call.

    Example: ``whole_weight(model.get_output_embeddings())``
    """
    if not isinstance(module, GatheredLinear | SummedEmbedding):
        return module.weight
    return _gathered(module.weight.detach()).flatten(0, 1)


@dataclass(frozen=True)
class Sharding:
    """How a model was cut: the number of ranks, what each holds a part of, what it holds whole and why.

    ``heads`` divides the attention heads, so that a rank's arena holds its own: ``ranks``, or 1 where they stay whole.
    """

    ranks: int
    heads: int
    cut: tuple[str, ...]
    whole: tuple[str, ...]

    def __str__(self) -> str:
        left = f"; whole on every rank: {', '.join(self.whole)}" if self.whole else ""
        return f"each of {self.ranks} ranks holds a part of {', '.join(self.cut)}{left}"


def sharding_of(model: nn.Module) -> Sharding | None:
    """How ``model`` was cut by ``shard_model``; None for a whole model."""
    found: Sharding | None = getattr(model, "specdec_sharding", None)
    return found


def shard_model(model: PreTrainedModel, rank: int, ranks: int) -> Sharding:
    """Cut ``model`` in place, on the device where it is: this rank keeps its part of every matrix that can be divided.

    Attention is cut by heads, an MLP by its inner size, embedding and head by the vocabulary. What does not divide by
    ``ranks`` stays whole on every rank. Nothing is sent: each rank has loaded the whole model. Raises SpecdecError for
    a model without a plan, for words of a plan that are not known here, and if nothing can be divided.

    Example: ``shard_model(AutoModelForCausalLM.from_pretrained(folder), rank=0, ranks=2)``
    """
    name, plan = model.config.model_type, dict(model.tp_plan or {})
    known = ("colwise", "rowwise", "colwise_gather_output", "colwise_rep", "embedding_rowwise", *KEPT)
    strange = sorted({word for word in plan.values() if word not in known})
    if not plan or strange:
        reason = (
            f"its plan says {', '.join(strange)}, and known are {', '.join(known)}" if strange else "it has no plan"
        )
        raise SpecdecError(
            f"a {name} model cannot be cut over {ranks} ranks: {reason} (tp_plan of transformers); "
            "run it in one process, or choose a Llama, Qwen2, Qwen3, Mistral or Gemma model"
        )
    cut: dict[str, None] = {}  # in place of sets, for their order
    whole: dict[str, None] = {}
    heads = 1
    for parent, words in _parents(model, plan):
        why, kind = _indivisible(parent, words, ranks), "attention" if hasattr(parent, "head_dim") else "MLP"
        if why:
            whole[f"{kind} ({why})"] = None
            continue
        cut[kind] = None
        heads = ranks if kind == "attention" else heads
        for part, word in words.items():
            _cut_linear(getattr(parent, part), word, rank, ranks)
    for part, why in _cut_vocabulary(model, plan, rank, ranks).items():
        (whole if why else cut)[f"{part} ({why})" if why else part] = None
    if not cut:
        raise SpecdecError(
            f"nothing of this {name} model can be divided by {ranks}: {', '.join(whole)}; choose a number of processes "
            "that divides them (torchrun --nproc-per-node)"
        )
    if "attention" in cut and any(kind.startswith("attention") for kind in whole):
        raise SpecdecError(
            f"some layers of this {name} model divide by {ranks} and others do not; choose another number"
        )
    made = Sharding(ranks, heads, tuple(cut), tuple(whole))
    model.specdec_sharding = made
    return made


def _parents(model: nn.Module, plan: Mapping[str, str]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Modules that have cut parts, each with the words of these parts."""
    for path, parent in model.named_modules():
        generic = re.sub(r"\d+", "*", path)
        words = {part: plan[f"{generic}.{part}"] for part, _ in parent.named_children() if f"{generic}.{part}" in plan}
        words = {part: word for part, word in words.items() if word in ("colwise", "rowwise")}
        if words:
            yield parent, words


def _indivisible(parent: Any, words: Mapping[str, str], ranks: int) -> str:
    """Why the parts of a module stay whole, in words; an empty text if they can be cut."""
    unit = getattr(parent, "head_dim", 1)
    for part, word in words.items():
        linear = getattr(parent, part)
        if type(linear) is not nn.Linear:
            return f"{part} is a {type(linear).__name__}"
        size = (linear.out_features if word == "colwise" else linear.in_features) // unit
        if size % ranks:
            return f"{size} {'heads' if unit > 1 else 'units'} do not divide by {ranks}"
    return ""


def _part(weight: Tensor, rank: int, ranks: int, axis: int = 0) -> nn.Parameter:
    # A copy, so that the memory of the other ranks' parts is given back.
    return nn.Parameter(weight.detach().chunk(ranks, dim=axis)[rank].clone(), requires_grad=False)


def _cut_linear(linear: Any, word: str, rank: int, ranks: int) -> None:
    if word == "colwise":
        linear.weight = _part(linear.weight, rank, ranks)
        linear.bias = None if linear.bias is None else _part(linear.bias, rank, ranks)
        linear.out_features //= ranks
        return
    linear.weight = _part(linear.weight, rank, ranks, axis=1)
    linear.in_features //= ranks
    if linear.bias is not None and rank:
        linear.bias = nn.Parameter(torch.zeros_like(linear.bias), requires_grad=False)
    # The class alone is changed, so that whatever holds the module still holds it.
    linear.__class__ = SummedLinear


def _cut_vocabulary(model: Any, plan: Mapping[str, str], rank: int, ranks: int) -> dict[str, str]:
    """Cut head and embedding; returns why each stays whole, in words, or an empty text."""
    head: Any = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    words = {model.get_submodule(name): word for name, word in plan.items() if "*" not in name}
    if words.get(head) not in ("colwise_gather_output", "colwise_rep") or type(head) is not nn.Linear:
        return {"head and embedding": "the plan does not cut the head"}
    if head.out_features % ranks:
        return {"head and embedding": f"{head.out_features} tokens do not divide by {ranks}"}
    tied = head.weight is embedding.weight
    head.weight = _part(head.weight, rank, ranks)
    head.bias = None if head.bias is None else _part(head.bias, rank, ranks)
    head.out_features //= ranks
    head.__class__ = GatheredLinear
    if words.get(embedding) != "embedding_rowwise":  # transformers 5.17 plans none
        return {"head": "", "embedding": "the plan does not cut it"}
    if type(embedding) is not nn.Embedding:  # a family's own class does more than look up
        return {"head": "", "embedding": f"a {type(embedding).__name__}"}
    cut: Any = embedding  # by another name: its type is known no more once its class is changed
    embedding.weight = head.weight if tied else _part(embedding.weight, rank, ranks)
    embedding.num_embeddings //= ranks
    embedding.padding_idx = None
    cut.first = rank * embedding.num_embeddings
    cut.__class__ = SummedEmbedding
    return {"head": "", "embedding": ""}
