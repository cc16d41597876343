"""Training of heads: which tokens teach, that training can resume, and the text that it uses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import Make
from specdec import SpecdecError, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_kernels.reference import Reference
from specdec_plugins.heads import __main__ as command
from specdec_plugins.heads import corpus, files, start, training
from specdec_plugins.heads import script as scripts
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


def _with_layers(built: tuple[Assembly, Corpus]) -> Corpus:
    """The text with the outputs of both layers beside the final states."""
    build, text = built
    with torch.no_grad():
        states = build.target.twin()(text.tokens, output_hidden_states=True).hidden_states
    seen: list[Tensor] = []
    model: Any = build.target.twin()
    handle = model.model.layers[-1].register_forward_hook(lambda module, given, out: seen.append(out))
    with torch.no_grad():
        model(text.tokens)
    handle.remove()
    last = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    return replace(text, hidden=torch.stack([states[1], last, states[-1]], dim=2).bfloat16(), layers=(0, 1))


def _head(kind: str, model: Any, text: Corpus) -> training.Head:
    if kind == "eagle3":
        return start.eagle3_start(model, 2, torch.arange(258), 0)
    if kind == "dflash":
        return start.dflash_start(model, 2, 4, 1, mask=250)
    tokens = text.tokens[:2]
    if kind == "mtp":
        return start.mtp_start(model, tokens, 0)
    return start.eagle_start(model, tokens, 0) if kind == "eagle" else start.medusa(model, tokens, 0, 3, 32)


def _run(
    kind: str, built: tuple[Assembly, Corpus], folder: Path, epochs: int
) -> tuple[training.Head, list[dict[str, object]]]:
    build, text = built
    model = build.target.twin()
    if kind in ("eagle3", "dflash"):
        text = _with_layers(built)
    head = _head(kind, model, text)
    reader = training.Reader(model.get_output_embeddings().weight, torch.arange(258), torch.float32)
    embed = model.get_input_embeddings().weight
    numbers = {"epochs": epochs, "steps": 2, "batch": 8, "rate": 0.01, "seed": 0, "beside": 0.2, "patience": 9}
    return head, training.train(head, OPS, reader, embed, text, folder, **numbers)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "mtp", "dflash"])
def test_training_learns_and_is_the_same_after_an_interruption(
    kind: str, text: tuple[Assembly, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, log = _run(kind, text, tmp_path / "whole", 4)
    losses = [float(line["loss"]) for line in log]  # type: ignore[arg-type]
    assert losses[-1] < losses[0] - 0.5, losses
    real, calls = training.loss_of, []
    monkeypatch.setattr(training, "SAVED", 2)

    def stops(*given: object, **more: object) -> Tensor:
        calls.append(1)
        if len(calls) == 14:  # in an epoch of five batches, one after a checkpoint
            raise KeyboardInterrupt
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "loss_of", stops)
    with pytest.raises(KeyboardInterrupt):
        _run(kind, text, tmp_path / "parts", 4)
    calls.clear()

    def counts(*given: object) -> Tensor:
        calls.append(1)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "loss_of", counts)
    again, resumed = _run(kind, text, tmp_path / "parts", 4)
    assert len(calls) == 20 - 12, "what was saved is not computed again"
    assert [(line["acceptance_length"], line["loss"]) for line in resumed] == [
        (line["acceptance_length"], line["loss"]) for line in log
    ]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "mtp", "dflash"])
def test_only_tokens_of_answers_teach(kind: str, text: tuple[Assembly, Corpus]) -> None:
    build, corpus = text
    model = build.target.twin()
    first = (_with_layers(text) if kind in ("eagle3", "dflash") else corpus).rows(slice(4))
    head = _head(kind, model, first)
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


@pytest.mark.parametrize("mixed", ["token", "state", "both"])
@torch.no_grad()
def test_an_eagle3_head_begins_with_the_logits_of_the_eagle_head_that_it_is_begun_with(
    mixed: str, text: tuple[Assembly, Corpus]
) -> None:
    """Exact where states have one size for all tokens, and so have mixtures; of both, then, without attention."""
    model, some = text[0].target.twin(), _with_layers(text).rows(slice(3))
    tokens, hidden = some.tokens, some.hidden.float()
    hidden[:, :, -1] = model.base_model.norm(hidden[:, :, -2])  # to more digits than a text keeps
    eagle = start.eagle_start(model, tokens, 1)
    for part in eagle.parameters():
        part.add_(torch.randn(part.shape, generator=torch.Generator().manual_seed(part.numel())), alpha=0.05)
    for gain, value in ((eagle.token_norm, 2.0), (eagle.hidden_norm, 3.0), (eagle.norm, 1.0)):
        gain.fill_(value)
    size = eagle.shape.hidden
    turned = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(3))).Q
    if mixed == "both":
        eagle.out.zero_()
    else:
        eagle.enter.zero_()
        eagle.enter[:, slice(size) if mixed == "token" else slice(size, None)].copy_(turned)
    embedded = model.get_input_embeddings()(tokens[:, 1:])
    reader = training.Reader(model.get_output_embeddings().weight, torch.arange(258), torch.float32)
    head = start.eagle3_of_eagle(eagle, model, 2, reader.ids, embedded, hidden[:, :-1, -1], 0)
    for expected, found in zip(
        training.unrolled(eagle, OPS, embedded, hidden[:, :-1], 4),
        training.unrolled(head, OPS, embedded, hidden[:, :-1], 4),
        strict=True,
    ):
        wanted, got = (reader.read(one, OPS, state) for one, state in ((eagle, expected), (head, found)))
        assert (got - wanted).abs().max() < 2e-3 * wanted.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_head_with_biases_learns_from_states_of_either_dtype(
    dtype: torch.dtype, text: tuple[Assembly, Corpus]
) -> None:
    """Its parameters are float32, and a text's states what the processor multiplies fastest."""
    model, some = text[0].target.twin(), _with_layers(text).rows(slice(2))
    eagle = start.eagle_start(model, some.tokens, 1)
    embedded = model.get_input_embeddings()(some.tokens[:, 1:]).detach()
    reader = training.Reader(model.get_output_embeddings().weight.detach(), torch.arange(258), dtype)
    head = start.eagle3_of_eagle(eagle, model, 2, reader.ids, embedded, some.hidden[:, :-1, -1].float(), 0)
    training.loss_of(head, OPS, reader, embedded.to(dtype), some.hidden.to(dtype), some.answer, 2).backward()
    [layer] = head.stack()
    assert layer.qkv_bias is not None
    for learnt in (layer.qkv, layer.qkv_bias, layer.out_bias, head.fusion):
        assert learnt is not None
        assert learnt.grad is not None
        assert learnt.grad.isfinite().all()
        assert learnt.grad.any()


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(), (0, 1)], ids=["no layers", "two layers"])
def test_the_corpus_alternates_turns_resumes_and_keeps_the_states_that_it_names(
    layers: tuple[int, ...], tmp_path: Path
) -> None:
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    loaded.tokenizer.chat_template = TEMPLATE
    target = ArenaModel(loaded.model, registry().backend("reference"))
    corpus.write_corpus(tmp_path, target, loaded.tokenizer, 1, 2, 240, layers)
    first = corpus.Corpus.read(tmp_path)
    corpus.write_corpus(tmp_path, target, loaded.tokenizer, 2, 2, 240, layers)
    both = corpus.Corpus.read(tmp_path)
    assert both.tokens.shape == (4, 240)
    assert both.layers == layers
    assert torch.equal(both.tokens[:2], first.tokens)
    assert not torch.equal(both.tokens[2:], first.tokens)
    opening, answer = loaded.tokenizer.encode("<u>"), loaded.tokenizer.encode("\n<a>")
    for tokens, marks in zip(both.tokens.tolist(), both.answer.tolist(), strict=True):
        assert tokens[: len(opening)] == opening
        begin = next(i for i in range(240) if tokens[i : i + len(answer)] == answer) + len(answer)
        end = next((i for i in range(begin, 240) if tokens[i] == answer[0]), 240)
        assert not any(marks[:begin])
        assert all(marks[begin : min(end, begin + scripts.LONGEST_ANSWER)])
    states = target.twin()(both.tokens, output_hidden_states=True).hidden_states
    found = both.hidden if layers else both.hidden[:, :, None]
    assert found.shape[2] == len(layers) + 1
    assert (states[-1].bfloat16() - found[:, :, -1]).abs().max() < 0.1
    if layers:
        assert (states[1].bfloat16() - found[:, :, 0]).abs().max() < 0.1
        assert (target.model.base_model.norm(found[:, :, 1].float()) - found[:, :, 2]).abs().max() < 0.1
    kept, held_out = both.split(0.25)
    assert (len(kept.tokens), len(held_out.tokens), held_out.layers) == (3, 1, layers)


