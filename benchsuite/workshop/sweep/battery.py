"""One type of model, tiny and random, over the arena: every forward beside that of the unmodified model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchsuite.conformance.models.tiny import registry
from benchsuite.workshop.sweep.configs import CHUNK, SPAN, VOCABULARY, config_by_rule
from specdec import ArenaModel, Assembly, Draft, Request, SamplingParams, SpecdecError, Verdict, Window
from specdec.arena import Arena
from specdec.catalog import ModelBytes, byte_tokenizer, sizes
from specdec.interfaces import Env
from specdec.recurrent import state_keepers
from specdec.trial import ALLOWED_RECURRENT
from specdec_plugins.drafts.oracle import Oracle

EXACT, REFUSED, WRONG, CRASHED = "runs exactly", "refused", "wrong", "crash"
OTHER, UNTRIED = "not a decoder of text", "not tried"
"""How a trial of a type of model may end."""

OF_SOUND = ("musicgen", "musicgen_melody")
"""Types whose class cannot be built from their own configuration, which is of an encoder, a decoder and a codec."""

LENGTH = 56
"""Tokens of a text: three chunks and four windows of the tiny models."""

ALLOWED = 2e-5
"""Largest difference of a logit, as a share of the largest."""

NEW_TOKENS = 8
"""Tokens that are decoded after a prompt."""


@dataclass(frozen=True)
class FamilyOutcome:
    """How the trial of a type of model ended: ``result`` is one of the six, ``reason`` is empty where it runs."""

    kind: str
    result: str
    reason: str = ""


class NotItsOwn(Exception):
    """Something over the arena is not the unmodified model's; the text says what and where."""


def try_family(kind: str, backend: str = "auto") -> FamilyOutcome:
    """Build a tiny model of this type, wrap it, and compare it with itself."""
    if kind in OF_SOUND:
        return FamilyOutcome(kind, OTHER, "its tokens are of sound, in several codebooks")
    try:
        model = spread_model(kind)
    except ImportError as error:
        return FamilyOutcome(kind, UNTRIED, _in_short(error))
    except Exception as error:
        return FamilyOutcome(kind, CRASHED, f"no tiny model: {_in_short(error)}")
    reason = _not_a_decoder(model)
    own = copy.deepcopy(model)
    try:
        target = ArenaModel(model, registry().backend(backend))
    except SpecdecError as error:
        return FamilyOutcome(kind, OTHER if reason else REFUSED, reason or str(error).partition(";")[0])
    except Exception as error:
        return FamilyOutcome(kind, CRASHED, f"when it is wrapped: {_in_short(error)}")
    if reason:
        return FamilyOutcome(kind, WRONG, f"accepted, and it is none: {reason}")
    try:
        allowed = allowed_share(own)
        compare_bytes(kind, target)
        compare_forwards(target, own, allowed)
        compare_decoding(target, own, allowed)
    except NotItsOwn as found:
        return FamilyOutcome(kind, WRONG, str(found))
    except Exception as error:
        return FamilyOutcome(kind, CRASHED, _in_short(error))
    return FamilyOutcome(kind, EXACT)


def spread_model(kind: str) -> PreTrainedModel:
    """A tiny model of this type on the CPU, in float32, whose random weights are so large that attention matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config_by_rule(kind), dtype=torch.float32).eval()
        spread_weights(model)
    return model


@torch.no_grad()
def spread_weights(model: PreTrainedModel) -> None:
    """Draw a model's matrices again, in place, so large that attention and states matter; its vectors move a little."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=1.2 / parameter.shape[-1] ** 0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


@torch.inference_mode()
def _not_a_decoder(model: PreTrainedModel) -> str:
    """Why a model gives no distribution of the next token of a text; empty if it does."""
    text = _texts()[0][None]
    try:
        logits = model(text, use_cache=False).logits
    except Exception as error:
        return f"its forward does not take tokens alone: {_in_short(error)}"
    if logits.shape[:2] != text.shape or logits.dim() != 3:
        return f"its forward of {LENGTH} tokens gives numbers of shape {tuple(logits.shape)}"
    if not logits.isfinite().all():
        return "its own logits are not finite"
    half = LENGTH // 2
    changed = text.clone()
    changed[:, half:] = (changed[:, half:] + 1) % VOCABULARY
    later = model(changed, use_cache=False).logits
    if _share(later[:, :half], logits[:, :half]) > ALLOWED:
        return "its logits depend on tokens that come later"
    changed = text.clone()
    changed[:, :-1] = (changed[:, :-1] + 1) % VOCABULARY
    if _share(model(changed, use_cache=False).logits[:, -1], logits[:, -1]) < 100 * ALLOWED:
        return "its logits do not depend on the tokens before"
    return ""


