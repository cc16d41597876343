"""Work beside the run that is timed: seen in threads, in children and in torch's threads, and told by whose it is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from benchsuite.measure.bystanders import Bystanders
from benchsuite.measure.runners import Outcome
from benchsuite.tests.comparison_rig import OTHER, OURS, PLAIN, Scripted, Surroundings, distinct_units
from specdec import Request, SpecdecError

LONG = 1.0
"""Seconds of work that go on after a run, so many that on a busy machine the run's end is still seen before theirs."""


def burn(seconds: float) -> None:
    """Use so much of the processor's time."""
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


@contextmanager
def burning() -> Iterator[None]:
    """Within it a thread works without end."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=work, name="without-end")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_run_that_leaves_nothing_behind_disturbs_nobody() -> None:
    bystanders = Bystanders()
    bystanders.begin()
    started = threading.Thread(target=burn, args=(0.05,))
    started.start()
    started.join()
    waiting = threading.Event()
    pool = threading.Thread(target=waiting.wait)
    pool.start()
    assert bystanders.end("ours") == {}
    bystanders.begin()
    burn(0.05)
    assert bystanders.end("other") == {}
    waiting.set()
    pool.join()


def test_a_thread_that_works_on_after_its_run_is_named() -> None:
    bystanders = Bystanders()
    bystanders.begin()
    threading.Thread(target=burn, args=(LONG,), name="late").start()
    found = bystanders.end("ours")
    assert list(found) == ["ours"]
    assert found["ours"].startswith("the thread late worked on for ")
    bystanders.begin()
    assert bystanders.end("other") == {}, "the end of the work was waited for"
    bystanders.begin()
    threading.Thread(target=burn, args=(0.1,)).start()
    assert bystanders.end("ours", timed=False) == {}, "a warm-up may end later"


def test_a_thread_that_waits_for_anothers_run_is_named_by_whose_it_is() -> None:
    bystanders, now = Bystanders(), threading.Event()

    def work() -> None:
        now.wait()
        burn(0.1)

    bystanders.begin()
    sleeper = threading.Thread(target=work, name="sleeper")
    sleeper.start()
    assert bystanders.end("ours") == {}
    bystanders.begin()
    now.set()
    sleeper.join()
    found = bystanders.end("plain")
    assert list(found) == ["ours"]
    assert found["ours"].startswith("the thread sleeper worked for 0.")


def test_a_process_that_does_not_become_idle_ends_the_run_by_name() -> None:
    bystanders = Bystanders(patience=0.5)
    bystanders.begin()
    with (
        burning(),
        pytest.raises(SpecdecError, match=r"not become idle, .* after ours, .* by the thread without-end; "),
    ):
        bystanders.end("ours")
    bystanders.begin()
    assert bystanders.end("other") == {}


@contextmanager
def child_without_end() -> Iterator[None]:
    """Within it a child process works without end."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def test_a_child_process_that_works_on_is_named_and_one_from_before_is_nobodys() -> None:
    with child_without_end():
        bystanders = Bystanders(patience=0.5)
        bystanders.begin()
        assert bystanders.end("plain") == {}
        bystanders.begin()
        said = r"does not become idle.*after ours, .*leave out ours"
        with child_without_end(), pytest.raises(SpecdecError, match=said):
            bystanders.end("ours")


def test_torchs_threads_are_given_back_and_who_changed_them_is_named() -> None:
    before = torch.get_num_threads()
    bystanders = Bystanders()
    bystanders.begin()
    torch.set_num_threads(before + 1)
    try:
        found = bystanders.end("ours")
        assert found["ours"].startswith(f"it set torch to {before + 1} threads")
        assert torch.get_num_threads() == before
        torch.set_num_threads(before + 2)
        assert (bystanders.built("factory") or "").startswith(f"it set torch to {before + 2} threads")
        assert (torch.get_num_threads(), bystanders.built("factory")) == (before, None)
    finally:
        torch.set_num_threads(before)


@dataclass
class Acting(Scripted):
    """A scripted runner that does something in its timed runs, which have prompts of more than the warm-up's budget."""

    act: Callable[[], None] = lambda: None

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Do it, and answer."""
        if requests[0].params.max_new_tokens > 8:
            self.act()
        return super().run(requests)


def test_an_arm_whose_work_goes_on_fails_by_name_and_the_others_are_measured() -> None:
    ground = Surroundings()
    ours = Acting(OURS, ground.said, act=threading.Thread(target=burn, args=(LONG,), name="late").start)
    comparison = ground.comparison(Scripted(PLAIN, ground.said), ours, Scripted(OTHER, ground.said))
    comparison.measure(distinct_units(2))
    failed, plain, other = (comparison.series[arm] for arm in (OURS, PLAIN, OTHER))
    assert (failed.error or "").startswith("ngram could not be measured: the thread late worked on for ")
    assert (failed.outcomes, failed.ended) == ([], "refused")
    assert [len(series.outcomes) for series in (plain, other)] == [2, 2]
    assert plain.conditions == {"dtype": "float32", "threads": str(torch.get_num_threads())}


def test_what_was_timed_beside_anothers_work_is_timed_again_without_it() -> None:
    """The thread of one arm works whenever another runs."""
    ground, now = Surroundings(), threading.Event()

    def work() -> None:
        now.wait()
        burn(0.1)

    sleeper = threading.Thread(target=work, name="sleeper")
    started = list[int]()

    def begin() -> None:
        if not started:
            started.append(1)
            sleeper.start()

    def beside() -> None:
        if started and not now.is_set():
            now.set()
            sleeper.join()

    ours = Acting(OURS, ground.said, act=begin)
    plain, other = (Acting(arm, ground.said, act=beside, learns=arm is OTHER) for arm in (PLAIN, OTHER))
    comparison = ground.comparison(plain, ours, other)
    units = distinct_units(3)
    comparison.measure(units)
    series = comparison.series
    assert (series[OURS].error or "").startswith("ngram could not be measured: the thread sleeper worked for 0.")
    assert [one.units for arm, one in series.items() if arm is not OURS] == [units, units]
    assert ground.said.count(("tree", "forget")) == 2, "learners have seen the prompt that is timed again"


def test_a_process_that_is_never_idle_ends_the_comparison() -> None:
    ground = Surroundings()
    with burning(), pytest.raises(SpecdecError, match=r"does not become idle.*the thread without-end"):
        ground.comparison(Scripted(PLAIN, ground.said), bystanders=Bystanders(0.5)).measure(distinct_units(1))
