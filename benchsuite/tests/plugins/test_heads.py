"""Heads: they draft as they were trained, their files belong to one target, and training can resume."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchsuite.conformance.models.tiny import ask, requests
from benchsuite.tests.proposed_windows import proposed_windows
from benchsuite.tests.rig import HEAD_IDS as IDS
from benchsuite.tests.rig import Make, saved_head, slow_after
from specdec import Context, Engine, SamplingParams, SpecdecError, Verdict, Window
from specdec.assembly import Assembly
from specdec_kernels.reference import Reference
from specdec_plugins import entries
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.heads import files, training
from specdec_plugins.heads.eagle_head import EagleHead
from specdec_plugins.heads.medusa_heads import MedusaHeads

OPS = Reference()


def _windows(engine: Engine, asked: list[int], temperature: float = 0.0) -> list[tuple[Tensor, Window]]:
    """(tokens of the row so far, its window) for every row of every step with proposals; K follows ``asked``."""
    # `tree_rejection` is not coupled: only the head decides the proposals.
    found = proposed_windows(engine, asked, SamplingParams(temperature=temperature, max_new_tokens=20))
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("text", ["eagle(head={eagle!r})", "eagle(head={eagle!r}, beam=2, depth=3)"])
def test_entries_of_steps_without_proposals_are_the_same_computed_together_or_one_by_one(
    text: str, assemble: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin and end at different steps, so that rows move while entries wait."""
    build = assemble(max_rows=3)
    head, found = saved_head("eagle", build, tmp_path), list[tuple[list[Any], int]]()
    for most in (entries.MOST_WAITING, 1):
        monkeypatch.setattr(entries, "MOST_WAITING", most)
        engine, windows = build.engine(text.format(eagle=head), k=3), list[Any]()

        def proposed(
            context: Context, window: Window, logits: Tensor, verdict: Verdict, windows: Any = windows
        ) -> None:
            windows.append((window.tokens.tolist(), window.width.tolist()))

        engine.trace = proposed
        ask(engine, cycle([3, 0, 0, 0, 2, 0]))
        ragged = [replace(one, params=replace(one.params, max_new_tokens=8 + 5 * one.id)) for one in requests(count=5)]
        engine.run(ragged)
        found.append((windows, engine.stats.counts["draft_forwards"]))
    (together, few), (one_by_one, many) = found
    assert together == one_by_one
    assert few < many


class Teacher:
    """The head as training runs it: over whole texts, without an arena."""

    def __init__(self, build: Assembly, path: str) -> None:
        self.model = build.target.twin()
        self.embed = self.model.get_input_embeddings()
        rows = self.model.get_output_embeddings().weight[IDS].to(torch.bfloat16).float()
        self.rows = rows
        self.head: EagleHead | MedusaHeads
        if path.endswith("eagle.safetensors"):
            self.head, _ = files.load_eagle(path, build.target)
        else:
            self.head, _ = files.load_medusa(path, build.target)

    @torch.no_grad()
    def logits(self, text: Tensor, path: list[int]) -> Tensor:
        """Return logits [D] of the proposal that follows a whole text and the proposals ``path``."""
        tokens = torch.cat([text, torch.tensor(path, dtype=torch.int64)])[None]
        hidden = self.model(text[None, :-1], output_hidden_states=True, use_cache=False).hidden_states[-1]
        if isinstance(self.head, MedusaHeads):
            state = self.head(OPS, self.embed(text[-1:]), hidden[:, -1])[0, len(path)]
        else:
            hidden = F.pad(hidden, (0, 0, 0, len(path)))  # states of proposals are never read
            states = training.unrolled_eagle(self.head, OPS, self.embed(tokens[:, 1:]), hidden, len(path) + 1)
            state = list(states)[-1][0, -1]
        return F.linear(state, self.rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_after(1, ["eagle", "medusa"]))
def test_a_head_drafts_as_it_was_trained(kind: str, assemble: Make, tmp_path: Path) -> None:
    """Every proposal of a ragged batch is the best token of the head unrolled over the whole text."""
    build = assemble("llama", max_rows=3)
    path = saved_head(kind, build, tmp_path)
    teacher = Teacher(build, path)
    option = "head" if kind == "eagle" else "num_heads=3, head_init"
    engine = build.engine(f"{kind}({option}={path!r})", k=3)
    found = _windows(engine, [3, 3, 0, 1, 0, 0, 3, 2])
    assert len(found) > 60
    for text, window in found:
        proposals = window.tokens[0, 1:].tolist()
        for depth, token in enumerate(proposals):
            logits = teacher.logits(text, proposals[:depth])
            best = logits.max()
            assert logits[(token == IDS).nonzero()[0, 0]] > best - 2e-2, (depth, token, IDS[logits.argmax()])


