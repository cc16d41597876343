"""A file of requests: checked before anything is loaded, run in batches, and gone on with after a kill."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from benchsuite.tests.rig import Make, Run, slow_after
from specdec import Completion, SamplingParams, SpecdecError, catalog, jobs
from specdec.__main__ import main
from specdec.arena import BUCKET
from specdec.jobs import Job, OutFile, Prompts, read_jobs, run_jobs
from specdec.text import shown_text

pytestmark = pytest.mark.usefixtures("endless_line")


def write(path: Path, *lines: object) -> Path:
    """Write lines of JSON; a text is written as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Read lines as a file of requests, with defaults."""

    def call(*lines: object, defaults: SamplingParams | None = None, **settings: object) -> list[Job]:
        return read_jobs(write(tmp_path / "in.jsonl", *lines), defaults or SamplingParams(), settings)

    return call


def test_a_line_has_its_number_the_defaults_and_every_field_it_names(read: Any) -> None:
    found = read(
        {"prompt": "a"},
        "",
        {"prompt_ids": [1, 2], "id": "x", "temperature": 1, "stop": ["é", "b"], "eos": [3], "seed": 4},
        {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "u"}], "max_new_tokens": 5},
        defaults=SamplingParams(top_k=7, max_new_tokens=9),
    )
    assert [(job.index, job.line, job.id) for job in found] == [(0, 1, 1), (2, 3, "x"), (3, 4, 4)]
    assert found[0].params == SamplingParams(top_k=7, max_new_tokens=9)
    assert found[1].params == SamplingParams(1.0, 7, seed=4, max_new_tokens=9, eos=(3,), stop=("é", "b"))
    assert found[1].request(found[1].prompt, (8,)).params.eos == (3,)
    assert found[0].request((1,), (8,)).params.eos == (8,)
    assert found[2].params.max_new_tokens == 5


@dataclass(frozen=True)
class Richer(SamplingParams):
    """Parameters with a field of each shape that JSON can write."""

    weights: Mapping[int, float] = field(default_factory=dict)
    words: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[int, float], ...] = ()
    top: int | None = None
    flag: bool = False


def test_a_field_that_is_new_in_the_parameters_can_be_named_at_once(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read({"prompt": "a"})[0].fingerprint
    monkeypatch.setattr(jobs, "SamplingParams", Richer)
    values = {"weights": {"3": 1}, "words": [[1, 2], []], "pairs": {"4": 0.5}, "top": 5, "flag": True}
    (job,) = read({"prompt": "a", **values}, defaults=Richer())
    assert job.params == Richer(weights={3: 1.0}, words=((1, 2), ()), pairs=((4, 0.5),), top=5, flag=True)
    assert read({"prompt": "a", "pairs": [[4, 0.5]], "top": None}, defaults=Richer())[0].params.pairs == ((4, 0.5),)
    for name, wrong in (("weights", {"x": 1}), ("words", [1]), ("pairs", [[1]]), ("top", "5"), ("flag", 1)):
        with pytest.raises(SpecdecError, match=f"^line 1: {name} is .*; expected "):
            read({"prompt": "a", name: wrong}, defaults=Richer())
    assert read({"prompt": "a"}, defaults=Richer())[0].fingerprint == before, "out files outlive new fields"


@pytest.mark.parametrize("name", [f.name for f in fields(SamplingParams)])
def test_every_parameter_is_a_field_of_a_line(name: str, read: Any) -> None:
    value = json.loads(json.dumps(getattr(SamplingParams(), name), default=dict))
    assert read({"prompt": "a", name: value})[0].params == SamplingParams()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON .*expected one object"),
        ("[1]", r"\[1\] is no object"),
        ("{}", "it has no prompt; expected exactly one of prompt, prompt_ids, messages"),
        ({"prompt": "a", "prompt_ids": [1]}, "it has prompt and prompt_ids; expected exactly one"),
        ({"prompt": "a", "temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'.*max_new_tokens"),
        ({"prompt": "a", "top_p": 3}, "top_p is 3.0; expected above 0 and at most 1"),
        ({"prompt": "a", "top_k": 1.5}, "top_k is 1.5; expected a whole number"),
        ({"prompt": "a", "seed": True}, "seed is true; expected a whole number"),
        ({"prompt": "a", "temperature": "1"}, 'temperature is "1"; expected a number'),
        ({"prompt": "a", "stop": "END"}, 'stop is "END"; expected a list, each item a text'),
        ({"prompt": "a", "stop": [""]}, "stop is .*; expected a tuple of strings of at least one character"),
        ({"prompt": "a", "eos": [1.0]}, "eos is .*; expected a list, each item a whole number"),
        ('{"prompt": "a", "temperature": NaN}', "NaN is no JSON"),
        ('{"prompt": "a", "prompt": "b"}', "the field 'prompt' is there twice"),
        ({"prompt": "\ud800"}, "a text has half of a surrogate pair"),
        ({"prompt": "a", "min_p": -1}, "min_p is -1.0; expected 0 .off. to 1"),
        (
            {"prompt": "a", "logit_bias": {"x": 1}},
            "logit_bias is .*; expected an object whose names are",
        ),
        ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias is .*; expected a mapping of token ids to numbers"),
        ({"prompt": "a", "bad_words": [" "]}, "bad_words is .*; expected words of at least one visible character"),
        ({"prompt": "a", "bad_words": [[]]}, "bad_words is .*; expected a tuple of tuples of at least one token id"),
        ({"prompt": "a", "min_new_tokens": 9, "max_new_tokens": 5}, "min_new_tokens is 9; expected at most"),
        ({"prompt": " "}, 'prompt is " "; expected a text that is not empty'),
        ({"prompt": 1}, "prompt is 1; expected a text"),
        ({"prompt_ids": []}, "prompt_ids is .*; expected at least one token id"),
        ({"prompt_ids": [-1]}, "prompt_ids is .*; expected at least one token id, 0 or more"),
        ({"messages": []}, "messages is .*; expected a list of objects with the texts role and content"),
        ({"messages": [{"role": "user"}]}, "messages has .*; expected a list of objects"),
        ({"prompt": "a", "id": 1.5}, "id is 1.5; expected a text or a whole number"),
        ({"prompt": "a", "id": 1}, "the id 1 is that of line 1; give each line its own"),
    ],
)
def test_a_line_is_refused_by_its_number_before_the_model_is_loaded(
    line: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", {"prompt": "fine"}, "", line, {"prompt": "fine"})
    arguments = ["--requests", str(source), "--out", str(tmp_path / "out"), "--target", "there/is-none"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    with pytest.raises(SpecdecError, match=f"^line 3: {message}"):
        read_jobs(source, SamplingParams(), {})
    assert error.startswith("specdec: line 3: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_no_text_are_refused_by_their_line(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"prompt": "a"}\r\n{"prompt": "\xff"}')
    with pytest.raises(SpecdecError, match="^line 2: not JSON"):
        read_jobs(source, SamplingParams(), {})
    with pytest.raises(SpecdecError, match="cannot be read"):
        read_jobs(tmp_path / "none", SamplingParams(), {})
    with pytest.raises(SpecdecError, match="hold no line"):
        read_jobs(write(source, ""), SamplingParams(), {})


def some(count: int, tokens: int = 6, **fields: Any) -> list[dict[str, Any]]:
    """Lines with prompts and limits of different lengths."""
    return [
        {"prompt": f"{number} " * (1 + number * 5 % 7), "max_new_tokens": tokens + number * 3 % 5, **fields}
        for number in range(count)
    ]


def completed(
    build: Any, found: list[Job], grouped: bool = True, rows: int | None = None, draft: str | None = "oracle(0.8)"
) -> dict[int, Completion]:
    """Run jobs over a new engine; their completions by index."""
    engine = build.engine(draft, k=3, max_rows=rows)
    with Prompts(catalog.byte_tokenizer(), found) as prompts:
        return {job.index: done for job, done in run_jobs(engine, prompts, (256,), grouped=grouped)}


@pytest.mark.slow
@pytest.mark.parametrize("grouped", slow_after(1, [True, False]))
def test_outputs_are_plains_whatever_ran_before_or_beside(grouped: bool, read: Any, assemble: Make) -> None:
    build = assemble(max_rows=3)
    found = read(*some(9, temperature=0.8), {"prompt_ids": [5, 6], "max_new_tokens": 4, "eos": [1]})
    encoded = {job.index: catalog.chat_ids(build.tokenizer, str(job.prompt)) for job in found[:9]} | {9: [5, 6]}
    done = completed(build, found, grouped)
    assert done.keys() == set(range(10))
    for job in found:
        assert done[job.index].tokens == build.plain(job.request(encoded[job.index], (256,)))
    late = completed(build, found[4:], grouped, rows=2)
    assert {index: done[index].tokens for index in late} == {index: end.tokens for index, end in late.items()}


@pytest.mark.slow
def test_the_longest_go_first_which_reads_fewer_cells_and_keeps_few_waiting(read: Any, assemble: Make) -> None:
    build = assemble(max_rows=2)
    found = read(*({"prompt": "ab" * (1 if n % 2 else 30), "max_new_tokens": 4 + 20 * (n % 2 == 0)} for n in range(8)))
    cells = {}
    for grouped in (True, False):
        engine = build.engine(None)
        read_cells: list[int] = []

        def stepped(engine: Any = engine, read_cells: list[int] = read_cells) -> None:
            assert engine.waiting <= engine.max_rows
            read_cells.append(engine.stats.batch * max(engine.stats.lengths))

        with Prompts(catalog.byte_tokenizer(), found) as prompts:
            ended = [job.index for job, _ in run_jobs(engine, prompts, grouped=grouped, stepped=stepped)]
        cells[grouped] = sum(read_cells)
        if grouped:
            assert ended == [0, 2, 4, 6, 1, 3, 5, 7]
    assert cells[True] < 0.9 * cells[False]


def test_jobs_that_are_not_read_to_their_end_leave_the_engine_empty(read: Any, assemble: Make) -> None:
    engine = assemble(max_rows=2).engine("ngram", k=2)
    with Prompts(catalog.byte_tokenizer(), read(*some(6))) as prompts:
        running = run_jobs(engine, prompts)
        next(running)
        assert engine.rows.live
        running.close()  # type: ignore[attr-defined]  # it is a generator
    assert not engine.rows.live
    assert not engine.waiting


def test_a_token_id_outside_the_vocabulary_is_refused_before_anything_runs(read: Any, assemble: Make) -> None:
    engine = assemble().engine("ngram")
    with Prompts(catalog.byte_tokenizer(), read({"prompt": "a"}, {"prompt_ids": [300]})) as prompts:
        with pytest.raises(SpecdecError, match="^line 2: the prompt of request 1 has the token id 300"):
            next(run_jobs(engine, prompts))
        assert not engine.stats.counts["prefill_forwards"]


class Gate:
    """A byte tokenizer that counts the texts it is called with, and waits before a call until it may go on."""

    def __init__(self, open_calls: int = 10**9) -> None:
        self.inner = catalog.byte_tokenizer()
        self.texts: list[str] = []
        self.open_calls, self.calls, self.opened = open_calls, 0, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        self.calls += 1
        if self.calls > self.open_calls:
            assert self.opened.wait(60)
        self.texts += texts
        return self.inner(texts, **options)


@pytest.mark.slow
def test_the_first_requests_run_before_all_prompts_are_tokenised(read: Any, assemble: Make) -> None:
    tokenizer, found = Gate(open_calls=1), read(*some(100, tokens=1))
    engine = assemble(max_rows=4).engine(None)
    with Prompts(tokenizer, found) as prompts:
        running = run_jobs(engine, prompts)
        early = [next(running)[0].index for _ in range(20)]
        assert len(tokenizer.texts) == jobs.TOGETHER
        assert prompts.left == 100 - jobs.TOGETHER
        tokenizer.opened.set()
        late = [job.index for job, _ in running]
    assert sorted(early + late) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("raw", [False, True])
def test_a_text_is_tokenised_once_and_as_the_command_does(raw: bool, read: Any) -> None:
    tokenizer, plain = Gate(), catalog.byte_tokenizer()
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    found = read(*({"prompt": f"é{number % 70}"} for number in range(300)), {"messages": chat}, {"prompt_ids": [9]})
    taken: list[tuple[Job, tuple[int, ...]]] = []
    with Prompts(tokenizer, found, raw) as prompts:
        assert prompts.longest(None) >= 64 + 8
        while prompts.left:
            taken += prompts.take(wait=True)
    assert [job for job, _ in taken] == found
    assert len(tokenizer.texts) == len(set(tokenizer.texts)) == 71
    for job, ids in taken[:300]:
        text = str(job.prompt)
        assert list(ids) == (plain.encode(text) if raw else catalog.chat_ids(plain, text))
    whole: Any = plain.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    assert list(taken[300][1]) == list(whole["input_ids"])
    assert taken[301][1] == (9,)


@pytest.mark.slow
def test_the_longest_of_a_file_is_known_after_few_prompts_are_tokenised(read: Any) -> None:
    tokenizer = Gate()
    lines = [{"prompt": "a" * (10 * number), "max_new_tokens": 50} for number in range(1, 300)]
    with Prompts(tokenizer, read(*lines), raw=True) as prompts:
        assert prompts.longest(None) == 2990 + 50
        assert prompts.longest(3000) == 3000
    assert len(tokenizer.texts) == jobs.TOGETHER
    tokenizer.texts.clear()
    with Prompts(tokenizer, read(*lines[:50]), raw=True) as prompts:
        assert 550 <= prompts.longest(None) <= jobs.ROOM
    assert not tokenizer.texts, "a small arena is not worth the wait"


def test_a_prompt_that_the_model_cannot_hold_is_refused_by_its_line_beforehand(read: Any) -> None:
    found = read({"prompt": "a" * 99}, {"prompt": "a" * 100})
    for limit, line in ((101, 0), (100, 2), (50, 2)):
        with Prompts(catalog.byte_tokenizer(), found, raw=True) as prompts:
            if not line:
                assert prompts.longest(limit) == limit
                continue
            with pytest.raises(SpecdecError, match=rf"^line {line}: the prompt has .* at most {limit - 1} fit"):
                prompts.longest(limit)


def test_messages_that_the_chat_template_refuses_are_named_by_their_line(read: Any) -> None:
    tokenizer = catalog.byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system, please') }}"
    with pytest.raises(SpecdecError, match="^line 1: the chat template does not take .*no system, please"):
        Prompts(tokenizer, read({"prompt": "a"}))


def kept(path: Path, found: list[Job], done: dict[int, Completion]) -> set[int]:
    """Go on with an out file from completions that are known; returns the indexes that were in it."""
    with OutFile(path, found) as out:
        before = set(out.done)
        for job in found:
            if job.index not in before:
                out.keep(job, done[job.index], shown_text(catalog.byte_tokenizer(), done[job.index].tokens, "length"))
    return before


@pytest.mark.slow
def test_an_out_file_cut_at_any_byte_is_gone_on_with(
    read: Any, assemble: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)  # thousands would take minutes
    found, path = read(*some(4, tokens=2, id="é").__getitem__(slice(1)), *some(3, tokens=2)), tmp_path / "out.jsonl"
    done = completed(assemble(max_rows=3), found)
    kept(path, found, done)
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 4
    for length in range(ends[1], len(whole) + 1):
        path.write_bytes(whole[:length])
        before = kept(path, found, done)
        assert before == set(range(sum(end <= length for end in ends)))
        assert path.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:1] * 2, "line 2, of the id 1, comes from another request"),
        (lambda lines: [*lines, b'{"id": 77}\n'], "line 4 is no result of this command"),
        (lambda lines: [b"notes\n", *lines], "line 1 is no result of this command"),
        (lambda lines: [b"notes without an end"], "its last line is no result"),
        (lambda lines: [lines[0].replace(b'"index": 0', b'"index": 9')], "line 1, of the id 1, comes from another"),
    ],
)
def test_an_out_file_of_something_else_is_refused_and_kept(
    change: Any, message: str, read: Any, assemble: Make, tmp_path: Path
) -> None:
    found, path = read(*some(3, tokens=2)), tmp_path / "out.jsonl"
    kept(path, found, completed(assemble(), found))
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    with pytest.raises(SpecdecError, match=f"{message}.*; name another file"):
        OutFile(path, found)
    assert path.read_bytes() == before


def test_an_out_file_fits_only_the_requests_and_options_that_made_it(read: Any, assemble: Make, tmp_path: Path) -> None:
    lines, path = some(3, tokens=2), tmp_path / "out.jsonl"
    found = read(*lines, target="tiny")
    kept(path, found, completed(assemble(), found))
    other = {**lines[0], "prompt": "other"}
    for changed in (
        read(*lines, target="other"),
        read(*lines, target="tiny", defaults=SamplingParams(seed=1)),
        read(other, *lines[1:], target="tiny"),
        read(*reversed(lines), target="tiny"),
    ):
        with pytest.raises(SpecdecError, match="comes from another request or other options"):
            OutFile(path, changed)
    with OutFile(path, read(*lines, *some(2), target="tiny")) as longer:
        assert longer.done == {0, 1, 2}, "lines may be added at the end"


def test_two_runs_do_not_write_one_out_file(read: Any, tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="this system has no locks of files")
    found = read(*some(1))
    with OutFile(tmp_path / "out", found), pytest.raises(SpecdecError, match="another run writes to"):
        OutFile(tmp_path / "out", found)
    OutFile(tmp_path / "out", found).__exit__(None, None, None)


def results(path: Path) -> dict[Any, tuple[Any, ...]]:
    """What an out file says of each id, except the times."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["id"]: (line["tokens"], line["text"], line["finish_reason"], line["kinds"]) for line in lines}


