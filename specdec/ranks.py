"""The processes of one run, started by ``torchrun``: who this one is, what all must do alike, and how each learns of
another's failure.

Every rank runs the same program over its part of the model (``specdec.sharding``). A rank that does anything else would
leave the others waiting in a collective call, or mix its numbers into theirs. So the ranks compare a digest before each
step, compare how each block of work ended, and a thread of each looks after the others. What cannot go on ends every
rank, by name.
"""

from __future__ import annotations

import json
import os
import platform
import selectors
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from specdec.devices import kind_of, pick_device
from specdec.errors import SpecdecError
from specdec.interfaces import Controller
from specdec.lengths import allowed_k, each_k
from specdec.messages import Window
from specdec.request import Request
from specdec.stats import Stats

BEAT = 1.0
"""Seconds between two signs of life."""

SILENCE = 25.0
"""Seconds without a sign of life after which a rank counts as lost: of another machine no process can be seen."""

GRACE = 5.0
"""Seconds that a rank has to fail as another did, before that other is called the failure."""

LONGEST_WAIT = timedelta(minutes=30)
"""The limit of one collective call, and of the ranks' first meeting."""


OTHERWISE = (
    "other requests, windows or tokens; a draft, policy or controller that reads the clock, the rank or an unseeded "
    "random number makes them"
)
"""What a difference between ranks means that is found before a step."""


@dataclass(frozen=True)
class Place:
    """This process among those of its run: its number, how many there are, its number on this machine, and where the
    store is."""

    rank: int
    ranks: int
    local: int
    host: str
    port: int

    @staticmethod
    def of(environment: Mapping[str, str]) -> Place | None:
        """The place that torchrun's variables give; None for a run of one process.

        Raises SpecdecError if some of them are missing or no numbers. Example: ``Place.of(os.environ)``
        """
        if environment.get("WORLD_SIZE", "1") == "1" or "RANK" not in environment:
            return None
        try:
            return Place(
                int(environment["RANK"]),
                int(environment["WORLD_SIZE"]),
                int(environment["LOCAL_RANK"]),
                environment["MASTER_ADDR"],
                int(environment["MASTER_PORT"]),
            )
        except (KeyError, ValueError) as error:
            raise SpecdecError(
                f"RANK and WORLD_SIZE say that this is one of several processes, and {error} is missing or no number; "
                "start them with torchrun --nproc-per-node, or unset RANK and WORLD_SIZE"
            ) from None


