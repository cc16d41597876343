"""The limit on one run: what hangs is ended, nothing of it stays behind, and what was measured is written."""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import pytest

from benchsuite.measure import watchdog
from benchsuite.measure.watchdog import RunTimeout, Watchdog
from benchsuite.tests.rig import SHORT, Run, as_installed
from specdec import SpecdecError
from specdec.installed import LOAD_PLUGINS

needs_alarm = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no setitimer")


def watch(seconds: float | None) -> Watchdog:
    """A watchdog whose second level would end the tests' process, and say so."""
    return Watchdog(seconds, print, grace=20)


def loop() -> None:
    while True:
        pass


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


def wait() -> None:
    queue.Queue[int]().get()


def left() -> tuple[Any, ...]:
    """What a block may not change: the alarm's handler, its timer, the threads."""
    return signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL), threading.enumerate()


@pytest.mark.slow
@needs_alarm
@pytest.mark.parametrize("hang", [loop, lock, wait])
def test_python_code_that_hangs_is_ended_and_its_place_named(hang: Callable[[], None]) -> None:
    before, place = left(), rf"{hang.__name__} \({__file__}:"
    with pytest.raises(RunTimeout, match=f"^echo: the run took longer than 0.1 s, .*{place}"), watch(0.1).limit("echo"):
        hang()
    assert left() == before


@needs_alarm
def test_an_exception_passes_through_and_disarms() -> None:
    before = left()

    def body() -> None:
        with watch(60).limit("echo"):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
            (own,) = set(threading.enumerate()) - set(before[2])
            assert own.daemon
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert left() == before


@pytest.mark.parametrize("seconds", [None, 0])
def test_without_a_limit_nothing_is_armed(seconds: float | None) -> None:
    before = left()
    with watch(seconds).limit("echo"):
        assert left() == before


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), watchdog.LONGEST])
def test_a_limit_that_no_clock_takes_is_refused(seconds: float) -> None:
    with pytest.raises(SpecdecError, match=r"the limit of a run is .* s; expected 0 \(no limit\) to 999980 s"):
        watch(seconds)


@needs_alarm
def test_the_longest_limit_is_taken() -> None:
    with watch(watchdog.LONGEST - 20).limit("echo"):
        pass


@pytest.fixture
def handler() -> Iterator[Callable[..., None]]:
    """Another party's handler of the alarm, which does nothing."""

    def nothing(number: int, frame: FrameType | None) -> None:
        pass

    before = signal.signal(signal.SIGALRM, nothing)
    yield nothing
    signal.signal(signal.SIGALRM, before)


@needs_alarm
def test_another_handler_is_put_back(handler: Callable[..., None]) -> None:
    with suppress(RunTimeout), watch(0.01).limit("echo"):
        assert signal.getsignal(signal.SIGALRM) != handler
        loop()
    assert signal.getsignal(signal.SIGALRM) == handler


