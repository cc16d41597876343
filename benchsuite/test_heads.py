"""Heads: what was trained is what drafts, files belong to one target, and training can stop and go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchsuite.conftest import Make
from benchsuite.tiny import registry, requests
from specdec import Context, Engine, SamplingParams, SpecdecError, Verdict, Window, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.heads import __main__ as command
from specdec_plugins.heads import corpus, files, start, training
from specdec_plugins.heads.corpus import Corpus
from specdec_plugins.heads.eagle_head import EagleHead
from specdec_plugins.heads.medusa_heads import MedusaHeads

OPS = Reference()
CPU = torch.device("cpu")
IDS = torch.arange(0, 258, 2)
TEMPLATE = "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}\n{% endfor %}"


def noisy(head: training.Head) -> training.Head:
    """Every weight moved a little, so that nothing is right by being 0 or 1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return head


def saved(kind: str, build: Assembly, folder: Path) -> str:
    """A head of a tiny target in a file, untrained but at work; its vocabulary is every other token."""
    model, text = build.target.twin(), torch.arange(40).view(2, 20)
    head: training.Head = start.eagle(model, text, 0) if kind == "eagle" else start.medusa(model, text, 0, 3, 32)
    noisy(head)
    path = folder / f"{kind}.safetensors"
    files.save(path, head, IDS, build.target.model)
    return str(path)


def windows(engine: Engine, asked: list[int], temperature: float = 0.0) -> list[tuple[Tensor, Window]]:
    """(tokens of the row so far, its window) for every row of every step that proposed; K follows ``asked``."""
    found: list[tuple[Tensor, Window]] = []

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in range(context.rows):
            width = int(window.width[row])
            if width > 1:
                whole = context.tokens[row, : context.length_host[row]].clone()
                tokens, parents = window.tokens[row : row + 1, :width], window.parents[row : row + 1, :width]
                found.append((whole, Window(tokens, parents, window.width[row : row + 1])))

    ks = iter(asked * 60)
    object.__setattr__(engine.controller, "next_k", lambda stats: next(ks))
    engine.trace = keep
    # `tree_rejection` is not coupled: nothing but the head decides what is proposed.
    engine.run(requests(SamplingParams(temperature=temperature, max_new_tokens=20), count=6))
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"
    return found


class Teacher:
    """The head as training sees it, over whole texts without any arena."""

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
        """Logits [D] of the proposal after ``path`` of proposals, themselves after a whole text."""
        tokens = torch.cat([text, torch.tensor(path, dtype=torch.int64)])[None]
        hidden = self.model(text[None, :-1], output_hidden_states=True, use_cache=False).hidden_states[-1]
        if isinstance(self.head, MedusaHeads):
            state = self.head(OPS, self.embed(text[-1:]), hidden[:, -1])[0, len(path)]
        else:
            hidden = F.pad(hidden, (0, 0, 0, len(path)))  # states of proposals are never read
            states = training.unrolled_eagle(self.head, OPS, self.embed(tokens[:, 1:]), hidden, len(path) + 1)
            state = list(states)[-1][0, -1]
        return F.linear(state, self.rows)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_head_drafts_as_it_was_trained(kind: str, assemble: Make, tmp_path: Path) -> None:
    """Every proposal of a ragged batch is the best token of the head unrolled over the whole text."""
    build = assemble("llama", max_rows=3)
    path = saved(kind, build, tmp_path)
    teacher = Teacher(build, path)
    option = "head" if kind == "eagle" else "num_heads=3, head_init"
    engine = build.engine(f"{kind}({option}={path!r})", k=3)
    found = windows(engine, [3, 3, 0, 1, 0, 0, 3, 2])
    assert len(found) > 60
    for text, window in found:
        proposals = window.tokens[0, 1:].tolist()
        for depth, token in enumerate(proposals):
            logits = teacher.logits(text, proposals[:depth])
            best = logits.max()
            assert logits[(token == IDS).nonzero()[0, 0]] > best - 2e-2, (depth, token, IDS[logits.argmax()])