@pytest.mark.slow
def test_a_head_drafts_as_it_was_trained_after_steps_that_were_not_its_own(assemble: Make, tmp_path: Path) -> None:
    """In a hybrid some windows come from n-gram; the head's later proposals must not change."""
    build = assemble("llama", max_rows=3)
    path = saved_head("eagle", build, tmp_path)
    teacher = Teacher(build, path)
    engine = build.engine(f"hybrid(sources='ngram(n_min=1), eagle(head={path})', model_k=2)", k=6)
    lookup = Ngram(cast(Any, None), n_min=1)
    looked = 0
    for text, window in _windows(engine, [6, 6, 0, 6]):
        proposals = window.tokens[0, 1:].tolist()
        if lookup.continuations(0, text.numpy(), 6):
            looked += 1
            continue
        for depth, token in enumerate(proposals):
            logits = teacher.logits(text, proposals[:depth])
            assert logits[(token == IDS).nonzero()[0, 0]] > logits.max() - 2e-2
    assert looked > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_heads_tree_holds_likely_children_of_every_node_it_expands(kind: str, assemble: Make, tmp_path: Path) -> None:
    build = assemble("llama", max_rows=3)
    path = saved_head(kind, build, tmp_path)
    teacher = Teacher(build, path)
    option = "depth=3, head" if kind == "eagle" else "num_heads=3, head_init"
    engine = build.engine(f"{kind}(beam=3, {option}={path!r})", "tree_rejection", k=9)
    found = _windows(engine, [9, 0, 9, 9])
    depths = set()
    for text, window in found[:20]:
        tokens, parents = window.tokens[0].tolist(), window.parents[0].tolist()
        paths: list[list[int]] = [[]]
        for slot in range(1, len(tokens)):
            before = paths[parents[slot]]
            paths.append([*before, tokens[slot]])
            depths.add(len(before) + 1)
            logits = teacher.logits(text, before)
            third = logits.topk(3).values[-1]
            assert logits[(tokens[slot] == IDS).nonzero()[0, 0]] > third - 2e-2
        assert len(set(map(tuple, paths))) == len(paths), "two nodes are the same continuation"
    assert depths == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 1.0]))
@pytest.mark.parametrize("policy", slow_after(1, ["match", "rejection", "block"]))
def test_heads_change_no_output_that_is_promised(
    policy: str, temperature: float, assemble: Make, tmp_path: Path
) -> None:
    build = assemble("llama", max_rows=3)
    params = SamplingParams(temperature=temperature, seed=4, max_new_tokens=20)
    for text in (
        f"eagle(head={saved_head('eagle', build, tmp_path)!r})",
        f"medusa(3, {saved_head('medusa', build, tmp_path)!r})",
    ):
        engine = build.engine(text, policy, k=4)
        done = engine.run(requests(params, count=5))
        if engine.policy.contract(params) == "exact":
            assert [c.tokens for c in done] == [build.plain(r) for r in requests(params, count=5)]
        assert engine.stats.counts["num_draft_tokens"] > 100


@pytest.mark.parametrize("more", slow_after(1, ["", ", beam=3"]), ids=["chain", "tree"])
def test_max_draft_limits_the_proposals_of_a_step(more: str, assemble: Make, tmp_path: Path) -> None:
    build = assemble("llama")
    engine = build.engine(f"eagle(head={saved_head('eagle', build, tmp_path)!r}, max_draft=2{more})", k=6)
    widths: set[int] = set()
    engine.trace = lambda context, window, logits, verdict: widths.add(int(window.width.max()))
    engine.run(requests(count=2))
    assert max(widths) == 3


@pytest.mark.slow
def test_a_head_of_another_target_is_refused(assemble: Make, tmp_path: Path) -> None:
    path = saved_head("eagle", assemble("llama"), tmp_path)
    with pytest.raises(SpecdecError, match="was trained for another target"):
        assemble("llama", seed=1).engine(f"eagle(head={path!r})", k=2)
    with pytest.raises(SpecdecError, match=r"holds 'eagle'; expected a head of kind 'medusa'"):
        assemble("llama").engine(f"medusa(head_init={path!r})", k=2)
    with pytest.raises(SpecdecError, match="no trained eagle head for this target is shipped"):
        assemble("llama").engine("eagle(head=trained)", k=2)
    with pytest.raises(SpecdecError, match=r"cannot be read: .*name a \.safetensors file"):
        assemble("llama").engine("eagle(head=nowhere.safetensors)", k=2)
    with pytest.raises(SpecdecError, match="unknown head_init 'tied'; did you mean 'tie'"):
        assemble("llama").engine("medusa(head_init=tied)", k=2)