def test_shards_with_the_outputs_of_different_layers_are_no_text(tmp_path: Path) -> None:
    shard = {"tokens": torch.zeros(1, 2).int(), "hidden": torch.zeros(1, 2, 3, 4), "answer": torch.zeros(1, 2).bool()}
    for number, layers in enumerate(("2-15", "2-16")):
        save_file(shard, tmp_path / f"shard-{number:04}.safetensors", metadata={"layers": layers})
    with pytest.raises(SpecdecError, match=r"shard-0000.safetensors 2-15, shard-0001.safetensors 2-16"):
        corpus.Corpus.read(tmp_path)
    for text in ("2-", "a", "-1", "2,15"):
        with pytest.raises(SpecdecError, match="expected indices of decoder layers"):
            corpus.layers_named(text)
    assert corpus.layers_named("2-15-28") == (2, 15, 28)


@pytest.mark.slow
def test_the_commands_write_train_and_say_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = catalog.load

    def chatting(*given: object) -> catalog.Loaded:
        loaded = load(*given)  # type: ignore[arg-type]
        loaded.tokenizer.chat_template = TEMPLATE
        return loaded

    monkeypatch.setattr(catalog, "load", chatting)
    monkeypatch.chdir(tmp_path)
    command.heads_main(
        ["write", "--target", "tiny", "--corpus", "c", "--shards", "1", "--rows", "8", "--length", "140"]
    )
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