KILLED = """
import os, signal, sys, time
from pathlib import Path
from specdec.__main__ import main

enough, *words = sys.argv[1:]
path, process = Path(words[-1]), os.fork()
if process == 0:
    os._exit(main(words))
ended = 0
while not ended and (not path.exists() or path.stat().st_size < int(enough)):
    time.sleep(0.0005)
    ended, _ = os.waitpid(process, os.WNOHANG)
assert not ended, "it ended by itself"
os.kill(process, signal.SIGKILL)
assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
"""
"""Kills a run as soon as its file has so many bytes."""


@pytest.mark.slow
def test_a_run_killed_at_any_time_ends_as_an_undisturbed_one(tmp_path: Path, run: Run) -> None:
    source = write(tmp_path / "in.jsonl", *some(24, tokens=20, temperature=0.9), {"prompt": "last", "stop": ["a", "e"]})
    common = ["--requests", str(source), "--target", "tiny", "--quiet", "--batch", "3", "--draft", "none", "--out"]
    assert main([*common, str(tmp_path / "whole")]) == 0
    size, path = (tmp_path / "whole").stat().st_size, tmp_path / "out"
    enough = random.Random(5).randrange(size // 10, size // 2)
    killed = run("-c", KILLED, str(enough), *common, str(path))
    assert killed.returncode == 0, killed.stderr
    assert enough <= path.stat().st_size < size
    assert main([*common, str(path)]) == 0
    assert results(path) == results(tmp_path / "whole")
    before = path.stat()
    assert main([*common[:2], "--target", "tiny", *common[4:], str(path)]) == 0
    assert os.stat_result(path.stat())[:9] == os.stat_result(before)[:9], "there was nothing left to do"


def test_a_prompt_in_a_file_gives_what_it_gives_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", "tiny", "--max-new-tokens", "9", "--temperature", "0.5", "--seed", "3"]
    source = write(tmp_path / "in.jsonl", {"prompt": "one two", "id": "x"})
    assert main(["--requests", str(source), "--out", str(tmp_path / "out"), *options]) == 0
    assert capsys.readouterr().out.startswith("1 request, 9 tokens, ")
    assert main(["one two", "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    result = json.loads((tmp_path / "out").read_text())
    assert result["tokens"] == [token["id"] for token in found["tokens"]]
    assert (result["id"], result["index"], result["prompt_tokens"]) == ("x", 0, found["prompt_tokens"])
    assert sum(result["kinds"].values()) == 9
    assert 0 < result["times"]["prefill_s"] <= result["times"]["first_s"] <= result["times"]["last_s"]


class Terminal(io.StringIO):
    """Standard error that may be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(("is_terminal", "quiet"), [(True, False), (True, True), (False, False)])
def test_a_bar_shows_the_requests_done_and_the_speed_to_a_terminal_alone(
    is_terminal: bool, quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    source = write(tmp_path / "in.jsonl", *some(3, tokens=2))
    options = ["--target", "tiny", *(["--quiet"] if quiet else [])]
    assert main(["--requests", str(source), "--out", str(tmp_path / "out"), *options]) == 0
    if is_terminal and not quiet:
        assert "3/3" in terminal.getvalue()
        assert " tok/s" in terminal.getvalue()
    else:
        assert terminal.getvalue() == ""


def test_the_bars_speed_is_the_tokens_over_the_seconds_since_the_first_request_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a clock that says a millisecond more at every look: the line on standard output counts from a look earlier
    to one later."""
    terminal, clock = Terminal(is_terminal=True), itertools.count(5_000)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 1000)
    source = write(tmp_path / "in.jsonl", *some(3, tokens=2))
    assert main(["--requests", str(source), "--out", str(tmp_path / "out"), "--target", "tiny"]) == 0
    *_, last = re.findall(r"(\d+\.\d) tok/s", terminal.getvalue())
    [(tokens, whole)] = re.findall(r", (\d+) tokens, (\d+\.\d) tok/s", capsys.readouterr().out)
    looks = round(1000 * int(tokens) / float(whole))
    assert last == f"{1000 * int(tokens) / (looks - 2):.1f}"


def test_a_full_disk_is_a_refusal_that_says_how_to_go_on(read: Any, assemble: Make, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="this system has no limits on files")
    found, path = read(*some(2)), tmp_path / "out"
    done, limits = completed(assemble(), found), resource.getrlimit(resource.RLIMIT_FSIZE)
    with OutFile(path, found) as out:
        out.keep(found[0], done[0], "")
        whole = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, limits[1]))
        try:
            with pytest.raises(SpecdecError, match="cannot be written .*run the same command again"):
                out.keep(found[1], done[1], "")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(path.read_bytes()) == len(whole) + 20
    assert kept(path, found, done) == {0}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_an_out_file_is_an_ordinary_file(make: Any, read: Any, tmp_path: Path) -> None:
    make(tmp_path / "out")
    with pytest.raises(SpecdecError, match="no ordinary file"):
        OutFile(tmp_path / "out", read(*some(1)))


