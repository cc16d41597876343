"""``python -m specdec``: one generation, as users run it."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.control import strip_control_codes

from benchsuite.run.request import texts_of
from benchsuite.tests.rig import Run
from specdec import Completion, Engine, SamplingParams
from specdec.__main__ import main

pytestmark = pytest.mark.usefixtures("endless_line")


@pytest.mark.slow
def test_the_command_tells_tokens_apart_without_colour(run: Run) -> None:
    done = run(
        "-m", "specdec", "one two one two", "--target", "tiny", "--draft", "oracle(0.8)", "--max-new-tokens", "12"
    )
    assert done.returncode == 0, done.stderr
    assert "[accepted]" in done.stdout
    assert "a proposal that was kept" in done.stdout
    assert "contract exact, ended by length" in done.stdout


@pytest.mark.slow
def test_the_command_gives_strict_json_on_request(run: Run) -> None:
    arguments = ("one two", "--specdec-target", "tiny", "--json", "--max-new-tokens", "8", "--temperature", "0.7")
    found = json.loads(run("-m", "specdec", *arguments).stdout, parse_constant=pytest.fail)
    assert len(found["tokens"]) == found["counters"]["num_emitted_tokens"] == 8
    assert {token["kind"] for token in found["tokens"]} <= {"accepted", "recovered", "bonus", "plain"}
    again = json.loads(run("-m", "specdec", *arguments, "--draft", "none").stdout)
    assert [t["id"] for t in again["tokens"]] == [t["id"] for t in found["tokens"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "--draft", "ngrm"), "unknown draft 'ngrm'; did you mean 'ngram'"),
        (("  ", "--target", "tiny"), "the prompt is empty; give it some text"),
        (("x", "--target", "tiny", "--top-p", "3"), "top_p is 3.0; expected above 0"),
    ],
)
def test_the_command_refuses_with_one_line_and_code_2(arguments: tuple[str, ...], message: str, run: Run) -> None:
    done = run("-m", "specdec", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


class Paper(io.StringIO):
    """Standard output that keeps what was written, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def write(self, text: str) -> int:
        self.events.append(text)
        return len(text)


