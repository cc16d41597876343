"""Training of heads: which tokens teach, that training can resume, and the text that it uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import Make
from specdec import catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_kernels.reference import Reference
from specdec_plugins.heads import __main__ as command
from specdec_plugins.heads import corpus, files, start, training
from specdec_plugins.heads.corpus import Corpus

OPS = Reference()
CPU = torch.device("cpu")
TEMPLATE = "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}\n{% endfor %}"


@pytest.fixture
def text(assemble: Make) -> tuple[Assembly, Corpus]:
    """A tiny target and a text that can be learnt: eight tokens in a cycle, with the target's hidden states."""
    build = assemble("llama")
    tokens = (torch.arange(24)[None] + torch.arange(40)[:, None]) % 8
    with torch.no_grad():
        hidden = build.target.twin()(tokens, output_hidden_states=True).hidden_states[-1]
    return build, Corpus(tokens, hidden.to(torch.bfloat16), torch.ones_like(tokens, dtype=torch.bool))


def _run(
    kind: str, built: tuple[Assembly, Corpus], folder: Path, epochs: int
) -> tuple[training.Head, list[dict[str, object]]]:
    build, text = built
    model = build.target.twin()
    head: training.Head = (
        start.eagle_start(model, text.tokens[:2], 0)
        if kind == "eagle"
        else start.medusa(model, text.tokens[:2], 0, 3, 32)
    )
    reader = training.Reader(model.get_output_embeddings().weight, torch.arange(258), torch.float32)
    embed = model.get_input_embeddings().weight
    log = training.train(
        head, OPS, reader, embed, text, folder, epochs=epochs, steps=2, batch=8, rate=0.01, seed=0, patience=9
    )
    return head, log


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_training_learns_and_is_the_same_after_an_interruption(
    kind: str, text: tuple[Assembly, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, log = _run(kind, text, tmp_path / "whole", 4)
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
        _run(kind, text, tmp_path / "parts", 4)
    monkeypatch.setattr(training, "judge", real)
    again, resumed = _run(kind, text, tmp_path / "parts", 4)
    assert [line["acceptance_length"] for line in resumed] == [line["acceptance_length"] for line in log]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_only_tokens_of_answers_teach(kind: str, text: tuple[Assembly, Corpus]) -> None:
    build, corpus = text
    model = build.target.twin()
    first = corpus.rows(slice(4))
    head: training.Head = (
        start.eagle_start(model, first.tokens, 0) if kind == "eagle" else start.medusa(model, first.tokens, 0, 3, 32)
    )
    reader = training.Reader(model.get_output_embeddings().weight, torch.arange(258), torch.float32)
    embedded = model.get_input_embeddings()(first.tokens[:, 1:])
    other = first.hidden.float().clone()
    other[:, -1] = other[:, -1].flip(-1)  # changes only what the last token would teach

    def loss(hidden: Tensor, answer: Tensor) -> float:
        return float(training.loss_of(head, OPS, reader, embedded, hidden, answer, 2).detach())

    outside = first.answer.clone()
    outside[:, -1] = False
    assert loss(first.hidden.float(), outside) == loss(other, outside)
    assert loss(first.hidden.float(), first.answer) != loss(other, first.answer)


@pytest.mark.slow
def test_the_corpus_alternates_turns_and_resumes(tmp_path: Path) -> None:
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    loaded.tokenizer.chat_template = TEMPLATE
    target = ArenaModel(loaded.model, registry().backend("reference"))
    corpus.write_corpus(tmp_path, target, loaded.tokenizer, shards=1, rows=2, length=90)
    first = corpus.Corpus.read(tmp_path)
    corpus.write_corpus(tmp_path, target, loaded.tokenizer, shards=2, rows=2, length=90)
    both = corpus.Corpus.read(tmp_path)
    assert both.tokens.shape == (4, 90)
    assert torch.equal(both.tokens[:2], first.tokens)
    assert not torch.equal(both.tokens[2:], first.tokens)
    opening, answer = loaded.tokenizer.encode("<u>"), loaded.tokenizer.encode("\n<a>")
    for tokens in both.tokens.tolist():
        assert tokens[: len(opening)] == opening
        at = [i for i in range(90) if tokens[i : i + len(answer)] == answer]
        assert at
        assert at[0] <= len(opening) + corpus.LONGEST_QUESTION + 40  # words that a question may begin with
    for tokens, marks in zip(both.tokens.tolist(), both.answer.tolist(), strict=True):
        begin = next(i for i in range(90) if tokens[i : i + len(answer)] == answer) + len(answer)
        end = next((i for i in range(begin, 90) if tokens[i] == answer[0]), 90)
        assert not any(marks[:begin])
        assert all(marks[begin : min(end, begin + corpus.LONGEST_ANSWER)])
    hidden = target.twin()(both.tokens, output_hidden_states=True).hidden_states[-1]
    assert (hidden.bfloat16() - both.hidden).abs().max() < 0.1
    kept, held_out = both.split(0.25)
    assert (len(kept.tokens), len(held_out.tokens)) == (3, 1)


@pytest.mark.slow
def test_the_commands_write_train_and_say_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = catalog.load

    def chatting(*given: object) -> catalog.Loaded:
        loaded = load(*given)  # type: ignore[arg-type]
        loaded.tokenizer.chat_template = TEMPLATE
        return loaded

    monkeypatch.setattr(catalog, "load", chatting)
    monkeypatch.chdir(tmp_path)
    command.heads_main(["write", "--target", "tiny", "--corpus", "c", "--shards", "1", "--rows", "8", "--length", "40"])
    out, short = tmp_path / "head.safetensors", "train eagle --target tiny --corpus c --epochs 1 --vocabulary 64"
    command.heads_main([*short.split(), "--run", "r", "--out", str(out), "--batch", "4"])
    made = json.loads(out.with_suffix(".json").read_text())
    assert made["conversations"] == 8
    assert len(made["epochs"]) == 1
    target = ArenaModel(load("tiny", CPU, torch.float32).model, registry().backend("reference"))
    head, ids = files.load_eagle(str(out), target)
    assert len(ids) <= 64
    assert head.shape.hidden == 64
    again = tmp_path / "again.safetensors"
    command.heads_main([*short.split(), "--run", "q", "--out", str(again), "--begin", str(out), "--rate", "0"])
    begun, _ = files.load_eagle(str(again), target)
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), begun.parameters(), strict=True))
