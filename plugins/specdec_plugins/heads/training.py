"""Training of heads on the target's own text: seeded, resumable, evaluated on held-out conversations."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.decoder import Cells
from specdec.interfaces import Backend
from specdec.progress import Progress
from specdec_plugins.heads.corpus import Corpus
from specdec_plugins.heads.dflash_head import DFlashHead
from specdec_plugins.heads.eagle3_head import Eagle3Head
from specdec_plugins.heads.eagle_head import EagleHead
from specdec_plugins.heads.medusa_heads import MedusaHeads
from specdec_plugins.heads.mtp_head import MtpHead
from specdec_plugins.heads.muon import OwnDtypeMuon
from specdec_plugins.heads.unrolling import FeedbackStep, fed_back, mtp_step, unrolled_blocks

HELD_OUT = 0.05
"""Share of the conversations that training does not use."""

FADE = 0.8
"""Weight of each unrolled step relative to the step before: a proposal counts only if all before it are accepted."""

WARM_UP = 100
"""Steps over which the learning rate rises; at most a tenth of all steps."""

SAVED = 25
"""Batches between two checkpoints: what an interruption loses at most."""

Head = EagleHead | Eagle3Head | MedusaHeads | MtpHead | DFlashHead


def final(hidden: Tensor) -> Tensor:
    """Of a text's states, [B, T, H] or [B, T, n + 1, H], those that the target's head reads."""
    return hidden if hidden.dim() == 3 else hidden[:, :, -1]


def unrolled_eagle(
    head: EagleHead | Eagle3Head, ops: Backend, embedded: Tensor, hidden: Tensor, steps: int
) -> Iterator[Tensor]:
    """``fed_back`` of either head; ``hidden`` are the target's states, [B, T, H], or [B, T, n, H] for EAGLE-3."""
    if isinstance(head, EagleHead):
        return fed_back(_eagle_step(head, ops, hidden), embedded, hidden, steps)
    feature = head.fused(ops, hidden, head.weights(ops))
    return fed_back(_eagle_step(head, ops, feature), embedded, feature, steps)