def test_text_appears_as_it_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    paper, step = Paper(), Engine.step
    monkeypatch.setattr(sys, "stdout", paper)

    def noted(engine: Engine) -> None:
        step(engine)
        paper.events.append("STEP")

    monkeypatch.setattr(Engine, "step", noted)
    assert main(["one two", "--target", "tiny", "--draft", "none", "--max-new-tokens", "30", "--temperature", "1"]) == 0
    steps = [place for place, event in enumerate(paper.events) if event == "STEP"]
    assert len(steps) == 30
    shown = sum(any(paper.events[a + 1 : b]) for a, b in itertools.pairwise(steps))
    assert shown >= 10, "only a part of a character is held back"


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["none", "oracle(0.8)"])
def test_the_text_shown_is_that_of_the_json_without_the_stop_string(
    draft: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["one two", "--target", "tiny", "--max-new-tokens", "40", "--seed", "2", "--temperature", "1"]

    def said(*options: str) -> Any:
        assert main([*arguments, *options]) == 0
        return capsys.readouterr().out

    whole = json.loads(said("--json"))["text"]
    stop = next(char for char in whole[5:] if char.isalpha() and char not in whole[:5])
    found = json.loads(said("--json", "--stop", stop, "--draft", draft))
    assert found["finish_reason"] == "stop"
    assert found["text"].endswith(stop)
    shown = said("--stop", stop, "--draft", draft)
    text, _, summary = shown.partition("\n\n")
    for mark in "[]{}<>" if draft != "none" else "":
        text, whole = text.replace(mark, ""), whole.replace(mark, "")
    assert text == strip_control_codes(whole[: whole.index(stop)]).expandtabs()
    assert "ended by stop" in summary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is no prompt; give one, or a file of them with --requests and --out"),
        (("--requests", "x"), "--requests is given without --out; a file of requests needs both"),
        (("--out", "x"), "--out is given without --requests; a file of requests needs both"),
        (("hello", "--requests", "x", "--out", "y"), "a prompt and --requests are given; leave one of them out"),
        (("hello", "--batch", "2"), "--batch is for a file of requests; leave it out"),
        (("hello", "--quiet"), "--quiet is for a file of requests; leave it out"),
        (("--requests", "x", "--out", "y", "--batch", "0"), "--batch is 0; expected 1 or more"),
        (("--requests", "x", "--out", "y", "--json"), "--json is for one prompt"),
        (("--requests", "x", "--out", "y", "--beams", "2"), "--beams is for one prompt"),
        (
            ("hello", "--beams", "2", "--draft", "ngram"),
            "not speculative, but a draft, 'ngram', is given",
        ),
        (("hello", "--beams", "0"), "--beams is 0; expected 1 or more"),
        (("hello", "--length-penalty", "2"), "--length-penalty is for beam search"),
        (
            ("hello", "--beams", "2", "--length-penalty", "9"),
            "length_penalty is 9.0; expected a number from -5.0",
        ),
        (("hello", "--logprobs", "2"), "--logprobs of one prompt are shown with --json"),
        (("hello", "--min-p", "2"), "min_p is 2.0; expected 0"),
        (("hello", "--frequency-penalty", "3"), "frequency_penalty is 3.0; expected -2 to 2"),
        (
            ("hello", "--logit-bias", "3=200"),
            "logit_bias is ((3, 200.0),); expected a mapping of token ids",
        ),
        (("hello", "--min-new-tokens", "99"), "min_new_tokens is 99; expected at most max_new_tokens, 64"),
        (("--requests", "x", "--out", "y", "--top-p", "3"), "top_p is 3.0; expected above 0"),
        (("--requests", "x", "--out", "y"), "the requests 'x' cannot be read"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""


def test_options_have_the_names_and_the_defaults_of_pytests_options_and_of_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The help has each option under both names. The target and the draft are one here, and lists there."""
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split()).partition(" options: ")[2]
    shown = re.findall(r"--([\w-]+) [A-Z_=]+, --specdec-([\w-]+) [A-Z_=]+ (.*?)(?= --|$)", text)
    assert all(short == name for short, name, _ in shown)
    defaults = {
        name: found[1] if (found := re.search(r"\(default: ([^)]+)\)$", said)) else "" for name, _, said in shown
    }
    theirs = texts_of({}).texts
    for name, text in defaults.items():
        field = SamplingParams.__dataclass_fields__.get(name.replace("-", "_"))
        if name in theirs:
            one, other = text or "none", theirs[name] or "none"
            assert one in other.split(",") or float(one) == float(other), name
        if field is not None and name != "max-new-tokens":
            assert text == ("" if field.default in (None, ()) else str(field.default)), name
    sampling = {name.replace("_", "-") for name in SamplingParams.__dataclass_fields__} - {"eos", "bad-words"}
    assert sampling <= defaults.keys()
    assert {"target", "draft", "policy", "controller", "k", "backend", "device", "dtype"} < defaults.keys()
    assert [defaults["target"], defaults["draft"]] == ["smollm2-135m", "ngram"]


def test_help_and_wrong_requests_are_answered_without_a_slow_import(cold: Run) -> None:
    code = """
import sys
from specdec.__main__ import main
for arguments in (["--help"], ["--requests", "none", "--out", "out"], ["--no-such-option"]):
    try:
        print(main(arguments))
    except SystemExit as end:
        print(end.code)
print(sorted({"torch", "transformers", "rich", "numpy"} & set(sys.modules)))
"""
    assert cold("-c", code).stdout.splitlines()[-4:] == ["0", "2", "2", "[]"]


def test_beams_are_printed_best_first_without_the_bad_word(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("one two", "--target", "tiny", "--beams", "3", "--max-new-tokens", "5", "--json")
    assert main([*arguments]) == 0
    found = json.loads(capsys.readouterr().out)["beams"]
    assert len(found) == 3
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    banned = found[0]["tokens"][0]
    assert main([*arguments, "--logit-bias", f"{banned}=-100"]) == 0
    assert all(banned not in one["tokens"] for one in json.loads(capsys.readouterr().out)["beams"])


@pytest.mark.slow
def test_a_bad_word_given_as_text_is_not_emitted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["one two", "--target", "tiny", "--max-new-tokens", "40", "--temperature", "1", "--json"]

    def text(*more: str) -> str:
        assert main([*arguments, *more]) == 0
        return str(json.loads(capsys.readouterr().out)["text"])

    letter = next(char for char in text() if char.isalpha() and char.isascii())
    assert letter not in text("--bad-word", letter)


def test_logprobs_are_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one", "--target", "tiny", "--max-new-tokens", "4", "--json", "--logprobs", "3"]) == 0
    for token in json.loads(capsys.readouterr().out)["tokens"]:
        assert [token["id"], token["logprobs"]["raw"]] == token["logprobs"]["top_raw"][0], "greedy takes the likeliest"
        assert len(token["logprobs"]["top_processed"]) == 3


def test_the_metrics_of_a_run_are_worked_out_from_its_completion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done, run, engines = list[Completion](), Engine.run, list[Engine]()

    def noted(engine: Engine, requests: Any) -> Any:
        engines.append(engine)
        found = run(engine, requests)
        done.extend(found)
        return found

    monkeypatch.setattr(Engine, "run", noted)
    assert main(["one two", "--target", "tiny", "--draft", "ngram(n_min=1)", "--max-new-tokens", "9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    [one], stats = done, engines[0].stats
    decoding = one.times[8] - one.prefill_s
    assert found == {
        "tokens_per_s": pytest.approx(9 / decoding, rel=1e-12),
        "ttft_ms": pytest.approx(one.times[0] * 1000, rel=1e-12),
        "tau": stats.tau,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "contract": "exact",
    }
    assert one.times[7] < one.times[8]


def test_a_file_of_requests_is_summed_up_in_a_line_and_run_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "a"}\n{"prompt": "b c"}\n')
    arguments = ["--requests", str(source), "--out", str(out), "--target", "tiny", "--max-new-tokens", "4"]
    clock = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: float(next(clock)))
        assert main(arguments) == 0
    said = capsys.readouterr().out
    found = re.fullmatch(rf"2 requests, 8 tokens, (\d+\.\d) tok/s: {re.escape(str(out))}\n", said)
    assert found, said
    assert 0.0 < float(found[1]) < 8, "each reading of the clock is a second after the one before"
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(one["index"] for one in results) == [0, 1]
    assert all(len(one["tokens"]) == 4 for one in results)
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"2 requests (2 of them earlier): {out}\n"
    with source.open("a") as file:
        file.write('{"prompt": "d"}\n')
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert len(out.read_text().splitlines()) == 3


def test_with_colours_tokens_have_no_brackets_and_numbers_no_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(["one two", "--target", "tiny", "--draft", "garbage", "--max-new-tokens", "9"]) == 0
    *lines, summary = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert any("\x1b[" in line for line in lines)
    counted = [strip_control_codes(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines]
    kinds = [line.split()[0] for line in counted if re.match(r" *\S+ +\d+  drawn", line)]
    assert kinds
    assert all(kind.isalpha() for kind in kinds)
    assert "tok/s" in summary or "acceptance" in summary
    assert "\x1b[" not in summary
