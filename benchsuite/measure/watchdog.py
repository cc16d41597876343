"""A limit on the time of one run: code that hangs is ended, and what was measured before is kept."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from time import monotonic
from types import FrameType, TracebackType

from specdec.errors import SpecdecError

LONGEST = 1_000_000
"""The longest limit with its grace, in seconds: less than the clocks of every system take."""


class RunTimeout(SpecdecError):
    """A run took longer than its limit; the text names the run, the limit, the place in the code and what to do.

    ``alone``: each process has a clock of its own, so that ranks are at different places afterwards.
    """

    alone = True


class Watchdog:
    """Limits every run to ``seconds``; None or 0 is no limit, and arms nothing.

    What has not ended by then is ended by a ``RunTimeout``, raised wherever its Python code is. What has not ended
    ``grace`` seconds later either (it swallows exceptions, or does not return from C) ends the process: ``abandon`` is
    called in another thread with a sentence that says what hangs and where, then ``os._exit(1)``: no ``finally`` block
    runs and no buffer is flushed. C code that keeps the interpreter's lock is not ended.

    The exception takes SIGALRM and the main thread. Elsewhere, or where the alarm is another's, the second level is the
    only one. Raises SpecdecError for a limit that is not 0 to ``LONGEST``.

    Example: ``with Watchdog(60, print).limit("ngram, prompt 1/3"): runner.run(requests)``
    """

    def __init__(self, seconds: float | None, abandon: Callable[[str], None], grace: float = 10.0) -> None:
        if seconds is not None and not 0 <= seconds <= LONGEST - grace:
            raise SpecdecError(
                f"the limit of a run is {seconds:g} s; expected 0 (no limit) to {LONGEST - grace:g} s: "
                "choose another --specdec-timeout"
            )
        self.seconds, self.abandon, self.grace = seconds, abandon, grace

    def limit(self, what: str) -> AbstractContextManager[None]:
        """Return the context of one run, which ``what`` names.

        It raises ``RunTimeout`` also at its end, if the run took too long and ended by itself. The handler of SIGALRM
        is afterwards what it was before.
        """
        return _Limit(self, what, self.seconds) if self.seconds else nullcontext()


class _Limit(AbstractContextManager[None]):
    def __init__(self, watchdog: Watchdog, what: str, seconds: float) -> None:
        self._watchdog, self._seconds, self._running = watchdog, seconds, False
        self._says = f"{what}: the run took longer than {seconds:g} s, the limit of --specdec-timeout"

    def __enter__(self) -> None:
        self._deadline = monotonic() + self._seconds
        self._ident = threading.get_ident()
        # It sleeps until its time or until it is cancelled: nothing of it runs beside what is measured.
        self._thread = threading.Timer(self._seconds + self._watchdog.grace, self._end_process)
        self._thread.daemon = True
        self._thread.start()
        self._running = True
        self._rings = _alarm_is_free()
        if self._rings:
            self._before = signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._running = False
        late = monotonic() > self._deadline
        self._thread.cancel()
        if self._rings:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
        # Where the thread is already ending the process, this waits, so that nothing changes what it writes.
        self._thread.join()
        if late and error is None:
            raise RunTimeout(f"{self._says}, and ended by itself; {_ADVICE}")

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if not self._running:
            return
        # An exception in the first or last instructions of the block would leave it armed: they are let through.
        if any(call.f_code in _EDGES for call, _ in traceback.walk_stack(frame)):
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            return
        raise RunTimeout(f"{self._says}, and was ended in {_place(frame)}; {_ADVICE}")

    def _end_process(self) -> None:
        where = _place(sys._current_frames()[self._ident])
        grace = f"{self._watchdog.grace:g} s"
        try:
            self._watchdog.abandon(f"{self._says}, and did not end within {grace} more: it is in {where}; {_ADVICE}")
        except BaseException:  # also SystemExit: the process ends with code 1 and the reason
            traceback.print_exc()
        finally:
            os._exit(1)


_ADVICE = "see why it waits there, leave it out, or set a longer limit (0: none)"

_EDGES = {_Limit.__enter__.__code__, _Limit.__exit__.__code__}


def _place(frame: FrameType | None) -> str:
    """The innermost calls: the last one alone is often a wait of Python's own library."""
    calls = islice(traceback.walk_stack(frame), 3)
    return ", called by ".join(f"{call.f_code.co_name} ({call.f_code.co_filename}:{line})" for call, line in calls)


def _alarm_is_free() -> bool:
    """Whether SIGALRM can be taken for a while and given back.

    There is one timer in a process: one that is pending (``pytest-timeout`` has one) would be lost. A handler that was
    not set from Python (``getsignal`` is None) cannot be put back.
    """
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        and signal.getsignal(signal.SIGALRM) is not None
    )
