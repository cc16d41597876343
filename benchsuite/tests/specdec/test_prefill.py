"""Prompts read in several chunks: the target's states and logits, and what drafts keep of them, are those of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import Make, saved_head, slow_after
from specdec import Draft, Engine, Request, SamplingParams, Window, model
from specdec.arena import Arena
from specdec.model import ArenaModel
from specdec_plugins import entries

CHUNK = 8
"""A chunk as these tests make it, so that prompts of several are short; the last token of a prompt is in none."""

LENGTHS = (1, 2, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK, 2 * CHUNK + 1, 2 * CHUNK + 2, 5 * CHUNK + 2)
"""Prompts of no chunk, of one token, of a chunk less one, whole, and one more; the same of two; past a ring's end."""

CLOSE = 2e-4
"""Largest difference of states and logits, which reach 30: chunks of another width add in another order."""


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of ``CHUNK`` tokens."""
    monkeypatch.setattr(model, "PREFILL_CHUNK", CHUNK)


def prompt_text(length: int, seed: int = 0) -> tuple[int, ...]:
    """A prompt of so many random tokens."""
    return tuple(torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def read_in_chunks(target: ArenaModel, prompt: tuple[int, ...], max_length: int) -> tuple[list[int], Tensor, Tensor]:
    """The starts of the chunks, the states of all tokens and the logits after the last one, from the second row."""
    arena = target.arena(2, max_length, 1)
    starts, tokens, hidden = list[int](), list[int](), list[Tensor]()
    for start, chunk, states in target.prefill(arena, 1, prompt):
        starts.append(start)
        tokens += chunk[0].tolist()
        hidden.append(states[0])
    assert tuple(tokens) == prompt[:-1]
    assert arena.committed.tolist() == [0, len(prompt) - 1]
    last = torch.tensor([[prompt[-1]]])
    window = Window(last, torch.full_like(last, -1), torch.ones(1, dtype=torch.int64))
    logits, state = target.forward(arena, window, slice(1, 2), len(prompt) - 1)
    return starts, torch.cat([*hidden, state[0]]), logits[0, 0]


def compared_drafts(target: ArenaModel, lengths: tuple[int, ...], max_length: int, chunk: int) -> None:
    """Assert that what a prompt of each length leaves is what the unmodified model computes of it whole."""
    whole = target.twin()
    for length in lengths:
        prompt = prompt_text(length, seed=length)
        starts, states, logits = read_in_chunks(target, prompt, max_length)
        assert starts == list(range(0, length - 1, chunk))
        expected = whole(torch.tensor([prompt]), output_hidden_states=True, use_cache=False)
        assert (states - expected.hidden_states[-1][0]).abs().max() < CLOSE, f"states of {length} tokens"
        assert (logits - expected.logits[0, -1]).abs().max() < CLOSE, f"logits after {length} tokens"


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("family", slow_after(3, families.CONFIGS))
@torch.inference_mode()
def test_a_prompt_of_any_number_of_chunks_leaves_what_the_unmodified_model_computes(family: str) -> None:
    target = ArenaModel(families.build_model(family), registry().backend())
    compared_drafts(target, LENGTHS, max_length=64, chunk=CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(1, ["llama", "gemma3", "mistral", "gpt2"]))
def test_a_prompt_of_several_real_chunks_is_continued_as_the_unmodified_model_does(family: str, assemble: Make) -> None:
    """Full and sliding layers, absolute and rotary positions; prompts of a chunk and one token up to 500 tokens."""
    build = assemble(family, max_rows=2, max_length=512)
    chunk = model.PREFILL_CHUNK
    lengths = (chunk + 1, chunk + 2, 500)
    with torch.inference_mode():
        compared_drafts(build.target, lengths, max_length=512, chunk=chunk)
    work = [Request(length, prompt_text(length, length), SamplingParams(max_new_tokens=6)) for length in lengths]
    whole = build.target.twin()
    for done in build.engine("ngram(n_min=1)", k=3).run(work):
        tokens = torch.tensor([(*done.request.prompt, *done.tokens)])
        with torch.inference_mode():
            logits = whole(tokens, use_cache=False).logits[0, len(done.request.prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
        assert bool((chosen > logits.max(dim=1).values - CLOSE).all())


DRAFTS = {
    "eagle_lite": "eagle(head=lite)",
    "eagle": "eagle(head={eagle!r})",
    "eagle tree": "eagle(head={eagle!r}, beam=2, depth=2)",
    "eagle leaves": "eagle(head={eagle!r}, leaves=2)",
    "medusa": "medusa(head_init=tie)",
    "trained medusa": "medusa(num_heads=2, head_init={medusa!r})",
    "hybrid": "hybrid(sources='ngram(n_min=1), eagle(head={eagle})')",
    "oracle": "oracle(0.8, cost='eagle(head={eagle})')",
    "draft_model": "draft_model",
    "tree": "tree(beam=2, depth=2)",
}
"""Drafts that read hidden states, and those that read a prompt with a model of their own."""


def kept_state(part: object, rows: int) -> list[Tensor]:
    """What a draft, or one that it is made of, keeps of its rows in tensors: all of them, and cells in use."""
    found = []
    for value in vars(part).values():
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:1] == (rows,):
            found.append(value.clone())
        elif isinstance(value, Arena):
            used = value.committed.tolist()
            found.append(value.committed.clone())
            found += [
                cells[row, :, : used[row]].clone() for cells in (*value.keys, *value.values) for row in range(rows)
            ]
        elif isinstance(value, Draft | list):
            for inner in value if isinstance(value, list) else [value]:
                found += kept_state(inner, rows) if isinstance(inner, Draft) else []
    return found


def prefilled(engine: Engine, pair: list[Request]) -> list[Tensor]:
    """What the draft keeps after two prompts were read into two rows."""
    engine.submit(pair)
    assert engine.draft
    found = kept_state(engine.draft, 2)
    engine.cancel([request.id for request in pair])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_after(1, DRAFTS))
def test_what_a_draft_keeps_of_a_prompt_does_not_depend_on_its_chunks_or_on_who_was_there_before(
    name: str, assemble: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts beside a chunk's length: every state and cell is that of one chunk in a new engine, and so is the output.

    The longest come first, so that a prompt of one token, which no chunk reads, finds what others have left.
    """
    build = assemble("smollm2", max_rows=2, max_length=256)
    heads = {kind: saved_head(kind, build, tmp_path) for kind in ("eagle", "medusa") if f"{{{kind}" in DRAFTS[name]}
    draft, params = DRAFTS[name].format(**heads), SamplingParams(max_new_tokens=5)
    work = [Request(i, prompt_text(length, length), params) for i, length in enumerate((200, *sorted(LENGTHS)[::-1]))]
    pairs = [work[first : first + 2] for first in range(0, len(work), 2)]
    whole = [prefilled(build.engine(draft, k=3), pair) for pair in pairs]
    assert all(whole), "the draft keeps nothing: the case is not covered"
    for module in (model, entries):
        monkeypatch.setattr(module, "PREFILL_CHUNK", CHUNK)
    engine = build.engine(draft, k=3)
    outputs = [done.tokens for done in engine.run([replace(request, id=100 + request.id) for request in work])]
    for pair, expected in zip(pairs, whole, strict=True):
        for one, other in zip(expected, prefilled(engine, pair), strict=True):
            torch.testing.assert_close(other, one, rtol=0, atol=CLOSE)
    monkeypatch.undo()
    assert outputs == [done.tokens for done in build.engine(None, max_rows=1).run(work)]


def test_every_draft_that_reads_hidden_states_is_tried_above(assemble: Make) -> None:
    build = assemble("smollm2", max_rows=2, max_length=64)
    elsewhere = (
        *("custom_class", "arctic_suffix", "flashspec_drafter", "rest"),  # in packages, which get no hidden states
        *("dflash", "dspark", "eagle3", "mtp", "peagle"),  # of published heads, which have recordings
    )
    built = {name: build.engine(name, k=2).draft for name in registry().names("draft") if name not in elsewhere}
    assert {name for name, draft in built.items() if draft and draft.needs_hidden} == {
        *("eagle", "eagle_lite", "medusa", "medusa_lite")
    }
