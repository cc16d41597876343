"""What the options of ``python -m specdec`` reach: memory, weights, prompts, ends of texts, scores and the summary."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families
from specdec import Engine, catalog
from specdec.__main__ import main
from specdec.amounts import amount

TINY = ("--target", "tiny", "--draft", "none", "--raw")


class Command:
    """The command within this process: ``said`` and ``found`` are what it prints, as text and as JSON."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def said(self, *arguments: str) -> str:
        assert main([*arguments]) == 0
        return self._capsys.readouterr().out

    def found(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.said(*arguments, "--json"))
        return found

    def refused(self, *arguments: str) -> str:
        assert main([*arguments]) == 2
        return self._capsys.readouterr().err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], endless_line: None) -> Command:
    return Command(capsys)


def requests_file(folder: Path, *lengths: int) -> tuple[str, ...]:
    """The options for a file of requests with prompts of so many tokens; it and the results are in this folder."""
    source = folder / f"{len(lengths)}.jsonl"
    source.write_text("".join(json.dumps({"prompt_ids": [5] * length}) + "\n" for length in lengths))
    return "--requests", str(source), "--out", str(folder / "out.jsonl")


def test_a_model_that_does_not_fit_is_refused_with_the_rows_and_the_tokens_it_would_have(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.build_model("llama").config.save_pretrained(tmp_path)
    monkeypatch.setattr("specdec.devices.available_bytes", lambda device: 0)
    shape = ("--target", f"shape:{tmp_path}", "--max-new-tokens", "7", "--raw")
    lengths = [1 + index % 5 for index in range(9)]
    for arguments, rows, tokens in (
        (("one two",), 1, 7),
        (("one two", "--beams", "3"), 3, 7),
        (requests_file(tmp_path, *lengths[:3]), 3, 3 + 7),
        ((*requests_file(tmp_path, *lengths), "--batch", "2"), 2, 5 + 7),
        (requests_file(tmp_path, *lengths), 8, 5 + 7),
    ):
        said = command.refused(*arguments, *shape)
        assert f"the model 'shape:{tmp_path}' with {amount(rows, 'row')} of {tokens} tokens needs about " in said


def test_an_engine_has_the_rows_and_the_room_that_its_requests_take(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, step = list[tuple[int, int]](), Engine.step

    def noted(engine: Engine) -> None:
        found.append((engine.max_rows, engine.max_length))
        step(engine)

    monkeypatch.setattr(Engine, "step", noted)
    command.found("one two", *TINY, "--max-new-tokens", "3")
    command.said(*requests_file(tmp_path, 6, 2, 3), *TINY, "--max-new-tokens", "4", "--batch", "2")
    assert set(found) == {(1, len("one two") + 3), (2, 6 + 4)}


def test_the_seed_is_that_of_tinys_weights_as_well(command: Command) -> None:
    """A greedy text of another seed is of other weights: those that the catalog makes of the seed."""
    texts = []
    for seed in (0, 1):
        found = command.found("one two", *TINY, "--max-new-tokens", "6", "--seed", str(seed))
        texts.append([one["id"] for one in found["tokens"]])
        model = catalog.load("tiny", torch.device("cpu"), torch.float32, rows=1, max_length=16, seed=seed).model
        whole = torch.tensor([[*catalog.byte_tokenizer().encode("one two"), *texts[-1]]])
        with torch.inference_mode():
            logits = model(whole, use_cache=False).logits[0]
        assert logits[-7:-1].argmax(dim=-1).tolist() == texts[-1]
    assert texts[0] != texts[1]


def test_a_text_ends_at_the_models_end_token_which_is_not_shown(command: Command) -> None:
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32, rows=1, max_length=8)
    end, *_ = catalog.end_tokens(loaded.model)
    word = loaded.tokenizer.decode([end])
    likely = ("one two", *TINY, "--max-new-tokens", "5", "--logit-bias", f"{end}=100")
    found = command.found(*likely)
    assert [(one["id"], one["text"]) for one in found["tokens"]] == [(end, word)]
    assert (found["finish_reason"], found["text"]) == ("eos", "")
    later = command.found(*likely, "--min-new-tokens", "3")
    assert [one["id"] for one in later["tokens"]][3:] == [end]
    best = command.found(*likely, "--beams", "2")["beams"][0]
    assert (best["finish_reason"], best["tokens"], best["text"]) == ("eos", [end], "")


def test_a_beams_score_is_its_log_probability_over_its_length_to_the_power_of_the_penalty(command: Command) -> None:
    """All texts are as long, so that their order is the same."""
    arguments = ("one two", "--target", "tiny", "--beams", "3", "--max-new-tokens", "4")
    sums = [one["score"] for one in command.found(*arguments, "--length-penalty", "0")["beams"]]
    assert sums[0] < 0
    for more, power in (((), 1), (("--length-penalty", "1"), 1), (("--length-penalty", "2"), 2)):
        beams = command.found(*arguments, *more)["beams"]
        assert [len(one["tokens"]) for one in beams] == [4, 4, 4]
        assert [one["score"] for one in beams] == pytest.approx([each / 4**power for each in sums])


def test_beams_are_printed_with_score_end_and_text(command: Command) -> None:
    arguments = ("one two", "--target", "tiny", "--beams", "2", "--max-new-tokens", "3")
    beams = command.found(*arguments)["beams"]
    said = command.said(*arguments)
    assert said == "".join(f"{one['score']:.4f}  ended by length\n{one['text']}\n\n" for one in beams)


def test_a_dash_is_standard_input_as_the_prompt(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*TINY, "--max-new-tokens", "3")
    expected = command.found("one two three", *options)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one two three"))
    given = command.found("-", *options)
    assert given["tokens"] == expected["tokens"]
    assert given["prompt_tokens"] == len("one two three")


def test_a_prompt_is_in_the_chat_template_unless_it_is_raw(command: Command, tmp_path: Path) -> None:
    options = ("--target", "tiny", "--draft", "none", "--max-new-tokens", "2")
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    for raw, count in (((), len(catalog.chat_ids(catalog.byte_tokenizer(), "abc"))), (("--raw",), 3)):
        assert command.found("abc", *options, *raw)["prompt_tokens"] == count
        source.write_text('{"prompt": "abc"}\n')
        command.said("--requests", str(source), "--out", str(out), *options, *raw)
        [line] = out.read_text().splitlines()
        assert json.loads(line)["prompt_tokens"] == count
        out.unlink()


@pytest.mark.parametrize("draft", ["none", "oracle(0.7)"])
def test_the_summary_says_what_the_json_says(draft: str, command: Command) -> None:
    arguments = ("one two", "--target", "tiny", "--draft", draft, "--max-new-tokens", "20")
    found, said = command.found(*arguments), command.said(*arguments)
    metrics, rate = found["metrics"], found["metrics"]["acceptance_rate"]
    assert (rate is None) == (draft == "none")
    *lines, summary = said.splitlines()
    assert re.fullmatch(
        rf"20 tokens, \d+\.\d tok/s, first after \d+ ms, tau {metrics['tau']:.2f}, "
        rf"accepted {'-' if rate is None else f'{rate:.0%}'}, contract exact, ended by length",
        summary,
    )
    kinds = Counter(one["kind"] for one in found["tokens"])
    counted = [re.fullmatch(r" *\W?([a-z]+)\W? +(\d+)  \S.*", line) for line in lines]
    assert {match[1]: int(match[2]) for match in counted if match} == kinds


@pytest.fixture
def anything_goes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores what torch allows."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    precision, allowed = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = allowed


@pytest.mark.usefixtures("anything_goes")
def test_deterministic_algorithms_alone_are_allowed_where_that_is_asked_for(command: Command) -> None:
    options = ("one", *TINY, "--max-new-tokens", "2")
    command.said(*options)
    assert not torch.are_deterministic_algorithms_enabled()
    command.said(*options, "--deterministic")
    assert torch.are_deterministic_algorithms_enabled()


def test_the_bar_begins_with_the_requests_that_were_done_earlier(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*TINY, "--max-new-tokens", "2")
    command.said(*requests_file(tmp_path, 4), *options)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    command.said(*requests_file(tmp_path, 4, 5, 6), *options)
    shown = re.findall(r"(\d)/(\d)", terminal.getvalue())
    assert (shown[0], shown[-1]) == (("1", "3"), ("3", "3"))