def _eagle_step(head: EagleHead | Eagle3Head, ops: Backend, like: Tensor) -> FeedbackStep:
    """The step of either head over texts as long as ``like`` [B, T, H]."""
    shape, (batch, length) = head.shape, like.shape[:2]
    index = torch.arange(length, device=like.device)
    turn = head.turn(index[None], like.dtype)
    empty = like.new_zeros(batch, shape.heads_kv, length, shape.head_dim)
    keys = values = empty[:, :, :0]
    forward = _entering(head, ops)

    def step(embedded: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
        nonlocal keys, values
        cells = (index + keys.shape[2]).expand(batch, -1)
        # New tensors, because backward needs the tensors of earlier steps unchanged.
        keys, values = torch.cat([keys, empty], dim=2), torch.cat([values, empty], dim=2)
        return forward(embedded, hidden, turn, Cells(keys, values, cells, mask))

    return step


def _entering(head: EagleHead | Eagle3Head, ops: Backend) -> Callable[..., Tensor]:
    """The forward of either head, of embeddings, states, rotary and cells."""
    if isinstance(head, EagleHead):
        weights = head.weights(ops)
        return lambda embedded, hidden, turn, at: head(ops, embedded, hidden, turn, at, weights)
    read = head.weights(ops)
    return lambda embedded, hidden, turn, at: head(ops, embedded, hidden, turn, [at], read)


def unrolled_medusa(heads: MedusaHeads, ops: Backend, embedded: Tensor, hidden: Tensor) -> Iterator[Tensor]:
    """Yields the states of head i, [B, T, H], shifted by i to the index whose distribution they estimate."""
    states = heads(ops, embedded.flatten(0, 1), hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
    for i in range(heads.count):
        yield torch.cat([states[:, :i, i], states[:, : states.shape[1] - i, i]], dim=1)


class Reader:
    """The rows of the target's head for a draft's vocabulary: they give the labels and read the estimates.

    ``ids`` int64 [D] are the target's token ids in its reduced vocabulary (FR-Spec, Zhao et al. 2502.14856).
    """

    def __init__(self, output: Tensor, ids: Tensor, dtype: torch.dtype) -> None:
        self.whole, self.ids = output.to(dtype), ids
        self.rows = self.whole[ids].contiguous()

    def logits(self, state: Tensor) -> Tensor:
        """Logits [..., D] of estimated states [..., H]."""
        return F.linear(state, self.rows)

    def read(self, head: Head, ops: Backend, state: Tensor) -> Tensor:
        """Logits [..., D] of a head's own states [..., H]: EAGLE-3 has a head for them, others share the target's."""
        return head.logits(ops, state, head.weights(ops)) if isinstance(head, Eagle3Head) else self.logits(state)


def frequent(tokens: Tensor, size: int) -> Tensor:
    """The ``size`` most frequent token ids, int64, in ascending order; fewer if fewer ids occur."""
    counts = torch.bincount(tokens.flatten())
    seen = int((counts > 0).sum())
    return counts.argsort(descending=True, stable=True)[: min(size, seen)].sort().values


def labels(reader: Reader, hidden: Tensor) -> Tensor:
    """Labels float32 [..., D] for estimates of ``hidden``: half the target's distribution, half its likeliest token."""
    logits = reader.logits(hidden).float()
    distribution = logits.softmax(dim=-1).mul_(0.5)
    top = logits.argmax(dim=-1, keepdim=True)
    return distribution.scatter_add_(-1, top, torch.full_like(top, 0.5, dtype=distribution.dtype))


def counted(answer: Tensor, steps: int) -> Tensor:
    """bool [B, T - 1]: whether an estimate counts: it is of an answer's token and exists in every unrolled step."""
    counts = answer[:, 1:].clone()
    counts[:, :steps] = False
    return counts


def loss_of(
    head: Head, ops: Backend, reader: Reader, embedded: Tensor, hidden: Tensor, answer: Tensor, steps: int
) -> Tensor:
    """Cross-entropy to ``labels``, averaged over the places ``answer``, summed over unrolled steps with weights
    FADE**r."""
    counts = counted(answer, steps)
    wanted = labels(reader, final(hidden)[:, 1:][counts])
    total = hidden.new_zeros((), dtype=torch.float32)
    for fed, state in enumerate(unrolled(head, ops, embedded, hidden[:, :-1], steps)):
        total = total + FADE**fed * F.cross_entropy(reader.read(head, ops, state[counts]).float(), wanted)
    return total


def unrolled(head: Head, ops: Backend, embedded: Tensor, hidden: Tensor, steps: int) -> Iterator[Tensor]:
    """States for 1 … ``steps`` tokens ahead, for any kind of head."""
    if isinstance(head, Eagle3Head):
        return unrolled_eagle(head, ops, embedded, hidden[:, :, :-1], steps)
    if isinstance(head, EagleHead):
        return unrolled_eagle(head, ops, embedded, final(hidden), steps)
    if isinstance(head, MtpHead):
        return fed_back(mtp_step(head), embedded, final(hidden), steps)
    if isinstance(head, DFlashHead):
        return unrolled_blocks(head, ops, embedded, hidden[:, :, :-1], steps)
    return unrolled_medusa(head, ops, embedded, final(hidden))


@torch.inference_mode()
def judge(
    head: Head, ops: Backend, reader: Reader, embed: Tensor, corpus: Corpus, steps: int, batch: int = 4
) -> dict[str, Any]:
    """On held-out text: the shares of proposals 1 … ``steps`` that are the target's likeliest token, given that all
    before them are, and the mean acceptance length of a greedy chain that follows from these shares."""
    kept = torch.zeros(steps)
    tried = torch.zeros(steps)
    for pick in torch.arange(len(corpus.tokens)).split(batch):
        some = corpus.rows(pick)
        tokens, hidden = some.tokens.to(embed.device), some.hidden.to(embed)
        wanted = F.linear(final(hidden)[:, 1:], reader.whole).argmax(dim=-1)
        run = counts = counted(some.answer.to(embed.device), steps)
        embedded = F.embedding(tokens[:, 1:], embed)
        for fed, state in enumerate(unrolled(head, ops, embedded, hidden[:, :-1], steps)):
            right = reader.ids[reader.read(head, ops, state).argmax(dim=-1)] == wanted
            before = torch.cat([torch.zeros_like(run[:, :1]), run[:, :-1]], dim=1) & counts if fed else run
            tried[fed] += before.sum().cpu()
            run = before & right
            kept[fed] += run.sum().cpu()
    rates = (kept / tried.clamp(min=1)).tolist()
    length, alive = 1.0, 1.0
    for rate in rates:
        alive *= rate
        length += alive
    return {"agreement": [round(rate, 4) for rate in rates], "acceptance_length": round(length, 4)}


CHECKPOINT = "checkpoint.pt"


def train(
    head: Head,
    ops: Backend,
    reader: Reader,
    embed: Tensor,
    corpus: Corpus,
    folder: Path,
    *,
    epochs: int,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    beside: float = 0.0,
    patience: int = 3,
) -> list[dict[str, Any]]:
    """Train a head and return its log, one entry an epoch. In place: the head gets its best weights on held-out text.

    ``folder`` receives a checkpoint after every SAVED batches and every epoch; training continues from one found there,
    and ends with the same weights. It stops early after ``patience`` epochs in a row without improvement. It learns
    from answers and from a share ``beside`` of the other places. All random numbers come from ``seed``.
    """
    training, held_out = corpus.split(HELD_OUT)
    optimizers = _optimizers(head, rate)
    per_epoch = math.ceil(len(training.tokens) / batch)
    total = epochs * per_epoch
    folder.mkdir(parents=True, exist_ok=True)
    best, log, losses = _resumed(folder, head, optimizers)
    depth = _most(head) or max(4, steps)
    for epoch in range(len(log), epochs):
        start = time.perf_counter()
        order, learnt = _drawn(training, beside, seed + epoch)
        progress = Progress(per_epoch, "batches", f"epoch {epoch + 1}/{epochs}")
        for number, pick in enumerate(order.split(batch)):
            if number < len(losses):
                continue  # before an interruption
            pace = _pace(epoch * per_epoch + number, total)
            some = training.rows(pick)
            embedded = F.embedding(some.tokens[:, 1:].to(embed.device), embed)
            loss = loss_of(head, ops, reader, embedded, some.hidden.to(embed), learnt[pick].to(embed.device), steps)
            loss.backward()
            _descend(head, optimizers, rate * pace)
            losses.append(float(loss.detach()))
            progress.step()
            if len(losses) % SAVED == 0:
                _checkpoint(folder, head, optimizers, best, log, losses)
        progress.close()
        found = judge(head, ops, reader, embed, held_out, depth)
        mean = round(sum(losses) / len(losses), 4)
        log.append({"epoch": epoch + 1, "loss": mean, **found, "seconds": round(time.perf_counter() - start)})
        print(json.dumps(log[-1]), flush=True)
        lengths = [line["acceptance_length"] for line in log]
        if lengths[-1] == max(lengths):
            best = _copied(head)
        losses = []
        _checkpoint(folder, head, optimizers, best, log, losses)
        if len(lengths) - lengths.index(max(lengths)) > patience:
            break
    head.load_state_dict(best)
    return log


def _drawn(corpus: Corpus, beside: float, seed: int) -> tuple[Tensor, Tensor]:
    """The order of the conversations in an epoch, and the places bool [N, T] from which it learns."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(corpus.tokens), generator=generator)
    return order, corpus.answer | (torch.rand(corpus.answer.shape, generator=generator) < beside)


def _most(head: Head) -> int | None:
    """How many proposals a head makes at once; None if it goes on with its own."""
    if isinstance(head, MedusaHeads):
        return head.count
    return head.shape.proposals if isinstance(head, DFlashHead) else None


def _pace(step: int, total: int) -> float:
    """The share of the learning rate in a step: it rises in the warm-up, and falls to 0 as a cosine."""
    warm, done = min(WARM_UP, total / 10), step / total
    return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * done))


_Weights = dict[str, Tensor]


def _optimizers(head: Head, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for everything else."""
    learning = [p for p in head.parameters() if p.requires_grad]
    matrices = [p for p in learning if p.dim() == 2]
    rest = [p for p in learning if p.dim() != 2]
    norm = head.model.base_model.last.weight if isinstance(head, MtpHead) else head.norm
    return [
        OwnDtypeMuon(matrices, rate, norm.numel()),
        torch.optim.AdamW(rest, lr=rate, weight_decay=0.0),
    ]


def _descend(head: Head, optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
    """One optimizer step along the gradients of ``backward``, which are then cleared."""
    nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()


def _copied(head: Head) -> _Weights:
    return {name: value.clone() for name, value in head.state_dict().items()}


def _checkpoint(
    folder: Path,
    head: Head,
    optimizers: Sequence[torch.optim.Optimizer],
    best: _Weights,
    log: list[dict[str, Any]],
    losses: list[float],
) -> None:
    """Save all that training needs to continue after the epochs of ``log`` and the batches with these losses."""
    state = {
        "head": head.state_dict(),
        "best": best,
        "log": json.dumps(log),
        "losses": losses,
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    partial = folder / f"{CHECKPOINT}.partial"
    torch.save(state, partial)
    partial.replace(folder / CHECKPOINT)  # a machine that stops here leaves the one before


def _resumed(
    folder: Path, head: Head, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[_Weights, list[dict[str, Any]], list[float]]:
    """The best weights, the log and the losses of the epoch that was begun, from the folder's checkpoint, which is
    loaded in place; those of the beginning if there is none."""
    saved = folder / CHECKPOINT
    if not saved.exists():
        return _copied(head), [], []
    state = torch.load(saved, weights_only=True)
    head.load_state_dict(state["head"])
    for optimizer, saved_state in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved_state)
    return state["best"], json.loads(state["log"]), state["losses"]
