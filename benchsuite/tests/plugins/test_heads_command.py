"""The command that writes the text and trains heads: what it takes, what it hands on, and the record that it leaves."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from specdec import SpecdecError, catalog
from specdec.model import ArenaModel
from specdec_plugins.heads import __main__ as command
from specdec_plugins.heads import corpus, files, start, training
from specdec_plugins.heads.corpus import Corpus
from specdec_plugins.heads.eagle_head import EagleHead
from specdec_plugins.heads.medusa_heads import MedusaHeads

CPU = torch.device("cpu")


def test_the_options_of_write_are_these_and_have_these_defaults() -> None:
    found = vars(command.parser().parse_args(["write", "--corpus", "c"]))
    assert found == {
        "verb": "write",
        "target": "smollm2-135m",
        "device": "auto",
        "corpus": Path("c"),
        "shards": 36,
        "rows": 192,
        "length": 192,
        "layers": "",
        "first": 0,
        "dtype": None,
    }
    given = [
        "write",
        "--target",
        "t",
        "--device",
        "cpu",
        "--corpus",
        "d/e",
        "--shards",
        "2",
        "--rows",
        "3",
        "--length",
        "4",
        "--layers",
        "0-1",
        "--first",
        "7",
        "--dtype",
        "float32",
    ]
    assert vars(command.parser().parse_args(given)) == {
        "verb": "write",
        "target": "t",
        "device": "cpu",
        "corpus": Path("d/e"),
        "shards": 2,
        "rows": 3,
        "length": 4,
        "layers": "0-1",
        "first": 7,
        "dtype": "float32",
    }


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_the_options_of_train_are_these_and_have_these_defaults(kind: str) -> None:
    needed = ["train", kind, "--corpus", "c", "--run", "r", "--out", "o"]
    paths = {"corpus": Path("c"), "run": Path("r"), "out": Path("o")}
    assert vars(command.parser().parse_args(needed)) == {
        **{"verb": "train", "kind": kind, "target": "smollm2-135m", "device": "auto", **paths, "begin": None},
        **{
            "epochs": 7,
            "steps": 3,
            "heads": 4,
            "wide": 576,
            "block": 8,
            "deep": 2,
            "batch": 12,
            "rate": 0.025,
            "vocabulary": None,
            "seed": 0,
            "beside": 0.0,
            "dtype": None,
        },
    }
    more = "--target t --device cpu --begin b --epochs 1 --steps 2 --heads 5 --wide 6 --block 4 --deep 1 --batch 8"
    more += " --rate 0.5 --vocabulary 9 --seed 10 --beside 0.25 --dtype bfloat16"
    found = vars(command.parser().parse_args([*needed, *more.split()]))
    assert found == {
        **{"verb": "train", "kind": kind, "target": "t", "device": "cpu", **paths, "begin": "b"},
        **{
            "epochs": 1,
            "steps": 2,
            "heads": 5,
            "wide": 6,
            "block": 4,
            "deep": 1,
            "batch": 8,
            "rate": 0.5,
            "vocabulary": 9,
            "seed": 10,
            "beside": 0.25,
            "dtype": "bfloat16",
        },
    }


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ("", "verb"),
        ("write", "--corpus"),
        ("train eagle --run r --out o", "--corpus"),
        ("train eagle --corpus c --out o", "--run"),
        ("train eagle --corpus c --run r", "--out"),
        ("train --corpus c --run r --out o", "kind"),
    ],
)
def test_what_no_default_could_stand_for_must_be_given(
    given: str, lacks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.parser().parse_args(given.split())
    assert capsys.readouterr().err.rstrip().endswith(f"error: the following arguments are required: {lacks}")


def test_only_heads_of_these_kinds_are_trained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parser().parse_args(["train", "hydra", "--corpus", "c", "--run", "r", "--out", "o"])
    assert "invalid choice: 'hydra'" in capsys.readouterr().err


def small_corpus(folder: Path) -> Corpus:
    """Write six conversations of five tokens in two shards; return what they hold."""
    tokens = (torch.arange(30).view(6, 5) // 3) % 4 + 60
    hidden = torch.randn(6, 5, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    answer = torch.arange(30).view(6, 5) % 2 == 0
    folder.mkdir()
    for number, rows in ((1, slice(4, 6)), (0, slice(0, 4))):
        shard = {"tokens": tokens[rows].int(), "hidden": hidden[rows], "answer": answer[rows]}
        save_file({name: part.contiguous() for name, part in shard.items()}, folder / f"shard-{number:04}.safetensors")
    (folder / "shard-0002.partial").write_bytes(b"begun")
    return Corpus(tokens, hidden, answer)


def same_text(one: Corpus, other: Corpus) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("tokens", "hidden", "answer"))


def test_a_corpus_is_its_finished_shards_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    written = small_corpus(tmp_path / "c")
    found = Corpus.read(tmp_path / "c")
    assert same_text(found, written)
    assert (found.tokens.dtype, found.hidden.dtype, found.answer.dtype) == (torch.int64, torch.bfloat16, torch.bool)
    with pytest.raises(SpecdecError) as refused:
        Corpus.read(tmp_path)
    assert str(refused.value) == f"{tmp_path} holds no shards; write some with `python -m specdec_plugins.heads write`"


class Watched:
    """Stands in for the training: keeps what it was given, and returns a log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: list[dict[str, Any]]) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.named: list[dict[str, Any]] = []
        self.begun: list[tuple[Any, ...]] = []
        self._log = log
        monkeypatch.setattr(training, "train", self)
        for name in ("eagle_start", "medusa"):
            monkeypatch.setattr(start, name, self._starting(getattr(start, name)))

    def __call__(self, *given: Any, **named: Any) -> list[dict[str, Any]]:
        self.given.append(given)
        self.named.append(named)
        return self._log

    def _starting(self, real: Any) -> Any:
        def begin(model: Any, *given: Any) -> Any:
            self.begun.append(given)
            return real(model, *given)

        return begin