class Ranks:
    """The ranks of a run, as one of them sees them. ``join_ranks`` makes the one of a process.

    ``backend`` names the libraries that carry the collective calls. ``abandon`` is called with the reason before
    the process ends, from whichever thread finds it. Numbers of the host are compared over gloo, tensors of a GPU by
    NCCL.
    """

    def __init__(self, place: Place, kind: str, abandon: Callable[[str], None]) -> None:
        self.place, self.abandon = place, abandon
        self.backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        self.points = 0  # blocks of work whose ends were compared
        self.waiting = False  # at the end of one
        self._ending = threading.Lock()
        self._streams = os.dup(1), os.dup(2)  # before pytest captures them
        self._store = self._reach(place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True")
        dist.init_process_group(
            self.backend,
            store=dist.PrefixStore("group", self._store),  # type: ignore[attr-defined]  # torch exports it unsaid
            rank=place.rank,
            world_size=place.ranks,
            timeout=LONGEST_WAIT,
        )
        self._watch = Watch(self, self._reach(False))

    def __deepcopy__(self, memo: object) -> Ranks:
        return self

    def __str__(self) -> str:
        return f"{self.place.ranks} ranks over {self.backend}"

    def _reach(self, master: bool) -> Any:
        place, store = self.place, dist.TCPStore  # type: ignore[attr-defined]  # torch exports it unsaid
        return store(place.host, place.port, place.ranks, master, LONGEST_WAIT, wait_for_workers=False)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes and shows the results."""
        return self.place.rank == 0

    def device(self, name: str) -> torch.device:
        """The device of this rank, of the kind that ``name`` stands for: of CUDA the GPU of its number on this machine.

        Raises SpecdecError for MPS, for a numbered GPU, and if this machine has fewer GPUs than ranks.
        """
        kind = kind_of(name)
        if kind == "mps" or ":" in name:
            raise SpecdecError(
                f"the device {name!r} cannot be shared by {self.place.ranks} ranks; choose cpu, or cuda without "
                "a number: each rank takes the GPU of its own"
            )
        if kind != "cuda":
            return pick_device(name)
        count = torch.cuda.device_count()
        if self.place.local >= count:
            raise SpecdecError(
                f"rank {self.place.rank} is the process {self.place.local} of its machine, which has {count} GPUs; "
                "start as many processes as there are GPUs (torchrun --nproc-per-node)"
            )
        return pick_device(f"cuda:{self.place.local}")

    def decided(self, numbers: Sequence[int]) -> list[int]:
        """Rank 0's ``numbers``, on every rank; a collective call, with as many numbers on each."""
        sent = torch.tensor(numbers, dtype=torch.int64)
        dist.broadcast(sent, 0)
        return sent.tolist()

    def compare(self, what: str, *numbers: int) -> None:
        """End the run, by the name of the rank that differs, unless all ranks are at ``what`` with equal ``numbers``.

        A collective call of some bytes; every call of a run must have as many numbers.
        """
        mine = torch.tensor([crc32(what.encode()), *numbers], dtype=torch.int64)
        every = torch.empty(self.place.ranks, len(mine), dtype=torch.int64)
        dist.all_gather(list(every), mine)
        if not bool((every == mine).all()):
            self.end(diverged(what, every.tolist()))

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """A block of work that must end alike on every rank: on all without an error, or on all with the same refusal.

        Where it does not, each rank ends with the name of the one that failed.
        """
        try:
            yield
        except BaseException as error:
            # A run's time limit is each process's own: after it the ranks are at different places.
            refused = isinstance(error, SpecdecError) and not getattr(error, "alone", False)
            self._meet(what, _told(error), alike=refused)
            raise
        self._meet(what, "")

    def _meet(self, what: str, failure: str, alike: bool = True) -> None:
        """Wait for the others; end the run unless all are at ``what`` with the same ``failure`` or none.

        ``alike``: a failure that all have may be gone on from.
        """
        if failure:
            self._watch.tell(failed=f"{what}: {failure}", point=self.points)
        keys = [f"end/{self.points}/{rank}" for rank in range(self.place.ranks)]
        self._store.set(keys[self.place.rank], json.dumps([what, failure]))
        self.waiting = True
        while not self._all_there(keys):
            pass  # a rank that is lost or failed is found by the watch, which ends this process
        ends = [(str(at), str(text)) for at, text in map(json.loads, self._store.multi_get(keys))]
        if len(set(ends)) > 1 or (failure and not alike):
            self.end(failed_alone(ends))
        self.points += 1
        self.waiting = False

    def _all_there(self, keys: Sequence[str]) -> bool:
        try:
            self._store.wait(list(keys), timedelta(seconds=10))
        except dist.DistStoreError:
            return False
        return True

    def end(self, reason: str) -> NoReturn:
        """Tell the others, call ``abandon``, and leave the process with code 1: no ``finally`` block runs.

        Also from another thread, while this one waits in a collective call. A second call waits for the first.
        """
        self._ending.acquire()  # never released
        try:
            self._watch.tell(ended=reason)
            for stream, number in zip(self._streams, (1, 2), strict=True):
                os.dup2(stream, number)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            if not self.first:
                print(f"\nspecdec-bench, rank {self.place.rank}: {reason}", file=sys.stderr, flush=True)
            self.abandon(reason)
            print(end="", file=sys.stdout, flush=True)
        finally:
            os._exit(1)

    def leave(self, code: int) -> None:
        """Wait until every rank is done, compare the codes with which they end, and stop looking after them.

        Rank 0 has written everything by then; torchrun ends the others of a rank that leaves with a code.
        """
        self._watch.tell(done=True)  # or who leaves first would be missed by the others
        self._meet("the end of the run", f"exit status {code}" if code else "", alike=True)
        self._watch.stop()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it when the first one leaves with a code
        dist.destroy_process_group()


class Watch(threading.Thread):
    """Looks after the other ranks: those of this machine by their processes, all by their signs of life in the store.

    It sleeps until something happens or a sign of life is due.
    """

    def __init__(self, ranks: Ranks, store: Any) -> None:
        super().__init__(name="specdec-ranks", daemon=True)
        place = ranks.place
        self._ranks, self._store, self._lock = ranks, store, threading.Lock()
        self._others = [rank for rank in range(place.ranks) if rank != place.rank]
        self._said: dict[str, Any] = {"beat": 0, "machine": platform.node(), "process": os.getpid()}
        self._lives = {rank: Life(monotonic()) for rank in self._others}
        self._over = self._told_to_end = False
        self.tell()
        self._selector = selectors.DefaultSelector()
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        # torchrun ends the others of a rank that died. The main thread may be in a collective call and see no signal.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for rank, state in self._states().items():
            if state["machine"] == self._said["machine"] and hasattr(os, "pidfd_open"):
                try:
                    self._selector.register(os.pidfd_open(state["process"]), selectors.EVENT_READ, rank)
                except ProcessLookupError:
                    self._lives[rank].gone = True
        self.start()

    def tell(self, **said: Any) -> None:
        """Put what this rank says of itself into the store."""
        with self._lock:
            self._said |= said
            self._store.set(f"rank/{self._ranks.place.rank}", json.dumps(self._said))

    def stop(self) -> None:
        """End the thread."""
        self._over = True
        signal.set_wakeup_fd(-1)
        os.write(self._pipe[1], b"\0")
        self.join()

    def _states(self) -> dict[int, dict[str, Any]]:
        """What the other ranks say of themselves; waits until each has said something."""
        with self._lock:
            found = self._store.multi_get([f"rank/{rank}" for rank in self._others])
        return {rank: json.loads(text) for rank, text in zip(self._others, found, strict=True)}

    def run(self) -> None:
        """Look until ``stop``, and end the process if the run cannot go on."""
        while not self._over:
            for key, _ in self._selector.select(BEAT):
                if key.data is None:
                    self._told_to_end |= bytes([signal.SIGTERM]) in os.read(key.fd, 4096)
                else:
                    self._selector.unregister(key.fileobj)
                    self._lives[key.data].gone = True
            if self._over:
                return
            try:
                self.tell(beat=self._said["beat"] + 1)
                states = self._states()
            except (dist.DistError, RuntimeError) as error:
                self._ranks.end(f"the store of the ranks, which torchrun or rank 0 holds, does not answer: {error}")
            reason = self._reason(states, monotonic())
            if reason or self._told_to_end:
                self._ranks.end(
                    reason or f"rank {self._ranks.place.rank} was told to end (SIGTERM), by torchrun or you"
                )

    def _reason(self, states: Mapping[int, Mapping[str, Any]], now: float) -> str | None:
        arrived = self._ranks.points + self._ranks.waiting
        for rank, state in states.items():
            found = self._lives[rank].lost(rank, state, arrived, now)
            if found:
                return found
        return None


@dataclass
class Life:
    """What a watch knows of one other rank: when it gave its last sign of life, when it was first seen to have failed,
    and whether its process is ``gone``. ``seen`` is in seconds of a clock that only runs forward."""

    seen: float
    beat: int = 0
    failing: float | None = None
    gone: bool = False

    def lost(self, rank: int, state: Mapping[str, Any], arrived: int, now: float) -> str | None:
        """Why the run must end, by what the rank says of itself and by the time ``now``; None if it may go on.

        ``arrived``: how many ends of blocks this rank has reached. One that fails at a block that this rank has
        reached too is compared there.
        """
        if state.get("ended"):
            return str(state["ended"])
        if state["beat"] != self.beat:
            self.seen, self.beat = now, state["beat"]
        failed = state.get("failed") if state.get("point", -1) >= arrived else None
        self.failing = None if failed is None else self.failing or now
        if self.failing is not None and (self.gone or now - self.failing >= GRACE):
            return f"rank {rank} failed: {failed}"
        if state.get("done"):
            return None
        name = f"its process {state['process']} on {state['machine']}"
        if self.gone:
            return (
                f"rank {rank} was killed: {name} ended without a word; look for a signal or the system's memory killer"
            )
        if now - self.seen >= SILENCE:
            return (
                f"rank {rank} was lost: {name} has given no sign of life for {SILENCE:g} s; is it stopped, or is its "
                "network down?"
            )
        return None


_joined: Ranks | None = None


def join_ranks(place: Place, kind: str, abandon: Callable[[str], None] = lambda reason: None) -> Ranks:
    """Meet the other ranks; once in a process. ``kind`` is that of the devices: cpu or cuda.

    Example: ``join_ranks(Place.of(os.environ), "cpu")``
    """
    global _joined
    _joined = Ranks(place, kind, abandon)
    return _joined


def joined_ranks() -> Ranks | None:
    """The ranks that this process has joined; None in a run of one process."""
    return _joined


def on_all_ranks(what: str) -> AbstractContextManager[None]:
    """``Ranks.together`` of the ranks that this process has joined; in a run of one process, nothing.

    Example: ``with on_all_ranks("ngram, prompt 1/3"): runner.run(requests)``
    """
    return nullcontext() if _joined is None else _joined.together(what)


class RankZeroDecides(Controller):
    """Another controller's K, chosen on rank 0 alone: for one that reads the clock, which is another on every rank."""

    deterministic = False

    def __init__(self, inner: Controller, ranks: Ranks) -> None:
        self.inner, self.k_option, self._ranks = inner, inner.k_option, ranks
        self.reads_confidence = inner.reads_confidence

    @property
    def max_k(self) -> int:
        """The other controller's."""
        return self.inner.max_k

    def next_k(self, stats: Stats) -> Sequence[int]:
        """Rank 0's K of each row; a collective call."""
        k = self.inner.next_k(stats) if self._ranks.first else 0
        return self._ranks.decided(
            each_k(allowed_k(k, stats.batch, self.max_k, type(self.inner).__name__), stats.batch)
        )

    def forget(self) -> None:
        """Have the other controller forget."""
        self.inner.forget()


class Lockstep:
    """Compares what an engine does with what it does on the other ranks, before the forwards of every step.

    The digest covers the requests, the windows' shapes and tokens, and what was emitted, accepted and proposed. A
    window's tokens are on the device: their digest comes with the step's one read, and is compared before the next
    step.

    Example: ``Lockstep(ranks).step(window)``
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._digest = ranks, 0

    def begin(self, requests: Sequence[Request]) -> None:
        """Compare the requests that are about to be prefilled."""
        for request in requests:
            self._add(np.array([request.id, *request.prompt], dtype=np.int64))
        self._ranks.compare(f"new requests: {OTHERWISE}", len(requests), 0, self._digest)

    def step(self, window: Window) -> None:
        """Compare the shape of a window, and what was read before."""
        self._ranks.compare(f"a step: {OTHERWISE}", *window.tokens.shape, self._digest)

    def over(self) -> None:
        """Compare what was read until the end of a run."""
        self._ranks.compare(f"the end of the requests: {OTHERWISE}", 0, 0, self._digest)

    @staticmethod
    def column(window: Window) -> Tensor:
        """A digest of each row's tokens, int64 [B, 1]: what is to be read with the step."""
        place = torch.arange(1, window.tokens.shape[1] + 1, device=window.tokens.device)
        return ((window.tokens + 1) * place * place).sum(dim=1, keepdim=True)

    def read(self, packed: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.int64]:
        """Add a step's read to the digest, of which ``steps`` are the places of tokens; returns it without the column.

        What lies past an accepted path was never written, so it is left out.
        """
        accepted = packed[:, steps, None]
        tokens = np.where(np.arange(steps) <= accepted, packed[:, :steps], 0)
        self._add(np.concatenate([tokens, packed[:, steps : steps + 3], packed[:, -1:]], axis=1))
        return packed[:, :-1]

    def _add(self, numbers: npt.NDArray[np.int64]) -> None:
        self._digest = crc32(np.ascontiguousarray(numbers).tobytes(), self._digest)


def diverged(what: str, every: Sequence[Sequence[int]]) -> str:
    """Which ranks differ from the others, in words; of equal halves, from that of rank 0.

    Example: ``diverged("a step", [[1, 4], [1, 5]])`` says that rank 1 diverged.
    """
    kinds = [tuple(one) for one in every]
    counts = Counter(kinds)
    usual = max(kinds, key=lambda kind: counts[kind])  # the first of equals
    odd = [rank for rank, kind in enumerate(kinds) if kind != usual]
    seen = "; ".join(f"rank {rank}: {list(kinds[rank][1:])}" for rank in (kinds.index(usual), *odd))
    return f"{_ranks_named(odd)} diverged from rank {kinds.index(usual)}, found at {what} ({seen})"


def failed_alone(ends: Sequence[tuple[str, str]]) -> str:
    """Which ranks failed, in words, given the block of work that each ended and its error; an empty text is none.

    Example: ``failed_alone([("ngram", ""), ("ngram", "KeyError: 3")])``
    """
    failed = [rank for rank, (_, text) in enumerate(ends) if text]
    rest = [rank for rank, (_, text) in enumerate(ends) if not text]
    if not failed:
        return "the ranks went apart: " + "; ".join(f"rank {rank} was at {what}" for rank, (what, _) in enumerate(ends))
    others = f"; {_ranks_named(rest)} did not fail" if rest else ""
    return "; ".join(f"rank {rank} failed: {ends[rank][0]}: {ends[rank][1]}" for rank in failed) + others


def _ranks_named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, SpecdecError) else f"{type(error).__name__}: {error}"