def test_a_head_drafts_as_it_was_trained_after_steps_that_were_not_its_own(assemble: Make, tmp_path: Path) -> None:
    """In a hybrid some windows are n-gram's: what the head proposes afterwards must not show it."""
    build = assemble("llama", max_rows=3)
    path = saved("eagle", build, tmp_path)
    teacher = Teacher(build, path)
    engine = build.engine(f"hybrid(sources='ngram(n_min=1), eagle(head={path})', model_k=2)", k=6)
    lookup = Ngram(cast(Any, None), n_min=1)
    looked = 0
    for text, window in windows(engine, [6, 6, 0, 6]):
        proposals = window.tokens[0, 1:].tolist()
        if lookup.continuations(0, text.numpy(), 6):
            looked += 1
            continue
        for depth, token in enumerate(proposals):
            logits = teacher.logits(text, proposals[:depth])
            assert logits[(token == IDS).nonzero()[0, 0]] > logits.max() - 2e-2
    assert looked > 20


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_heads_tree_holds_likely_children_of_every_node_it_expands(kind: str, assemble: Make, tmp_path: Path) -> None:
    build = assemble("llama", max_rows=3)
    path = saved(kind, build, tmp_path)
    teacher = Teacher(build, path)
    option = "depth=3, head" if kind == "eagle" else "num_heads=3, head_init"
    engine = build.engine(f"{kind}(beam=3, {option}={path!r})", "tree_rejection", k=9)
    found = windows(engine, [9, 0, 9, 9])
    depths = set()
    for text, window in found[:40]:
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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("policy", ["match", "rejection", "block"])
def test_heads_change_no_output_that_is_promised(
    policy: str, temperature: float, assemble: Make, tmp_path: Path
) -> None:
    build = assemble("llama", max_rows=3)
    params = SamplingParams(temperature=temperature, seed=4, max_new_tokens=20)
    for text in (
        f"eagle(head={saved('eagle', build, tmp_path)!r})",
        f"medusa(3, {saved('medusa', build, tmp_path)!r})",
    ):
        engine = build.engine(text, policy, k=4)
        done = engine.run(requests(params, count=5))
        if engine.policy.contract(params) == "exact":
            assert [c.tokens for c in done] == [build.plain(r) for r in requests(params, count=5)]
        assert engine.stats.counts["num_draft_tokens"] > 100


@pytest.mark.parametrize("more", ["", ", beam=3"], ids=["chain", "tree"])
def test_max_draft_limits_the_proposals_of_a_step(more: str, assemble: Make, tmp_path: Path) -> None:
    build = assemble("llama")
    engine = build.engine(f"eagle(head={saved('eagle', build, tmp_path)!r}, max_draft=2{more})", k=6)
    widths: set[int] = set()
    engine.trace = lambda context, window, logits, verdict: widths.add(int(window.width.max()))
    engine.run(requests(count=2))
    assert max(widths) == 3


def test_a_head_of_another_target_is_refused(assemble: Make, tmp_path: Path) -> None:
    path = saved("eagle", assemble("llama"), tmp_path)
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


@pytest.fixture
def text(assemble: Make) -> tuple[Assembly, Corpus]:
    """A tiny target and a text that can be learnt: eight tokens in a ring, with the target's states of it."""
    build = assemble("llama")
    tokens = (torch.arange(24)[None] + torch.arange(40)[:, None]) % 8
    with torch.no_grad():
        hidden = build.target.twin()(tokens, output_hidden_states=True).hidden_states[-1]
    return build, Corpus(tokens, hidden.to(torch.bfloat16), torch.ones_like(tokens, dtype=torch.bool))