@torch.inference_mode()
def allowed_share(own: PreTrainedModel) -> float:
    """``ALLOWED``, or four times what the unmodified model's logits change by in float64, if that is more.

    Of recurrent models, whose code computes states in float32 whatever their dtype, ``ALLOWED_RECURRENT``.
    """
    if state_keepers(own):
        return ALLOWED_RECURRENT
    text, wide = _texts()[:1], copy.deepcopy(own).double()
    wide.set_experts_implementation("eager")  # torch's products of groups, transformers' default, take no float64
    exact = wide(text, use_cache=False).logits
    return max(ALLOWED, 4 * _share(own(text, use_cache=False).logits, exact))


@torch.inference_mode()
def own_logits(own: PreTrainedModel, texts: Tensor, first: Sequence[int]) -> Tensor:
    """The unmodified model's logits of ``texts`` int64 [B, L]: [B, L, V].

    A recurrent model's are those of ``first`` tokens of each text at once, and then of steps from its own cache: some
    compute other ones at once.
    """
    if not state_keepers(own):
        whole: Tensor = own(texts, use_cache=False).logits
        return whole
    rows, position = [], torch.arange(texts.shape[1])[None]
    for text, start in zip(texts.split(1), first, strict=True):
        given = own(text[:, :start], use_cache=True, position_ids=position[:, :start])
        logits = [given.logits]
        for at in range(start, texts.shape[1]):
            here = slice(at, at + 1)
            given = own(text[:, here], cache=given.cache, use_cache=True, position_ids=position[:, here])
            logits.append(given.logits)
        rows.append(torch.cat(logits, dim=1))
    return torch.cat(rows)


