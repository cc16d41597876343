"""A file of requests as it runs: its results on the disk, its prompts in one thread, no more than are needed."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import normalizers

from benchsuite.tests.rig import Make
from specdec import SamplingParams, SpecdecError, catalog, jobs
from specdec.jobs import Job, OutFile, Prompts, run_jobs


def text_job(index: int, prompt: Any, most: int = 5) -> Job:
    """A job of this prompt, which may emit ``most`` tokens."""
    return Job(index, f"job {index}", prompt, SamplingParams(max_new_tokens=most), fingerprint=f"print {index}")


def ended_job(**more: Any) -> Any:
    """A completion of three tokens."""
    logprobs = tuple(SimpleNamespace(as_json=lambda number=number: {"logprob": number}) for number in (-1.0, -2.0))
    known = {
        "request": SimpleNamespace(prompt=(1, 2)),
        "tokens": (5, 6, 7),
        "kinds": ("root", "accepted", "accepted"),
        "finish_reason": "length",
        "times": (0.25, 0.5, 1.0),
        "prefill_s": 0.125,
        "logprobs": logprobs,
    }
    return SimpleNamespace(**known | more)


def test_a_result_is_this_line(tmp_path: Path) -> None:
    found, path = [text_job(0, "a"), text_job(4, "b")], tmp_path / "out"
    with OutFile(path, found) as out:
        assert out.done == set()
        out.keep(found[1], ended_job(), "é")
        assert out.done == {4}
        out.keep(found[0], ended_job(logprobs=(), times=(2.0,), finish_reason="stop"), "")
        assert out.done == {0, 4}
        before = path.read_bytes()
        with pytest.raises(ValueError, match="not JSON compliant"):
            out.keep(found[0], ended_job(prefill_s=float("nan")), "")
    assert path.read_bytes() == before
    common = {"prompt_tokens": 2}, {"tokens": [5, 6, 7], "kinds": {"root": 1, "accepted": 2}}
    lines = [
        {
            **{"id": "job 4", "index": 4, "request": "print 4", "finish_reason": "length"},
            **{**common[0], "text": "é", **common[1], "logprobs": [{"logprob": -1.0}, {"logprob": -2.0}]},
            "times": {"prefill_s": 0.125, "first_s": 0.25, "last_s": 1.0},
        },
        {
            **{"id": "job 0", "index": 0, "request": "print 0", "finish_reason": "stop"},
            **{**common[0], "text": "", **common[1]},
            "times": {"prefill_s": 0.125, "first_s": 2.0, "last_s": 2.0},
        },
    ]
    assert before == b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with OutFile(path, found) as again:
        assert again.done == {0, 4}


class FewBytes:
    """A file that takes at most five bytes at once."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return int(self._file.write(data[:5]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_result_is_whole_where_the_system_takes_a_part_at_once(tmp_path: Path) -> None:
    job, path = text_job(0, "a"), tmp_path / "out"
    with OutFile(path, [job]) as out:
        out._file = FewBytes(out._file)  # type: ignore[assignment]
        out.keep(job, ended_job(), "")
    assert json.loads(path.read_bytes())["tokens"] == [5, 6, 7]