def test_parameters_of_a_line_replace_those_of_the_options_one_by_one(read: Any) -> None:
    defaults = SamplingParams(0.5, 3, 0.9, 7, 11, stop=("x",))
    values: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "stop": ()}
    for name, value in values.items():
        (job,) = read({"prompt": "a", name: list(value) if name == "stop" else value}, defaults=defaults)
        assert job.params == replace(defaults, **{name: value})


def test_a_result_is_on_the_disk_when_the_next_one_runs(
    read: Any, assemble: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, path, synced = read(*some(3, tokens=2)), tmp_path / "out", list[int]()
    done = completed(assemble(), found)
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    with OutFile(path, found) as out:
        for job in found:
            out.keep(job, done[job.index], "é")
            assert synced[-1] == path.stat().st_size
    assert sorted(set(synced)) == synced
    assert len(synced) == 3


def test_bad_words_may_be_texts_beside_token_ids(read: Any) -> None:
    lines = {"prompt": "a", "bad_words": ["no", [1, 2]]}, {"prompt": "a"}
    (mixed, bare) = read(*lines)
    tokenizer = catalog.byte_tokenizer()
    expected = ((1, 2), *(tuple(tokenizer.encode(text)) for text in ("no", " no")))
    assert mixed.request((5,), (), tokenizer).params.bad_words == expected
    assert bare.request((5,), (), tokenizer).params.bad_words == ()
    changed = read({"prompt": "a", "bad_words": ["nor", [1, 2]]})[0]
    assert changed.fingerprint != mixed.fingerprint, "the results of another bad word are not these"


@pytest.mark.slow
def test_grouped_by_length_a_file_takes_fewer_forwards_that_read_fewer_cells(assemble: Make, tmp_path: Path) -> None:
    """Counted, not timed: all rows of a forward read as many cells as the longest of them has."""
    dice = random.Random(0)
    lines = [
        {
            "prompt_ids": [dice.randint(0, 255) for _ in range(dice.randint(4, 200))],
            "max_new_tokens": dice.randint(2, 60),
        }
        for _ in range(60)
    ]
    found = read_jobs(write(tmp_path / "in.jsonl", *lines), SamplingParams(), {})
    engine, read = assemble("llama", max_rows=8, max_length=300).engine(None), list[int]()
    engine.trace = lambda context, *_: read.append(context.rows * (int(context.length_host.max()) // BUCKET + 1))
    costs = []
    for grouped in (True, False):
        read.clear()
        engine.run([])
        with Prompts(catalog.byte_tokenizer(), found) as prompts:
            outputs = {job.id: done.tokens for job, done in run_jobs(engine, prompts, grouped=grouped)}
        costs.append((engine.stats.counts["target_forwards"], sum(read), len(outputs)))
    (forwards, cells, all_of_them), (more, further, _) = costs
    print(f"grouped over not: {forwards / more:.2f} of the forwards, {cells / further:.2f} of the cells")
    assert all_of_them == len(lines)
    assert forwards < more
    assert cells < 0.9 * further