NUMBERS = "--epochs 2 --steps 4 --heads 2 --wide 16 --batch 5 --rate 0.5 --vocabulary 3 --seed 9"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
@pytest.mark.parametrize("log", [[], [{"epoch": 1}, {"epoch": 2}]], ids=["nothing", "two epochs"])
def test_training_gets_what_was_given_and_leaves_a_record(
    kind: str, log: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    text, watched, out = small_corpus(tmp_path / "c"), Watched(monkeypatch, log), tmp_path / "head.safetensors"
    given = ["train", kind, "--target", "tiny", "--device", "cpu", "--corpus", str(tmp_path / "c")]
    command.heads_main([*given, "--run", str(tmp_path / "r"), "--out", str(out), *NUMBERS.split()])
    [(head, ops, reader, embed, read, folder)] = watched.given
    assert watched.named == [{"epochs": 2, "steps": 4, "batch": 5, "rate": 0.5, "seed": 9, "beside": 0.0}]
    assert isinstance(head, EagleHead if kind == "eagle" else MedusaHeads)
    assert all(p.requires_grad for p in head.parameters())
    model = catalog.load("tiny", CPU, torch.float32).model
    output, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    ids = training.frequent(text.tokens, 3)
    assert type(ops) is type(registry().backend("reference"))
    assert torch.equal(reader.ids, ids)
    dtype = command.products_dtype(CPU)
    assert torch.equal(reader.whole, output.to(dtype))
    assert not reader.whole.requires_grad
    assert torch.equal(embed, table.to(dtype))
    assert not embed.requires_grad, "the target is not trained"
    assert same_text(read, text)
    assert folder == tmp_path / "r"
    [(tokens, *numbers)] = watched.begun
    assert torch.equal(tokens, text.tokens[:4])
    assert numbers == ([9] if kind == "eagle" else [9, 2, 16])
    load = files.load_eagle if kind == "eagle" else files.load_medusa
    saved, kept = load(str(out), ArenaModel(model, registry().backend("reference")))
    assert torch.equal(kept, ids)
    for one, other in zip(saved.parameters(), head.parameters(), strict=True):
        assert torch.equal(one, other.detach().bfloat16().float())
    arguments = {
        **{"verb": "train", "target": "tiny", "device": "cpu", "corpus": str(tmp_path / "c"), "kind": kind},
        **{"run": str(tmp_path / "r"), "out": str(out), "begin": "None", "epochs": "2", "steps": "4", "heads": "2"},
        **{"wide": "16", "block": "8", "deep": "2", "batch": "5", "rate": "0.5", "vocabulary": "3", "seed": "9"},
        **{"beside": "0.0", "dtype": "None"},
    }
    record = out.with_suffix(".json").read_text(encoding="utf-8")
    expected = {
        "arguments": arguments,
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}, cpu",
        "conversations": 6,
        "tokens": 30,
        "parameters": sum(p.numel() for p in head.parameters()),
        "epochs": log,
    }
    assert json.loads(record) == expected
    assert record == json.dumps(json.loads(record), indent=1) + "\n"
    held_out = log[-1] if log else "nothing"
    assert capsys.readouterr().out.endswith(f"{out}: {out.stat().st_size / 1e6:.1f} MB, held out {held_out}\n")


TRAIN = "train eagle --corpus c --run r --out o.safetensors"