def compare_bytes(kind: str, target: ArenaModel) -> None:
    """What is counted of a type's configuration beside the tensors of its model and arena.

    Raises NotItsOwn for the first number that differs.
    """
    arena = target.arena(1, LENGTH, 3)
    cell = sum((stack.keys[0].nbytes + stack.values[0].nbytes) // arena.capacity[stack.span] for stack in arena.stacks)
    weights = sum(parameter.nbytes for parameter in target.model.parameters())
    expected = ModelBytes(weights, cell, arena.states.row_bytes // 4)
    if (found := sizes(kind, config_by_rule(kind), torch.float32)) != expected:
        raise NotItsOwn(f"{found} are counted of its configuration, and it has {expected}")


@torch.inference_mode()
def compare_forwards(target: ArenaModel, own: PreTrainedModel, allowed: float = ALLOWED) -> None:
    """Prefill in uneven chunks, windows of 1 to 9 in two rows of different length, each in part rejected, and a tree.

    ``allowed`` is the largest difference of a logit, as a share of the largest.
    Raises NotItsOwn for the first logits that are not ``own``'s.
    """
    texts, chunks = _texts(), ((5, CHUNK - 3, 3), (SPAN - 3,))
    expected = own_logits(own, texts, [sum(sizes) for sizes in chunks])
    arena, rows = target.arena(2, LENGTH + 16, 9), slice(0, 2)
    for row in (0, 1):
        start = 0
        for size in chunks[row]:
            target.extend(arena, texts[row : row + 1, start : start + size], row, start)
            start += size
    for width in range(1, 10):
        at = [int(n) for n in arena.committed]
        valid = [width, max(1, width - 3)]
        kept = [(width + 1) // 2, max(1, (width - 2) // 2)]
        window = torch.stack([texts[row, at[row] : at[row] + width] for row in (0, 1)])
        for row, count in enumerate(kept):
            window[row, count:] = (window[row, count:] + 7) % VOCABULARY  # rejected
        counts = torch.tensor([one - 1 for one in valid])
        logits, _ = target.forward(arena, Window.chain(window[:, 0], window[:, 1:], counts), rows, max(at))
        for row, count in enumerate(kept):
            _equal(
                logits[row, :count],
                expected[row, at[row] : at[row] + count],
                f"a window of {width} after {at[row]} tokens, row {row} of two of {at[0]} and {at[1]}",
                allowed,
            )
        _commit(target, arena, rows, kept, width)
    _compare_tree(target, own, arena, texts, allowed)


def _compare_tree(target: ArenaModel, own: PreTrainedModel, arena: Arena, texts: Tensor, allowed: float) -> None:
    """A tree of six slots after what is committed of row 1, one of its paths accepted, and a chain behind it."""
    start = int(arena.committed[1])
    rows, text = slice(1, 2), [int(token) for token in texts[1, :start]]
    parents, path = (-1, 0, 0, 1, 2, 4), (0, 2, 4)
    tokens = [int(texts[1, start]), 1, 2, 3, 0, 3]  # texts have no token below 4
    made = Window(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([len(tokens)]))
    logits, _ = target.forward(arena, made, rows, start)
    for slot in range(len(tokens)):
        line = [slot]
        while parents[line[0]] >= 0:
            line.insert(0, parents[line[0]])
        whole = torch.tensor([[*text, *(tokens[one] for one in line)]])
        expected = own_logits(own, whole, [SPAN - 3])[0, -1]
        _equal(logits[0, slot], expected, f"slot {slot} of a tree after {start} tokens", allowed)
    arena.commit(
        Verdict(torch.tensor([[*path, -1, -1, -1]]), torch.tensor([2]), torch.tensor([0])), rows, target.ops, True
    )
    whole = torch.tensor([[*text, *(tokens[one] for one in path), 9, 8]])
    pair = Window.chain(torch.tensor([9]), torch.tensor([[8]]), torch.tensor([1]))
    logits, _ = target.forward(arena, pair, rows, start + 3)
    _equal(
        logits[0],
        own_logits(own, whole, [SPAN - 3])[0, -2:],
        f"a window after an accepted path of a tree after {start} tokens",
        allowed,
    )


@torch.inference_mode()
def compare_decoding(target: ArenaModel, own: PreTrainedModel, allowed: float = ALLOWED) -> None:
    """Two requests at once with a draft whose proposals are right in four of five, against ``own.generate``.

    Raises NotItsOwn for the first token that is not generate's, unless its logit and that of generate's are equal.
    """
    prompts = [tuple(int(token) for token in text[:length]) for text, length in zip(_texts(), (21, 9), strict=True)]
    expected = [_generated(own, prompt) for prompt in prompts]

    def script(env: Env) -> Draft:
        return Oracle(replace(env, plain=lambda request: tuple(expected[request.id])), rate=0.8)

    plugins = registry(("draft", "generated", script))
    assembly = Assembly(plugins, target, byte_tokenizer(), max_rows=2, max_length=LENGTH + 16)
    params = SamplingParams(max_new_tokens=NEW_TOKENS)
    answers = assembly.engine("generated", k=4).run([Request(i, p, params) for i, p in enumerate(prompts)])
    for prompt, theirs, answer in zip(prompts, expected, answers, strict=True):
        ours = list(answer.tokens)
        first = next((i for i, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
        if first is None and len(theirs) == len(ours):
            continue
        if first is None:
            raise NotItsOwn(f"{len(ours)} tokens were decoded and generate gave {len(theirs)}")
        scores = own_logits(own, torch.tensor([[*prompt, *ours[:first]]]), [len(prompt)])[0, -1]
        gap = float((scores[theirs[first]] - scores[ours[first]]).abs() / scores.abs().max())
        if gap > allowed:
            raise NotItsOwn(f"token {first} after a prompt of {len(prompt)} is not generate's")


def _generated(own: PreTrainedModel, prompt: tuple[int, ...]) -> list[int]:
    given = torch.tensor([prompt])
    whole = own.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        forced_eos_token_id=None,
        forced_bos_token_id=None,
        pad_token_id=0,
    )
    return [int(token) for token in whole[0, len(prompt) :]]


def _texts() -> Tensor:
    """Two texts of ``LENGTH`` random tokens, int64."""
    return torch.randint(4, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(5))


def _commit(target: ArenaModel, arena: Arena, rows: slice, kept: Sequence[int], width: int) -> None:
    path = torch.arange(width).expand(len(kept), width)
    counts = torch.tensor([one - 1 for one in kept])
    arena.commit(Verdict(path, counts, torch.zeros_like(counts)), rows, target.ops, False)


def _equal(got: Tensor, expected: Tensor, where: str, allowed: float) -> None:
    if not _share(got, expected) <= allowed:
        raise NotItsOwn(f"a logit is not its own: {where}")


def _share(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


def _in_short(error: Any) -> str:
    text = " ".join(str(error).split())  # the first line of some says nothing
    return f"{type(error).__name__}: {text[:160].rstrip()}" if text else type(error).__name__
