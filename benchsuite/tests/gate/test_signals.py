"""Signals of the gate: held back while something is made or removed, and followed at once elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchsuite.gate.processes import ENDED, Signals, held_signals, run_group

SAID = "SIGTERM ended the gate: its launch is stopped and its worktree removed"


def test_a_signal_is_remembered_where_it_is_held_back_and_ends_pytest_once() -> None:
    held = Signals()
    held.end()  # none came
    held(signal.SIGTERM, None)
    assert (held.came, held.open) == (signal.SIGTERM, False)
    with pytest.raises(pytest.exit.Exception) as ended:
        held.end()
    assert (ended.value.msg, ended.value.returncode) == (SAID, ENDED)
    assert ENDED == 128 + signal.SIGTERM
    held.end()  # it was followed
    held(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        held.end()


def test_a_signal_is_followed_at_once_where_it_is_allowed_and_what_follows_is_not_cut_short() -> None:
    held = Signals()

    def followed() -> None:
        with held.allowed():
            assert held.open
            held(signal.SIGTERM, None)

    with pytest.raises(pytest.exit.Exception):
        followed()
    assert not held.open
    held(signal.SIGTERM, None)
    with pytest.raises(pytest.exit.Exception), held.allowed():
        raise AssertionError("one that came before ends it first")
    assert not held.open
    with held.allowed():
        assert held.open
    assert not held.open
    held.open = True
    with pytest.raises(pytest.exit.Exception):
        held(signal.SIGTERM, None)
    assert not held.open, "a second signal must not interrupt what is cleaned up"


@pytest.fixture
def unignored() -> Iterator[None]:
    """Both signals have handlers: SIGINT is ignored by what a shell starts in the background."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, old in before.items():
        signal.signal(number, old)


@pytest.mark.usefixtures("unignored")
def test_signals_are_held_inside_and_as_before_outside() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with held_signals() as held:
        assert [signal.getsignal(number) for number in numbers] == [held, held]
    assert [signal.getsignal(number) for number in numbers] == before

    def signalled() -> None:
        with held_signals() as held:
            os.kill(os.getpid(), signal.SIGTERM)
            assert held.came == signal.SIGTERM

    with pytest.raises(pytest.exit.Exception):
        signalled()
    assert [signal.getsignal(number) for number in numbers] == before
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with held_signals() as held:
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is held
    finally:
        signal.signal(signal.SIGTERM, before[0])


def test_another_thread_leaves_signals_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with held_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_command_runs_in_its_folder_with_its_variables_in_a_group_of_its_own(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['A'], os.getsid(0) == os.getpid()); sys.exit('b')"
    done = run_group([sys.executable, "-S", "-c", code], tmp_path, {"A": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (1, f"{tmp_path} 1 True\n", "b\n")
