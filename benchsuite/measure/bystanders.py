"""Bystanders: threads and child processes that are not the run that is timed, and would slow it down."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from specdec.errors import SpecdecError

PAUSE, LONG_PAUSE = 0.005, 0.05
"""Seconds of one look, the long one where a run has left threads or children: Linux accounts a thread that runs every
4 ms, a child's clock ticks every 10 ms, and on a busy machine either may have to wait for a processor."""

IDLE = 0.02
"""Cores that others may use in a look at an idle process; beside a dozen others a thread that works gets 0.15."""

SPIN = 0.3
"""Seconds for which pools of torch may wait in a loop after their work: libgomp's do for 6 ms, Intel's for 200."""

WORKED = 0.03
"""Processor seconds above which a thread or a child is said to have worked; the clocks of both tick at 10 ms."""

SHARE = 0.05
"""The same as a share of the run beside it."""


@dataclass(frozen=True)
class Bystander:
    """A thread that Python knows, or a child process: its number in the system, and its name.

    ``running``: of a child, that it worked or waited for a processor when it was last looked at.
    """

    number: int
    name: str
    running: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ProcessorTimes:
    """Processor seconds so far: of each worker, and of all but the thread that reads them."""

    at: float
    beside: float
    each: Mapping[Bystander, float]