@pytest.mark.parametrize(
    ("verb", "option", "values", "expected"),
    [
        # 0 would be taken for a number that was not given.
        (TRAIN, "vocabulary", ("0", "-3", "two"), "a whole number, 1 or more"),
        (TRAIN, "beside", ("-0.1", "1.5", "half"), "a share, from 0 to 1"),
        ("write --corpus c", "first", ("-1", "1.5", "one"), "a whole number, 0 or more"),
    ],
)
def test_a_number_that_an_option_does_not_take_is_refused_with_those_that_it_does(
    verb: str, option: str, values: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in values:
        with pytest.raises(SystemExit):
            command.heads_main([*verb.split(), f"--{option}={value}"])
        assert f"argument --{option}: got '{value}'; expected {expected}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
@pytest.mark.parametrize(("asked", "ids"), [("", [1, 2]), ("--vocabulary 3", None)], ids=["its own tokens", "others"])
def test_training_begins_with_a_heads_file_where_one_is_given(
    asked: str, ids: list[int] | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, model = small_corpus(tmp_path / "c"), catalog.load("tiny", CPU, torch.float32).model
    first: Any = (
        start.eagle_start(model, text.tokens, 1) if kind == "eagle" else start.medusa(model, text.tokens, 1, 3, 8)
    )
    first.norm.data.fill_(0.25)
    files.save(tmp_path / "first.safetensors", first, torch.tensor([1, 2]), model)
    watched = Watched(monkeypatch, [])
    given = f"train {kind} --target tiny --device cpu {asked}".split()
    paths = [str(part) for name in ("c", "r") for part in ("--corpus" if name == "c" else "--run", tmp_path / name)]
    more = ["--out", str(tmp_path / "o.safetensors"), "--begin", str(tmp_path / "first.safetensors")]
    command.heads_main([*given, *paths, *more])
    [(head, _, reader, *_)] = watched.given
    assert watched.begun == []
    assert reader.ids.tolist() == (ids or training.frequent(text.tokens, 3).tolist())
    assert type(head) is type(first)
    assert head.norm.tolist() == [0.25] * 64
    assert all(p.requires_grad for p in head.parameters())


@pytest.mark.parametrize("dtype", ["", "float32"])
def test_writing_gets_what_was_given_and_a_target_of_the_dtype(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(corpus, "write_corpus", lambda *given: seen.append(given))
    given = [
        "write",
        "--target",
        "tiny",
        "--device",
        "cpu",
        "--shards",
        "2",
        "--rows",
        "3",
        "--length",
        "4",
        "--layers",
        "0-1",
        "--first",
        "5",
        *(["--dtype", dtype] if dtype else []),
        "--corpus",
    ]
    command.heads_main([*given, str(tmp_path)])
    [(folder, target, tokenizer, *sizes)] = seen
    assert (folder, sizes) == (tmp_path, [2, 3, 4, (0, 1), 5])
    assert target.dtype == getattr(torch, dtype or "bfloat16")
    assert tokenizer.get_vocab() == catalog.byte_tokenizer().get_vocab()


def test_what_is_refused_ends_the_command_with_one_sentence(tmp_path: Path) -> None:
    for given, says in (
        (["train", "eagle", "--device", "cpu"], f"error: {tmp_path} holds no shards; write some"),
        (["train", "medusa", "--device", "abacus"], "error: unknown device 'abacus'"),
    ):
        paths = ["--corpus", str(tmp_path), "--run", str(tmp_path), "--out", str(tmp_path / "o")]
        with pytest.raises(SystemExit) as ended:
            command.heads_main([*given, "--target", "tiny", *paths])
        assert " ".join(str(ended.value.code).split()).startswith(says)  # lines are as wide as the terminal


def test_missing_shards_are_written_each_under_its_own_name_and_only_when_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = tmp_path / "a" / "b", list[tuple[Any, ...]]()

    def shard(
        target: Any, tokenizer: Any, number: int, rows: int, length: int, layers: Any, progress: Any
    ) -> dict[str, Tensor]:
        assert layers == ()
        made.append((target, tokenizer, number, rows, length))
        assert not list(folder.glob("*.partial"))
        return {"tokens": torch.full((rows, length), number)}

    monkeypatch.setattr(corpus, "_shard", shard)
    target: Any = "target"
    tokenizer: Any = "tokenizer"
    corpus.write_corpus(folder, target, tokenizer, 2, 3, 4)
    (folder / "shard-0000.safetensors").unlink()
    corpus.write_corpus(folder, target, tokenizer, 4, 5, 6)
    corpus.write_corpus(folder, target, tokenizer, 2, 5, 6, first=3)
    assert made == [
        *((target, tokenizer, number, 3, 4) for number in (0, 1)),
        *((target, tokenizer, number, 5, 6) for number in (0, 2, 3, 4)),
    ]
    assert sorted(path.name for path in folder.iterdir()) == [f"shard-000{i}.safetensors" for i in range(5)]