@needs_alarm
def test_a_pending_alarm_of_another_party_stays_theirs(handler: Callable[..., None]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with watch(60).limit("echo"):
            assert signal.getsignal(signal.SIGALRM) == handler
            assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@needs_alarm
def test_a_handler_that_cannot_be_put_back_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with watch(60).limit("echo"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    monkeypatch.undo()
    assert left() == before


@needs_alarm
def test_a_limit_within_a_limit_leaves_the_outer_one_armed() -> None:
    before = left()

    def body() -> None:
        with watch(0.1).limit("outer"):
            for hang in (str, loop):
                with watch(60).limit("inner"):
                    hang()

    with pytest.raises(RunTimeout, match="^outer"):
        body()
    assert left() == before


@needs_alarm
def test_a_run_that_swallows_its_end_and_then_ends_is_no_result() -> None:
    late = pytest.raises(RunTimeout, match="^echo: .* ended by itself")
    with late, watch(0.01).limit("echo"), suppress(RunTimeout):
        loop()


def test_outside_the_main_thread_a_late_run_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = left(), monotonic()

    def body() -> None:
        with watch(60).limit("echo"):
            assert left()[:2] == before[:2], "a signal would reach the main thread"
            monkeypatch.setattr(watchdog, "monotonic", lambda: now + 1000)

    with ThreadPoolExecutor() as pool:
        error = pool.submit(body).exception()
    assert isinstance(error, RunTimeout)
    assert "ended by itself" in str(error)
    assert left() == before


@pytest.mark.slow
@needs_alarm
def test_an_alarm_at_any_instruction_of_entry_or_exit_leaves_nothing_behind(handler: Callable[..., None]) -> None:
    """The alarm rings at the first traced instruction of the two, then at the second, until there is none left."""
    before, tracing = left(), sys.gettrace()
    for number in range(1, 10_000):
        still = number

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal still
            if frame.f_code not in watchdog._EDGES:
                return None
            frame.f_trace_opcodes = True
            still -= 1
            if still == 0:
                signal.raise_signal(signal.SIGALRM)
            return trace

        reached = False
        sys.settrace(trace)
        try:
            # What rings in the entry rings again a millisecond later, perhaps in the block.
            with suppress(RunTimeout), watch(1000).limit("echo"):
                reached = True
        finally:
            sys.settrace(tracing)
        assert reached
        assert left() == before, f"the alarm rang at instruction {number}"
        if still > 0:
            break
    assert number > 50


SWALLOWS = """
        while True:
            with suppress(Exception):
                threading.Event().wait()
"""
ELSEWHERE = """
        threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hang", "elsewhere", "fails"), [(SWALLOWS, False, False), (ELSEWHERE, True, True)], ids=["swallows", "elsewhere"]
)
def test_what_no_exception_ends_is_abandoned(hang: str, elsewhere: bool, fails: bool, run: Run, tmp_path: Path) -> None:
    code = f"""
import pathlib, sys, threading
from contextlib import suppress
from benchsuite.measure.watchdog import Watchdog

def abandon(why):
    pathlib.Path("rows").write_text(why)
    if {fails}:
        sys.exit("the disk is full")

def body():
    with Watchdog(0.1, abandon, grace=0.1).limit("echo"):
        {hang}

if {elsewhere}:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
body()
"""
    done = run("-c", code)
    assert done.returncode == 1
    why = (tmp_path / "rows").read_text()
    assert why.startswith(
        "echo: the run took longer than 0.1 s, the limit of --specdec-timeout, and did not end within"
    )
    assert "body (<string>:" in why
    assert ("the disk is full" in done.stderr) == fails


HANGS = """
import queue
from contextlib import suppress
from specdec import Draft, Window, hookimpl

class Echo(Draft):
    swallowed = ()

    def __init__(self, env, prompts=0):
        self.prompts, self.seen = prompts, set()

    def admit(self, row, request, prompt):
        self.seen.add(tuple(prompt))

    def propose(self, context):
        while len(self.seen) > self.prompts:
            with suppress(self.swallowed):
                queue.Queue().get()
        k = int(context.max_proposals_host.max())
        return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)

class Stubborn(Echo):
    swallowed = Exception

@hookimpl
def specdec_register_drafts(register):
    register("echo", Echo)
    register("stubborn", Stubborn)
"""


@pytest.fixture
def hanging_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A third party's drafts, which hang at every prompt after the first ``prompts``, as pip installs them."""
    monkeypatch.setenv(LOAD_PLUGINS, "specdec-echo")
    return as_installed(HANGS, tmp_path)


Figures = list[dict[str, Any]]

BRIEF = (
    "import sys, pytest; from benchsuite.measure.watchdog import Watchdog; Watchdog.__init__.__defaults__ = (1.0,); "
    "sys.exit(pytest.main(sys.argv[1:]))"
)
"""pytest whose runs have one second more to end than their limit."""


def figures_of(run: Run, hanging_site: str, draft: str, tmp_path: Path) -> tuple[Any, Figures, Figures]:
    """A main job in which ``draft`` hangs at the second workload's second prompt, after a twin of each prompt:
    the process, its rows, pooled."""
    shape = ("--specdec-workload", "chat,reasoning", "--specdec-prompts", "2", "--specdec-max-new-tokens", "6")
    arms = ("--specdec-draft", f"{draft}(prompts=7),ngram", "--specdec-peer", "none")
    limits = ("--specdec-timeout", "3s", "--specdec-results", "out", "--benchmark-quiet")
    done = run("-c", BRIEF, *SHORT[:4], *shape, *arms, *limits, path=hanging_site)
    assert done.returncode == 1, done.stdout + done.stderr
    folder = next((tmp_path / "out").iterdir())
    assert json.loads((folder / "MANIFEST.json").read_text())["complete"] is False
    assert f"results: {folder}" in done.stdout + done.stderr
    written = json.loads((folder / "benchmark.json").read_text())
    return done, written["rows"], written["pooled"]


@needs_alarm
@pytest.mark.slow
def test_a_draft_that_hangs_fails_its_row_and_no_other(run: Run, hanging_site: str, tmp_path: Path) -> None:
    done, rows, _ = figures_of(run, hanging_site, "echo", tmp_path)
    assert "echo(prompts=7) could not be measured: " in done.stdout
    assert "the run took longer than 3 s, the limit of --specdec-timeout, and was ended in " in done.stdout
    assert "propose (" in done.stdout
    failed = [(row["draft"], row["workload"]) for row in rows if row["failure"]]
    assert failed == [("echo(prompts=7)", "reasoning")]
    assert [bool(row["speedup"]) for row in rows] == [not row["failure"] for row in rows]
    assert {("ngram", "chat"), ("ngram", "reasoning")} < {(row["draft"], row["workload"]) for row in rows}


@pytest.mark.slow
def test_a_draft_that_cannot_be_ended_loses_no_finished_row(run: Run, hanging_site: str, tmp_path: Path) -> None:
    done, rows, pooled = figures_of(run, hanging_site, "stubborn", tmp_path)
    assert "did not end within 1 s more" in done.stderr
    assert "propose (" in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("ngram ")], "no table of what was finished"
    assert {row["workload"] for row in rows} == {"chat"}
    assert {"ngram", "stubborn(prompts=7)"} < {row["draft"] for row in rows}
    assert all(row["speedup"] for row in rows)
    # The first prompt of the second workload was timed and not checked: it may not count.
    assert [row["ratios"] for row in pooled] == [row["ratios"] for row in rows]