class Bystanders:
    """What this process and its children do beside the run that is timed.

    A run stands between ``begin`` and ``end``, which names those that disturb the others. A thread or a child belongs
    to the run in which it was first seen, what is built before the runs to the name given to ``built``. Threads that
    Python does not know (pools of torch and of kernels) are seen in the time of the whole process alone; a process that
    has left ours is not seen.

    ``patience``: seconds after which ``end`` gives up waiting for an idle process.
    """

    def __init__(self, patience: float = 10.0) -> None:
        self._patience = patience
        self._owners: dict[Bystander, str] = {}
        self.begin()

    def built(self, owner: str) -> str | None:
        """What appeared since the last call is ``owner``'s. Return what it did to torch's threads, if anything."""
        self._adopt(owner)
        return self._restored()

    def begin(self) -> None:
        """A run begins: what is there already is of an earlier one, or of nobody's."""
        self._adopt("")
        self._torch, self._before = torch.get_num_threads(), self._read()

    def end(self, owner: str, timed: bool = True) -> dict[str, str]:
        """Wait until nothing works beside the calling thread; return whose work disturbs others and how, in a sentence.

        A run that is not ``timed`` may leave work behind that ends by itself. Raises SpecdecError if the process does
        not become idle: nothing can be timed in it.
        """
        self._adopt(owner)
        wall, found = time.monotonic() - self._before.at, dict[str, str]()
        for worker, seconds in self._spent(self._before, max(WORKED, SHARE * wall)).items():
            whose = self._owners[worker]
            if whose not in ("", owner):
                found[whose] = f"{worker.name} worked for {seconds:.2f} s while {owner} ran for {wall:.2f} s"
        changed, left = self._restored(), self._settled(owner)
        if changed:
            found[owner] = changed
        if left and timed:
            found.setdefault(*left)
        return found

    def _restored(self) -> str | None:
        """Give torch its threads back; return by how much they were off."""
        now, usual = torch.get_num_threads(), self._torch
        if now == usual:
            return None
        torch.set_num_threads(usual)
        return (
            f"it set torch to {now} threads, which all other rows share; expected {usual}: leave them alone, or "
            f"start the run with OMP_NUM_THREADS={now}"
        )

    def _settled(self, owner: str) -> tuple[str, str] | None:
        """Wait until the process is idle; return whose work kept it busy for long, if any did."""
        before = self._read()
        while not self._idle():
            wall, used = time.monotonic() - before.at, self._beside() - before.beside
            if wall > self._patience:
                busy = self._spent(before, 0.0)
                owners = " and ".join(dict.fromkeys(filter(None, map(self._owners.__getitem__, busy)))) or owner
                raise SpecdecError(
                    f"the process does not become idle, so that nothing can be timed in it: after {owner}, {used:.2f} "
                    f"s of processor time in {wall:.2f} s beside the main thread, by {_named(busy)}; leave out "
                    f"{owners}, or unset OMP_WAIT_POLICY if torch's threads wait in a loop"
                )
        wall, used = time.monotonic() - before.at, self._beside() - before.beside
        left = {worker: spent for worker, spent in self._spent(before).items() if self._owners[worker]}
        if not left and (wall <= SPIN or used <= WORKED):  # nobody worked; on a busy machine a look alone may take long
            return None
        whose = self._owners[max(left, key=lambda worker: left[worker])] if left else owner
        return whose, (
            f"{_named(left)} worked on for {used:.2f} s of processor time in the {wall:.2f} s after its run: that is "
            "not in its own time, and would slow down what is timed next; expected work that ends with the run"
        )

    def _idle(self) -> bool:
        """Whether nothing else works during a pause of this thread."""
        left = [worker for worker in self._adopt("") if self._owners[worker]]
        start, before = time.monotonic(), self._beside()
        time.sleep(LONG_PAUSE if left else PAUSE)
        cores = (self._beside() - before) / (time.monotonic() - start)
        return cores <= IDLE and not _runnable() and not any(worker.running for worker in left)

    def _beside(self) -> float:
        """Processor seconds so far of other threads and of the children that some run started or that have ended."""
        ended = os.times()
        children = sum(seconds for child, seconds in _children().items() if self._owners.get(child))
        return time.process_time() - time.thread_time() + children + ended.children_user + ended.children_system

    def _adopt(self, owner: str) -> Collection[Bystander]:
        """What is new is the owner's; return all that there are."""
        workers = [*_threads(), *_children()]
        for worker in workers:
            self._owners.setdefault(worker, owner)
        return workers

    def _read(self) -> ProcessorTimes:
        threads = _threads()
        spent = {one.id: one.user_time + one.system_time for one in psutil.Process().threads()} if threads else {}
        each = {worker: spent.get(worker.number, 0.0) for worker in threads} | _children()
        return ProcessorTimes(
            time.monotonic(), self._beside(), {worker: s for worker, s in each.items() if worker in self._owners}
        )

    def _spent(self, before: ProcessorTimes, least: float = WORKED) -> dict[Bystander, float]:
        """Processor seconds since then of each worker that used more than that; of one that has ended, those of all."""
        now = self._read()
        found = {worker: seconds - before.each.get(worker, 0.0) for worker, seconds in now.each.items()}
        found |= dict.fromkeys(before.each.keys() - now.each.keys(), now.beside - before.beside)
        return {worker: seconds for worker, seconds in found.items() if seconds > least}


def _named(workers: Collection[Bystander]) -> str:
    return " and ".join(worker.name for worker in workers) or "threads that Python does not know"


def _threads() -> list[Bystander]:
    """Threads that Python knows, but the main one and this one."""
    own = threading.main_thread(), threading.current_thread()
    return [Bystander(one.native_id or 0, f"the thread {one.name}") for one in threading.enumerate() if one not in own]


def _runnable() -> bool:
    """Whether another thread of this process works or waits for a processor, as on a busy machine; on Linux alone."""
    tasks, own = Path("/proc/self/task"), str(threading.get_native_id())
    for task in tasks.iterdir() if tasks.exists() else ():
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if state == "R" and task.name != own:
            return True
    return False


def _children() -> dict[Bystander, float]:
    """Child processes, and theirs, with the processor seconds that each has used."""
    if hasattr(os, "waitid"):  # to look through all processes takes some ms
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return {}
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            times, running = child.cpu_times(), child.status() == psutil.STATUS_RUNNING
            found[Bystander(child.pid, f"the process {child.pid} ({child.name()})", running)] = (
                times.user + times.system
            )
        except psutil.NoSuchProcess:
            continue
    return found