@pytest.mark.parametrize("rest", [b"{", b'{"id": ', b'{"id": "job 1", "inde'])
def test_what_a_kill_left_is_cut_off_on_the_disk_too(
    rest: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, path = [text_job(0, "a"), text_job(1, "b")], tmp_path / "out"
    with OutFile(path, found) as out:
        out.keep(found[0], ended_job(), "")
    whole, synced = path.read_bytes(), list[int]()
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    path.write_bytes(whole + rest)
    with OutFile(path, found) as out:
        assert out.done == {0}
    assert (path.read_bytes(), synced) == (whole, [len(whole)])
    with OutFile(path, found):
        assert synced == [len(whole)], "nothing was cut off"


def test_a_file_of_results_is_closed_when_it_is_left_and_when_it_is_refused(tmp_path: Path) -> None:
    """Its lock goes with it, so that the next run need not wait until the object is collected."""
    found, path = [text_job(0, "a")], tmp_path / "out"
    with OutFile(path, found) as out:
        out.keep(found[0], ended_job(), "")
    assert out._file.closed
    with pytest.raises(SpecdecError) as refused:
        OutFile(path, [text_job(0, "a"), text_job(1, "b")][1:])
    assert str(refused.value) == (
        f"the results {str(path)!r} do not belong to these requests: line 1, of the id 'job 0', comes from another "
        "request or other options; name another file, move this one away, or run with the requests and options that "
        "made it"
    )
    with OutFile(path, found), pytest.raises(SpecdecError) as other:
        OutFile(path, found)
    assert str(other.value) == f"another run writes to {str(path)!r}; wait for its end, or name another"
    assert refused.value, "it is still known here, with all that its frames hold"


@pytest.mark.parametrize(
    "line",
    [b"{}", b"[]", b"7", b'{"index": 0}', b'{"request": "print 0"}', b'"index"', b"", b"{"],
)
def test_a_line_without_index_and_request_is_no_result(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(line + b"\n")
    with pytest.raises(SpecdecError, match=": line 1 is no result of this command; name another file"):
        OutFile(path, [text_job(0, "a")])


class AskedTokenizer:
    """A byte tokenizer that notes its calls, and waits in those from ``held`` on until it may go on."""

    def __init__(self, held: int = 10**9) -> None:
        self.inner: Any = catalog.byte_tokenizer()
        self.asked: list[tuple[list[str], dict[str, Any]]] = []
        self.held, self.opened = held, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        if len(self.asked) >= self.held:
            assert self.opened.wait(20)
        self.asked.append((texts, options))
        return self.inner(texts, **options)

    @property
    def sizes(self) -> list[int]:
        """How many texts each call had."""
        return [len(texts) for texts, _ in self.asked]


def all_taken(prompts: Prompts) -> list[tuple[int, tuple[int, ...]]]:
    """Index and token ids of every job."""
    taken: list[tuple[int, tuple[int, ...]]] = []
    while prompts.left:
        taken += [(job.index, ids) for job, ids in prompts.take(wait=True)]
    return taken


TURN_TEMPLATE = (
    "<|turn|>{% for m in messages %}[{{ m['role'] }}|{{ m['content'] }}]{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def test_texts_get_special_tokens_and_rendered_chats_have_theirs() -> None:
    tokenizer: Any = AskedTokenizer()
    tokenizer.inner.chat_template = TURN_TEMPLATE
    chat = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    found = [text_job(0, (7, 8)), text_job(1, "a"), text_job(2, chat), text_job(3, "b"), text_job(4, "a")]
    plain = catalog.byte_tokenizer()
    rendered = "<|turn|>[system|s][user|u]>"
    with Prompts(tokenizer, found, raw=True) as prompts:
        taken = all_taken(prompts)
        assert prompts._known == {}, "no text is kept that nobody needs"
        assert prompts._pool._max_workers == 1, "a tokenizer does not serve two threads at once"
    assert taken == [
        *((0, (7, 8)), (1, tuple(plain.encode("a")))),
        *((2, tuple(plain.encode(rendered))), (3, tuple(plain.encode("b"))), (4, tuple(plain.encode("a")))),
    ]
    quiet = {"verbose": False}
    assert tokenizer.asked == [
        (["a", "b"], {"add_special_tokens": True, **quiet}),
        ([rendered], {"add_special_tokens": False, **quiet}),
    ]
    tokenizer.asked.clear()
    with Prompts(tokenizer, found) as prompts:
        all_taken(prompts)
    texts = ["<|turn|>[user|a]>", rendered, "<|turn|>[user|b]>"]
    assert tokenizer.asked == [(texts, {"add_special_tokens": False, **quiet})]
    tokenizer.asked.clear()
    tokenizer.inner.chat_template = None
    with Prompts(tokenizer, found) as prompts:
        all_taken(prompts)
    assert tokenizer.asked == [(["a", "s\nu", "b"], {"add_special_tokens": True, **quiet})]


def test_two_batches_are_tokenised_ahead_and_what_is_ready_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "TOGETHER", 3)
    tokenizer: Any = AskedTokenizer(held=1)
    found = [text_job(index, (1, 2) if index < 9 else f"{index}") for index in range(21)]
    with Prompts(tokenizer, found, raw=True) as prompts:
        prompts._fly()
        assert list(prompts._flying) == [(slice(0, 3), [], None), (slice(3, 6), [], None)]
        # The first call of the tokenizer is not held, the others are.
        taken = prompts.take(wait=True)
        while len(taken) < 12:
            taken += prompts.take(wait=True)
        assert [job.index for job, _ in taken] == list(range(12))
        assert len(prompts._flying) == 2
        assert prompts.take(wait=False) == []
        assert prompts.left == 9
        tokenizer.opened.set()
        assert [index for index, _ in all_taken(prompts)] == list(range(12, 21))
    assert tokenizer.sizes == [3, 3, 3, 3]
    with Prompts(tokenizer, found[:9]) as prompts:
        assert len(prompts.take(wait=False)) == 9, "ids wait for no thread"
        assert prompts.take(wait=True) == []
    monkeypatch.setattr(jobs, "AHEAD", 6)
    with Prompts(tokenizer, found[:9]) as prompts:
        assert [len(prompts.take(wait=False)) for _ in range(3)] == [6, 3, 0]


def test_leaving_prompts_cancels_what_waits_for_the_thread() -> None:
    asked: list[dict[str, bool]] = []
    tokenizer: Any = AskedTokenizer()
    prompts = Prompts(tokenizer, [text_job(0, "a")])
    pool, prompts._pool = prompts._pool, SimpleNamespace(shutdown=lambda **given: asked.append(given))  # type: ignore[assignment]
    with prompts:
        assert asked == []
    assert asked == [{"cancel_futures": True}]
    pool.shutdown()


LONGEST: list[tuple[list[tuple[int, int]], int | None, int, list[int]]] = [
    # Bytes and most tokens of each job; the model's limit; the result; texts in each call of the tokenizer.
    ([], None, 0, []),
    ([(10, 5)], None, 23, []),  # ten bytes, and eight for special tokens
    ([(37, 5)], None, 50, []),  # as much as costs nothing
    ([(38, 5)], None, 43, [1]),
    ([(20, 5), (100, 5), (60, 5), (90, 5)], None, 105, [2]),
    ([(20, 50), (100, 5), (60, 5), (90, 5)], None, 105, [2]),
    ([(60, 5), (62, 5), (58, 5)], None, 67, [2, 1]),  # the third may have 58 + 8 + 5
    ([(60, 5), (62, 5), (53, 5)], None, 67, [2]),
    ([(60, 5), (62, 5), (54, 5)], None, 67, [2]),
    ([(60, 5), (62, 5), (55, 5)], None, 67, [2, 1]),
    ([(10, 5), (20, 5)], None, 33, []),
    ([(10, 5), (20, 5)], 30, 30, []),
    ([(10, 5), (22, 5)], 30, 27, [1]),  # at most 30 tokens, which would not fit
    ([(10, 5), (21, 5)], 30, 30, []),  # at most 29, which fit
    ([(60, 5), (62, 50)], 100, 100, [2]),
    ([(60, 5), (62, 50), (61, 40), (10, 5)], 200, 112, [2]),
    ([(92, 5), (1, 5)], 100, 97, [1]),
]


def longest_case(lines: list[tuple[int, int]]) -> list[Job]:
    """Jobs of texts of so many bytes."""
    return [text_job(index, "a" * (size - 1) + "bcdefghij"[index], most) for index, (size, most) in enumerate(lines)]


@pytest.mark.parametrize(("lines", "limit", "result", "calls"), LONGEST)
def test_only_texts_that_may_be_the_longest_are_tokenised_to_know_it(
    lines: list[tuple[int, int]], limit: int | None, result: int, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "TOGETHER", 2)
    monkeypatch.setattr(jobs, "ROOM", 50)
    tokenizer: Any = AskedTokenizer()
    with Prompts(tokenizer, longest_case(lines), raw=True) as prompts:
        assert (prompts.longest(limit), tokenizer.sizes) == (result, calls)
        again = prompts.longest(limit)
        assert max((size + most for size, most in lines), default=0) <= again or again == limit
        assert len(all_taken(prompts)) == len(lines)
    assert sum(tokenizer.sizes) == len(lines), "each text once"


def test_token_ids_are_counted_and_a_normaliser_tells_nothing_of_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ROOM", 50)
    tokenizer: Any = AskedTokenizer()
    with Prompts(tokenizer, [text_job(0, (1,) * 70), text_job(1, "a" * 10)], raw=True) as prompts:
        assert prompts.longest(None) == 75
        assert prompts.longest(71) == 71
        with pytest.raises(SpecdecError) as refused:
            prompts.longest(70)
    assert str(refused.value) == (
        "line 1: the prompt has 70 tokens and the model 70 positions, of which the output needs one at least: at most "
        "69 fit; shorten it"
    )
    assert tokenizer.sizes == []
    for change in ("a normaliser", "no tokenizer of ours"):
        tokenizer = AskedTokenizer()
        if change == "a normaliser":
            tokenizer.inner.backend_tokenizer.normalizer = normalizers.Prepend("zzzz")
            longer = 4
        else:
            tokenizer.backend_tokenizer, longer = None, 0
        with Prompts(tokenizer, [text_job(0, "a" * 100), text_job(1, "b" * 10)], raw=True) as prompts:
            assert prompts.longest(None) == 105 + longer
        assert tokenizer.sizes == [2]


def test_what_is_taken_fits_what_runs(assemble: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few requests wait in the engine as it has rows, and as few outside as are looked at for the longest."""
    monkeypatch.setattr(jobs, "TOGETHER", 4)
    monkeypatch.setattr(jobs, "AHEAD", 6)
    engine = assemble(max_rows=2).engine(None)
    tokenizer: Any = AskedTokenizer()
    found = [text_job(index, (5,) * (1 + index % 3) if index % 2 else f"{index}", 1 + index % 2) for index in range(30)]
    counts = {"taken": 0, "submitted": 0, "ended": 0, "steps": 0, "stepped": 0}
    order: list[int] = []
    with Prompts(tokenizer, found, raw=True) as prompts:
        take, submit, step = prompts.take, engine.submit, engine.step

        def taking(wait: bool) -> Any:
            ready, begun = counts["taken"] - counts["submitted"], counts["submitted"] - counts["ended"]
            assert ready < 6
            assert wait == (ready == 0 and begun == 0)
            some = take(wait=True)  # whether a thread is done must not decide what is counted
            counts["taken"] += len(some)
            return some

        def submitting(requests: Any, closed: bool = False) -> Any:
            assert engine.waiting < engine.max_rows
            counts["submitted"] += len(requests)
            order.extend(request.id for request in requests)
            return submit(requests, closed)

        def stepping() -> None:
            counts["steps"] += 1
            step()

        monkeypatch.setattr(prompts, "take", taking)
        monkeypatch.setattr(engine, "submit", submitting)
        monkeypatch.setattr(engine, "step", stepping)

        def stepped() -> None:
            counts["stepped"] += 1

        outputs = {}
        for job, done in run_jobs(engine, prompts, stepped=stepped):
            counts["ended"] += 1
            outputs[job.index] = len(done.tokens)
        assert not engine.finished
    assert outputs == {index: 1 + index % 2 for index in range(30)}
    assert (counts["taken"], counts["submitted"], counts["steps"]) == (30, 30, counts["stepped"])
    assert sorted(order) == list(range(30))


def test_requests_go_in_the_order_of_the_file_only_if_that_is_asked_for(assemble: Make) -> None:
    build = assemble(max_rows=1)
    found = [text_job(0, (5,), 1), text_job(1, (5,), 9), text_job(2, (5,) * 20, 3)]
    tokenizer: Any = AskedTokenizer()
    cases: list[tuple[Any, list[int]]] = [
        ({}, [2, 1, 0]),
        ({"grouped": True}, [2, 1, 0]),
        ({"grouped": False}, [0, 1, 2]),
    ]
    for given, order in cases:
        with Prompts(tokenizer, found) as prompts:
            assert [job.index for job, _ in run_jobs(build.engine(None), prompts, **given)] == order


def test_a_controller_is_told_when_the_last_job_was_submitted(assemble: Make) -> None:
    """Six jobs in two rows: further ones may come before the last is in the engine's queue, and none after it."""
    engine, told, ended = assemble(max_rows=2).engine(None), list[tuple[int, bool]](), list[Job]()

    def stepped() -> None:
        submitted = len(ended) + len(engine.finished) + len(engine.rows.live) + engine.waiting
        told.append((submitted, engine.stats.closed))

    tokenizer: Any = AskedTokenizer()
    with Prompts(tokenizer, [text_job(index, (5,), 2 + index) for index in range(6)]) as prompts:
        for job, _ in run_jobs(engine, prompts, stepped=stepped):
            ended.append(job)
    assert {closed for _, closed in told} == {False, True}
    assert all(closed == (submitted == 6) for submitted, closed in told)


def test_a_request_that_the_engine_refuses_is_named_by_its_line(assemble: Make) -> None:
    engine = assemble(max_rows=1).engine(None)
    engine.submit = lambda requests, closed=False: (_ for _ in ()).throw(SpecdecError("no"))  # type: ignore[method-assign]
    tokenizer: Any = AskedTokenizer()
    with Prompts(tokenizer, [text_job(4, "a")]) as prompts, pytest.raises(SpecdecError, match="^line 5: no$"):
        next(run_jobs(engine, prompts))
    assert deque(engine.finished) == deque()
