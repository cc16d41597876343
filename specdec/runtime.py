"""How an engine runs the parts of a step: op by op, or each part recorded once and replayed.

A part is a function from tensors to tensors that reads nothing on the host. It may write in place to tensors that stay
where they are: the arena and the rows. Steps of one *kind* (rows, width, greedy or not, …) launch the same ops over
tensors of the same shapes, so what was recorded of one can be replayed for every other: on CUDA as a graph, whose
launch costs the host some microseconds for any number of ops.
"""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import torch
from torch import Tensor

from specdec.messages import Window

if TYPE_CHECKING:
    from specdec.interfaces import Backend

T = TypeVar("T")

Replay = Callable[[], None]


class Steps(ABC):
    """The parts of a step of one kind, in the order in which the step calls them."""

    @abstractmethod
    def hold(self, window: Window) -> Window:
        """The window that the parts of this step are called with: ``window``, or its copy without ``confidence``."""

    @abstractmethod
    def part(self, function: Callable[..., T], *given: object) -> T:
        """What ``function(*given)`` returns.

        ``given`` are what ``hold`` returned, earlier results of the step, whole, and objects whose tensors stay where
        they are. The tensors of the result are overwritten by the next step of this kind.
        """


class Runtime(ABC):
    """Makes the ``Steps`` of each kind.

    ``name`` is what tables show. ``whole``: parts may not depend on lengths that the host knows, because a replay would
    go on with those of the first step.
    """

    name: str
    whole: bool

    @abstractmethod
    def steps(self, kind: Hashable) -> Steps:
        """The parts of a kind, at the start of a step."""

    def longest(self, now: int, ever: int) -> int:
        """The bound on lengths with which a part may be called: that of this step, ``now``, or of all, ``ever``."""
        return ever if self.whole else now

    @property
    def recorded(self) -> int:
        """How many kinds have been recorded so far."""
        return 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Why some steps do not run as the name says; empty if all do."""
        return ()


def addresses(*tensors: Tensor) -> Hashable:
    """Where tensors lie and how, for the kind of a part that reads them there: address, shape and strides of each."""
    return tuple((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for tensor in tensors)


class Eager(Runtime, Steps):
    """Runs every part op by op.

    Example: ``Eager().steps(None).part(torch.add, a, b)``
    """

    name, whole = "eager", False

    def steps(self, kind: Hashable) -> Steps:
        """Itself: it keeps nothing of a kind."""
        return self

    def hold(self, window: Window) -> Window:
        """The window itself."""
        return window

    def part(self, function: Callable[..., T], *given: object) -> T:
        """Call the function."""
        return function(*given)


class Recorder(Protocol):
    """Records functions. ``runs``: a function also runs while it is recorded; else it must have run before.

    ``name`` is the runtime's.
    """

    name: str
    runs: bool

    def __call__(self, function: Callable[..., T], given: Sequence[object]) -> tuple[T, Replay]:
        """Record ``function(*given)``; returns its result, which stays where it is, and what computes it again there.

        Raises RuntimeError for a function that cannot be recorded.
        """


@dataclass
class _Recorded:
    """A part: its result, how to compute it again, and the calls of ops that a replay stands for."""

    result: object
    replay: Replay
    calls: Counter[tuple[str, str]]


@dataclass
class Recording(Steps):
    """Parts recorded in the first step of a kind and replayed in all others, over a window that stays where it is.

    If a part cannot be recorded, all parts of the kind run op by op; ``failure`` says why.
    """

    recorder: Recorder
    ops: Backend
    failure: str | None = None
    _window: Window | None = None
    _parts: list[_Recorded] = field(default_factory=list)
    _place: int = 0
    _kept: dict[int, object] = field(default_factory=dict)  # by the id of what the first step got instead

    def start(self) -> Recording:
        """Begin a step; returns itself."""
        self._place, self._kept = 0, {}
        return self

    def hold(self, window: Window) -> Window:
        """Copy the window to where the parts read it."""
        # A draft that is replayed returns one window at every step, and what a window caches is to be computed anew.
        window = Window(window.tokens, window.parents, window.width, window.q)
        if self.failure:
            return window
        if self._window is None:
            self._window = window.copied()
            if self.recorder.runs:
                return self._window
            # The first step reads the tensors that are recorded, so that every kernel is compiled and loaded for their
            # strides and alignment. Its window is another one: what that caches is to be computed in the recording too.
            first = Window(self._window.tokens, self._window.parents, self._window.width, self._window.q)
            self._kept[id(first)] = self._window
            return first
        self._window.copy_(window)
        return self._window

    def part(self, function: Callable[..., T], *given: object) -> T:
        """Replay the next part, or record it."""
        if self.failure:
            return function(*given)
        if self._place == len(self._parts):
            return self._record(function, given)
        part = self._parts[self._place]
        self._place += 1
        part.replay()
        self.ops.add(part.calls)
        return cast(T, part.result)

    def _record(self, function: Callable[..., T], given: Sequence[object]) -> T:
        runs = self.recorder.runs
        first = None if runs else function(*given)
        before = self.ops.ran()
        try:
            kept, replay = self.recorder(function, [self._kept.get(id(one), one) for one in given])
        except RuntimeError as error:
            if runs:
                raise
            self.failure = f"{getattr(function, '__name__', function)} cannot be recorded: {error}"
        calls = self.ops.ran() - before
        if not runs:  # it was called twice, and ran once
            self.ops.add(Counter({name: -count for name, count in calls.items()}))
        if self.failure:
            return cast(T, first)
        result = kept if runs else cast(T, first)
        self._kept[id(result)] = kept
        self._parts.append(_Recorded(kept, replay, calls))
        self._place += 1
        return result


class Graphed(Runtime):
    """Records the parts of each kind of steps once. ``ops`` counts its calls, replayed ones too.

    Example: ``Graphed(CudaGraphs(), ops)``
    """

    whole = True

    def __init__(self, recorder: Recorder, ops: Backend) -> None:
        self.name, self._recorder, self._ops = recorder.name, recorder, ops
        self.kinds: dict[Hashable, Recording] = {}

    def steps(self, kind: Hashable) -> Steps:
        """The parts of a kind, recorded or not yet."""
        if kind not in self.kinds:
            self.kinds[kind] = Recording(self._recorder, self._ops)
        return self.kinds[kind].start()

    @property
    def recorded(self) -> int:
        """The number of kinds, also of those that could not be recorded."""
        return len(self.kinds)

    @property
    def notes(self) -> tuple[str, ...]:
        """Each reason for which a part could not be recorded."""
        return tuple(dict.fromkeys(kind.failure for kind in self.kinds.values() if kind.failure))


class CudaGraphs:
    """Captures the launches of a function, without running them, into a graph.

    All graphs share one pool of memory, until a capture fails: later ones have another. Their results are kept, so that
    no graph's memory is used by another while it holds something.
    """

    name, runs = "graphed", False

    def __init__(self) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, function: Callable[..., T], given: Sequence[object]) -> tuple[T, Replay]:
        """See ``Recorder``. RuntimeError, beside what the capture itself raises, if a kernel of Triton's was loaded in
        it: CUDA refuses that, and the kernel cannot be launched again in this process."""
        with kernels_loaded() as loaded:
            try:
                result, replay = self._captured(function, given)
            except RuntimeError as error:
                if not loaded:
                    raise
                raise RuntimeError(_loaded_within(loaded, f": {error}")) from error
        if loaded:
            raise RuntimeError(_loaded_within(loaded))
        return result, replay

    def _captured(self, function: Callable[..., T], given: Sequence[object]) -> tuple[T, Replay]:
        # torch.cuda.graph() would collect garbage and empty torch's cache before each of hundreds of captures.
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream.wait_stream(current)
        collecting = gc.isenabled()
        gc.disable()  # a tensor that is freed in a capture would end it
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool)
                try:
                    result = function(*given)
                except BaseException as error:
                    self._abandon(graph, error)
                    raise
                try:
                    graph.capture_end()
                except RuntimeError:
                    self._leave_pool()
                    raise
        finally:
            if collecting:
                gc.enable()
        current.wait_stream(self._stream)
        return result, graph.replay

    def _abandon(self, graph: torch.cuda.CUDAGraph, error: BaseException) -> None:
        """End a capture in which ``error`` was raised; what its end raises is added to that as a note."""
        try:
            graph.capture_end()
        except RuntimeError as second:
            error.add_note(f"The end of the capture then raised: {second}")
            self._leave_pool()

    def _leave_pool(self) -> None:
        """Close the pool of a capture whose end raised, and take another pool and stream for the captures to come.

        torch 2.11 leaves the pool open (pytorch#180395): each later capture in it and ``empty_cache`` would raise.
        """
        pool, self._pool, self._stream = self._pool, torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        device = torch.cuda.current_device()
        try:
            torch._C._cuda_endAllocateToPool(device, pool)
        except RuntimeError:
            return  # a later torch has closed it, and counts its users itself
        torch._C._cuda_releasePool(device, pool)


def _loaded_within(loaded: Sequence[str], reason: str = "") -> str:
    names = ", ".join(dict.fromkeys(loaded))
    return (
        f"Triton loaded {names} during the capture{reason}. CUDA loads no module there, and this process cannot launch "
        "the kernel any more: begin a new one, with --specdec-graphs off to see the other rows"
    )


@contextmanager
def kernels_loaded() -> Iterator[list[str]]:
    """Names of Triton's kernels whose machine code is loaded within, in order; empty without Triton.

    Example: ``with kernels_loaded() as names: ops.accept(chance, key)``
    """
    names: list[str] = []
    knobs = getattr(sys.modules.get("triton"), "knobs", None)  # whoever launches a kernel has imported it
    if knobs is None:
        yield names
        return

    def loads(module: object, function: object, name: str, *_: object) -> None:
        names.append(name)

    knobs.runtime.kernel_load_start_hook.add(loads)
    try:
        yield names
    finally:
        knobs.runtime.kernel_load_start_hook.remove(loads)