def run(
    kind: str, built: tuple[Assembly, Corpus], folder: Path, epochs: int
) -> tuple[training.Head, list[dict[str, object]]]:
    build, text = built
    model = build.target.twin()
    head: training.Head = (
        start.eagle(model, text.tokens[:2], 0) if kind == "eagle" else start.medusa(model, text.tokens[:2], 0, 3, 32)
    )
    reader = training.Reader(model.get_output_embeddings().weight, torch.arange(258), torch.float32)
    embed = model.get_input_embeddings().weight
    log = training.train(
        head, OPS, reader, embed, text, folder, epochs=epochs, steps=2, batch=8, rate=0.01, seed=0, patience=9
    )
    return head, log


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_training_learns_and_is_the_same_after_an_interruption(
    kind: str, text: tuple[Assembly, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, log = run(kind, text, tmp_path / "whole", 4)
    losses = [float(line["loss"]) for line in log]  # type: ignore[arg-type]
    assert losses[-1] < losses[0] - 0.5, losses
    real, calls = training.judge, []

    def stops(*given: object, **more: object) -> dict[str, object]:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "judge", stops)
    with pytest.raises(KeyboardInterrupt):
        run(kind, text, tmp_path / "parts", 4)
    monkeypatch.setattr(training, "judge", real)
    again, resumed = run(kind, text, tmp_path / "parts", 4)
    assert [line["acceptance_length"] for line in resumed] == [line["acceptance_length"] for line in log]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_only_tokens_of_answers_teach(kind: str, text: tuple[Assembly, Corpus]) -> None:
    build, corpus = text
    model = build.target.twin()
    first = corpus.rows(slice(4))
    head: training.Head = (
        start.eagle(model, first.tokens, 0) if kind == "eagle" else start.medusa(model, first.tokens, 0, 3, 32)
    )
    reader = training.Reader(model.get_output_embeddings().weight, torch.arange(258), torch.float32)
    embedded = model.get_input_embeddings()(first.tokens[:, 1:])
    other = first.hidden.float().clone()
    other[:, -1] = other[:, -1].flip(-1)  # what the last token would teach, and nothing else

    def loss(hidden: Tensor, answer: Tensor) -> float:
        return float(training.loss_of(head, OPS, reader, embedded, hidden, answer, 2).detach())

    outside = first.answer.clone()
    outside[:, -1] = False
    assert loss(first.hidden.float(), outside) == loss(other, outside)
    assert loss(first.hidden.float(), first.answer) != loss(other, first.answer)


def test_the_corpus_alternates_turns_and_resumes(tmp_path: Path) -> None:
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    loaded.tokenizer.chat_template = TEMPLATE
    target = ArenaModel(loaded.model, registry().backend("reference"))
    corpus.write(tmp_path, target, loaded.tokenizer, shards=1, rows=2, length=90)
    first = corpus.Corpus.read(tmp_path)
    corpus.write(tmp_path, target, loaded.tokenizer, shards=2, rows=2, length=90)
    both = corpus.Corpus.read(tmp_path)
    assert both.tokens.shape == (4, 90)
    assert torch.equal(both.tokens[:2], first.tokens)
    assert not torch.equal(both.tokens[2:], first.tokens)
    opening, answer = loaded.tokenizer.encode("<u>"), loaded.tokenizer.encode("\n<a>")
    for tokens in both.tokens.tolist():
        assert tokens[: len(opening)] == opening
        at = [i for i in range(90) if tokens[i : i + len(answer)] == answer]
        assert at
        assert at[0] <= len(opening) + corpus.LONGEST_QUESTION + 40  # words it may begin with
    for tokens, marks in zip(both.tokens.tolist(), both.answer.tolist(), strict=True):
        begin = next(i for i in range(90) if tokens[i : i + len(answer)] == answer) + len(answer)
        end = next((i for i in range(begin, 90) if tokens[i] == answer[0]), 90)
        assert not any(marks[:begin])
        assert all(marks[begin : min(end, begin + corpus.LONGEST_ANSWER)])
    hidden = target.twin()(both.tokens, output_hidden_states=True).hidden_states[-1]
    assert (hidden.bfloat16() - both.hidden).abs().max() < 0.1
    kept, held_out = both.split(0.25)
    assert (len(kept.tokens), len(held_out.tokens)) == (3, 1)


def test_the_commands_write_train_and_say_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = catalog.load

    def chatting(*given: object) -> catalog.Loaded:
        loaded = load(*given)  # type: ignore[arg-type]
        loaded.tokenizer.chat_template = TEMPLATE
        return loaded

    monkeypatch.setattr(catalog, "load", chatting)
    command.main(
        ["write", "--target", "tiny", "--corpus", str(tmp_path / "c"), "--shards", "1", "--rows", "8", "--length", "40"]
    )
    out = tmp_path / "head.safetensors"
    command.main(
        ["train", "eagle", "--target", "tiny", "--corpus", str(tmp_path / "c"), "--run", str(tmp_path / "r"),
         "--out", str(out), "--epochs", "1", "--batch", "4", "--vocabulary", "64"]
    )  # fmt: skip
    made = json.loads(out.with_suffix(".json").read_text())
    assert made["conversations"] == 8
    assert len(made["epochs"]) == 1
    target = ArenaModel(load("tiny", CPU, torch.float32).model, registry().backend("reference"))
    head, ids = files.load_eagle(str(out), target)
    assert len(ids) <= 64
    assert head.shape.hidden == 64
    again = tmp_path / "again.safetensors"
    command.main(
        ["train", "eagle", "--target", "tiny", "--corpus", str(tmp_path / "c"), "--run", str(tmp_path / "q"),
         "--out", str(again), "--epochs", "1", "--vocabulary", "64", "--begin", str(out), "--rate", "0"]
    )  # fmt: skip
    begun, _ = files.load_eagle(str(again), target)
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), begun.parameters(), strict=True))
