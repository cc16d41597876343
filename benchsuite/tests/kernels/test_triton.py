"""The triton backend on small cases, interpreted; what it launches; what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from benchsuite.conformance.ops import cases
from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import CASES, ONE, SMALL, Case
from benchsuite.tests.rig import INTERPRETS
from benchsuite.workshop.native.guarded import Guarded
from specdec import SpecdecError, Window
from specdec.ops import Ops
from specdec_kernels import triton
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton

QUICK = {
    "linear": ("int8-odd",),
    "rms_norm": ("empty", "single"),
    "emit": ("1x1", "cut", "gaps"),
    "silu_mul": ("empty", "single", "flat"),
    "tree_sample": ("gaps", "large", "equal-noise-residual", "1x1x7", "equal-noise"),
    "block_sample": ("gaps", "large", "equal-noise-residual", "1x1x7", "equal-noise"),
    "rejection_sample": ("gaps", "large", "equal-noise-residual", "1x1x7", "equal-noise"),
    "tree_attention": ("gaps", "softcap", "garbage"),
    "verify_prefix": ("gaps", "tree-32x16", "1x1", "1x5", "tree-1x2"),
    "kv_plan": ("1", "gaps"),
    "kv_compact": ("nothing", "overlap", "ring", "swap", "gaps"),
    "kv_append": ("single", "gaps", "empty"),
    "sample": ("5001", "large", "7", "258-argmax", "tie", "tied-3x33", "gaps", "1-argmax", "equal-noise", "filtered"),
    "accept": ("many", "gaps"),
    "rotary": ("empty",),
    "noise_keys": ("number", "slots", "rows", "many"),
}
"""Of the cases of all backends those that the interpreter runs in a tenth of a second."""

DEAR = {
    "rotary": ("small-shared",),
    "silu_mul": ("axes",),
    "decoder_layers": ("small-int8", "small-int4"),
    "tree_attention": ("small-17", "gaps", "softcap", "garbage"),
    "rejection_sample": ("small-equal-1", "small-near-0.2", "small-broken-1", "full", "gaps"),
    "block_sample": ("small-equal-1", "small-near-0.2", "small-broken-1", "small-certain-1", "gaps"),
    "tree_sample": ("small-equal-1", "small-near-0.2", "small-certain-1", "gaps"),
    "sample": ("5001", "four-axes", "filtered"),
    "verify_prefix": ("tree-32x16",),
    "noise_keys": ("many",),
}
"""Of these and the small ones those that take longest and hold least that no other does: no quick run has them."""

LONGER = {
    "linear": ("int8-rows-77", "int4-rows-77", "int8-tail", "int4-tail", "wide-int8", "wide-int4"),
    "rms_norm": ("odd", "whole", "gemma", "strided"),
    "rotary": ("single", "odd", "gaps"),
    "silu_mul": ("small", "whole", "one-row"),
    "kv_append": ("ragged", "ring"),
    "kv_compact": ("single",),
    "emit": ("9x5",),
    "kv_plan": ("5", "many", "ring-3"),
    "tree_attention": (
        *("single", "one-cell", "5x128", "batch", "ring", "queries-13", "maximal", "used"),
        *("head-8", "head-256", "large-heads", "odd-heads"),
    ),
    "decoder_layers": ("bias", "odd-heads"),
    "sample": ("1", "258", "certain", "steep", "flat", "tied-noisy-3"),
    "tree_sample": ("9x20x11", "chain"),
}
"""Those that hold a size, a layout or a dtype that none of the quick ones has: several blocks of rows and of columns,
parts of an arena, wide heads. The interpreter runs them in up to a second, so each has one of its dtypes in turn."""


def _in_four_axes(g: Generator, dtype: torch.dtype) -> Tensor:
    """[2, 3, 4, 9]: no two axes have one size, and none lies in the order of its place."""
    return torch.randn(3, 10, 2, 4, generator=g).to(dtype).permute(2, 0, 3, 1)[..., :9]


def _rows_of_one(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    return cases._random(g, dtype, 5, 40)[:, :33], cases._keys(g, 5)


def _rows_of_rows(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    return cases._random(g, dtype, 2, 2, 3, 33), cases._keys(g, 2, 2, 3)


def _noise_of_a_draw(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    return cases._keys(g, 3), torch.randint(2**31, (3, 5), generator=g), 7


def _cells_of_seven(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    _, _, source, target = cases._compact([0, 2, 5], [0, 1, 2])(g, dtype)
    return *(cases._random(g, dtype, 2, 3, 20, 7) for _ in range(2)), source, target


def _impossible(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    return torch.full((1, 1, 4 * 4096 + 1), -torch.inf), None


BOUNDS = [
    Case("rms_norm", "axes", lambda g, d: (_in_four_axes(g, d), cases._random(g, d, 9), 1e-5, 0.5), ONE),
    Case("silu_mul", "axes", lambda g, d: (_in_four_axes(g, d), _in_four_axes(g, d)), ONE),
    Case("silu_mul", "block-more", cases._silu(1, 1025), ONE),
    Case("sample", "two-axes", _rows_of_one, ONE),
    Case("sample", "four-axes", _rows_of_rows, ONE),
    Case("sample", "five-parts-impossible", _impossible, ONE),
    Case("accept", "block-more", cases._coins(257, 1), ONE),
    Case("noise_keys", "a-draw", _noise_of_a_draw, ONE),
    Case("noise_keys", "block-more", cases._noise(27, 19), ONE),
    Case("emit", "wide", cases._emit(3, 9), ONE),
    Case("kv_plan", "span-1", cases._plan(4, span=1, capacity=9, look=9, tree=True), ONE),
    Case("kv_plan", "limit-1", cases._plan(3, capacity=24, look=20, limit=1), ONE),
    Case("kv_compact", "one", cases._compact([3], [0]), ONE),
    Case("kv_compact", "seven", _cells_of_seven, ONE),
    Case("rejection_sample", "full", cases._rejection(12, 3, 9, "near"), ONE),
]
"""Sizes at which a launch gets one more block, arguments that no other case has, layouts of every number of axes."""


class _Watch:
    """Watches an interpreter: lanes lie in the tensors of the launch, and a lane without a value holds anything.

    A load's lane that its mask leaves out, and for which it names no other value, is NaN or a huge number in turn, as
    on a GPU it may be. ``events`` are what the programs did: (what, tensor, whether one number), of tensors their place
    among the arguments.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        interpreter = import_module("triton.runtime.interpreter")
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        self.events: list[tuple[Any, ...]] = []
        self._tensors: list[tuple[int, int]] = []
        launch, load, store = executor.__call__, builder.create_masked_load, builder.create_masked_store
        dot, add = builder.create_dot, builder.create_atomic_rmw

        def launched(this: Any, *given: Any, **named: Any) -> Any:
            self._tensors = [_extent(value) for value in given if isinstance(value, Tensor)]
            return launch(this, *given, **named)

        def loaded(this: Any, places: Any, mask: Any, other: Any, policy: Any, *more: Any) -> Any:
            self._note("load", places, mask)
            found = load(this, places, mask, other, policy, *more)
            if other is None and np.size(places.data) > 1:  # of one number, 0 is passed on as if there were no value
                _spoil_lanes(found, places.get_element_ty().is_floating(), ~np.asarray(mask.data))
            return found

        def stored(this: Any, places: Any, value: Any, mask: Any, *more: Any) -> Any:
            self._note("store", places, mask)
            return store(this, places, value, mask, *more)

        def multiplied(this: Any, a: Any, b: Any, total: Any, precision: Any, *more: Any) -> Any:
            self.events.append(("dot", str(precision)))
            return dot(this, a, b, total, precision, *more)

        def added(this: Any, how: Any, places: Any, value: Any, mask: Any, *more: Any) -> Any:
            self._note("add", places, mask)
            return add(this, how, places, value, mask, *more)

        monkeypatch.setattr(executor, "__call__", launched)
        for name, watched in (
            *(("masked_load", loaded), ("masked_store", stored), ("dot", multiplied), ("atomic_rmw", added)),
            ("barrier", lambda this: self.events.append(("barrier",))),
        ):
            monkeypatch.setattr(builder, f"create_{name}", watched)

    def _note(self, what: str, places: Any, mask: Any) -> None:
        asked = np.asarray(places.data)[np.asarray(mask.data, dtype=bool)].reshape(-1).astype(np.int64)
        homes = [index for index, (start, end) in enumerate(self._tensors) if _within(asked, start, end)]
        assert homes, f"a {what} outside of the tensors"
        self.events.append((what, homes[0], np.size(places.data) == 1))


def _extent(tensor: Tensor) -> tuple[int, int]:
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach if tensor.numel() else 0) * tensor.element_size()


def _within(places: Any, start: int, end: int) -> bool:
    return not len(places) or bool(places.min() >= start and places.max() < end)


def _spoil_lanes(found: Any, floats: bool, lanes: Any) -> None:
    """Set lanes to NaN, a huge number and a huge negative one in turn; integers to the latter two."""
    size = found.data.dtype.itemsize
    kinds = (b"\xff" if floats else b"\x7f", b"\x7f", b"\xfe")
    lanes = np.broadcast_to(lanes, found.data.shape)
    values = np.array([np.frombuffer(kind * size, dtype=found.data.dtype)[0] for kind in kinds])
    turns = np.arange(found.data.size).reshape(found.data.shape) % len(kinds)
    found.data = np.where(lanes, values[turns], found.data)


@pytest.fixture
def lanes_watched(monkeypatch: pytest.MonkeyPatch) -> _Watch:
    """What the programs of all launches do."""
    return _Watch(monkeypatch)


def _cases() -> Iterator[Any]:
    quick = [*SMALL, *BOUNDS, *(case for case in CASES if case.name in QUICK.get(case.op, ()))]
    for case in quick:
        marks = [pytest.mark.slow] if case.name in DEAR.get(case.op, ()) else []
        yield pytest.param(case, case.dtypes, id=f"{case.op}-{case.name}", marks=marks)
    longer = (case for case in CASES if case.name in LONGER.get(case.op, ()))
    for index, case in enumerate(longer):
        turn = case.dtypes[index % len(case.dtypes)]
        yield pytest.param(case, (turn,), id=f"{case.op}-{case.name}", marks=pytest.mark.slow)


@pytest.mark.parametrize(("case", "dtypes"), [*_cases()])
@INTERPRETS
def test_an_op_agrees_with_the_reference_and_uses_nothing_outside(
    case: Case, dtypes: tuple[torch.dtype, ...], lanes_watched: _Watch
) -> None:
    ops = Ops([Triton(), Reference()])
    for dtype in dtypes:
        with Guarded() as guard:
            assert (wrong := disagreement(ops, case, dtype)) is None, f"{dtype}: {wrong}"
        assert not guard.written(), f"{dtype}: written beside tensors of {guard.written()} numbers"
    assert {name for (op, name), _ in ops.ran().items() if op == case.op} == {"triton"}
    assert lanes_watched.events or "empty" in case.name
    assert {event[1] for event in lanes_watched.events if event[0] == "dot"} <= {"INPUT_PRECISION.IEEE"}


@pytest.mark.parametrize("named", [QUICK, LONGER, DEAR], ids=["quick", "longer", "dear"])
def test_every_name_of_these_tables_is_that_of_a_case(named: dict[str, tuple[str, ...]]) -> None:
    there = {(case.op, case.name) for case in (*CASES, *SMALL, *BOUNDS)}
    assert {(op, name) for op, names in named.items() for name in names} <= there


def _waits(events: list[tuple[Any, ...]], tensors: set[int]) -> str:
    """Loads, stores and additions of some tensors, and barriers: a letter for each run of the same."""
    kinds = [event[0][0] for event in events if event == ("barrier",) or (event[0] in LANES and event[1] in tensors)]
    return "".join(kind for index, kind in enumerate(kinds) if not index or kind != kinds[index - 1])


LANES = ("load", "store", "add")


@INTERPRETS
def test_what_other_programs_left_is_not_read_from_a_multiprocessors_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of caches an interpreter shows nothing: what its loads are told is noted."""
    language, told = import_module("triton.language"), list[str]()
    load = language.load

    def loaded(*given: Any, **named: Any) -> Any:
        told.append(named.get("cache_modifier", ""))
        return load(*given, **named)

    vars(loaded).update(vars(load))
    monkeypatch.setattr(language, "load", loaded)
    g = Generator().manual_seed(3)
    query, (keys, values) = torch.randn(1, 1, 1, 4, generator=g), torch.randn(2, 1, 1, 300, 4, generator=g)
    Triton().tree_attention(query, keys, values, torch.zeros(1, 1, 1, 300), 0.5, None)
    parts, of_a_part = 2, 3
    assert told[-parts * of_a_part :] == [".cg"] * parts * of_a_part
    assert set(told[: -parts * of_a_part]) == {""}


@INTERPRETS
def test_what_one_thread_reads_and_another_writes_has_a_barrier_between(lanes_watched: _Watch) -> None:
    """Threads of a program run at once, of which an interpreter shows nothing."""
    backend, g = Triton(), Generator().manual_seed(3)
    arena = [torch.randn(1, 1, 8, 4, generator=g) for _ in range(2)]
    backend.kv_compact(arena[0], arena[1], torch.tensor([[3, 1]]), torch.tensor([[1, 3]]))
    assert _waits(lanes_watched.events, {0, 1}) == "lbs"
    lanes_watched.events.clear()
    query, (keys, values) = torch.randn(1, 1, 1, 4, generator=g), torch.randn(2, 1, 1, 300, 4, generator=g)
    backend.tree_attention(query, keys, values, torch.zeros(1, 1, 1, 300), 0.5, None)
    mixes, marks, arrivals = 7, 8, 9
    assert _waits(lanes_watched.events, {mixes, marks, arrivals}) == "sba" + "sbals"
    lanes_watched.events.clear()
    p = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(1, 3, 4).contiguous()
    window = Window(torch.tensor([[0, 2, 3]]), torch.tensor([[-1, 0, 0]]), torch.tensor([3]))
    verdict = backend.tree_sample(p, window, *torch.zeros(3, 1, 3, dtype=torch.int64))
    assert verdict.num_accepted.tolist() == [0]
    own, scratch = 0, 8
    letters = "".join(
        "p" if event[0] == "load" and event[2] else event[0][0]
        for event in lanes_watched.events
        if event == ("barrier",)
        or (event[0] == "load" and event[1] in (own, scratch) and event[2])
        or (event[0] == "store" and event[1] == scratch)
    )
    assert letters == "pbsb" + "pbsb", "a refusal is between barriers"


def test_counters_stay_where_they_are_for_as_many_places() -> None:
    backend, device = Triton(), torch.device("cpu")
    five = backend._counters(5, device)
    assert (five.tolist(), five.dtype) == ([0] * 8, torch.int32)
    assert backend._counters(8, device) is five
    assert backend._counters(9, device) is not five
    assert backend._counters(6, device) is five


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    there, gpu = [True], [False]
    monkeypatch.setattr(triton, "find_spec", lambda name: name if there[0] and name == "triton" else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu[0])
    monkeypatch.delenv("SPECDEC_FORCE_PY", raising=False)
    backend = Triton()
    assert (backend.priority, backend.interpreted, backend._device) == (50, False, "cuda")
    assert backend.missing() == "there is no CUDA device; TRITON_INTERPRET=1 runs its kernels on the CPU, slowly"
    gpu[0] = True
    assert backend.missing() is None
    there[0] = False
    assert backend.missing() == "triton is not installed; pip install 'specdec-bench[triton]'"
    monkeypatch.setenv("SPECDEC_FORCE_PY", "1")
    assert str(backend.missing()).startswith("SPECDEC_FORCE_PY=1 forbids compiled kernels")
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not Triton().interpreted
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delenv("SPECDEC_FORCE_PY")
    there[0], gpu[0] = True, False
    slow = Triton()
    assert (slow.priority, slow.interpreted, slow._device, slow.missing()) == (5, True, "cpu", None)
    assert (Triton.name, Triton.devices) == ("triton", ("cuda",))


def test_an_exact_one_promises_rows_that_are_the_same_beside_any_others() -> None:
    assert Triton().row_invariant == frozenset()
    decoder = {"kv_append", "kv_compact", "tree_attention", "linear", "rms_norm", "rotary", "silu_mul"}
    assert Triton(exact=True).row_invariant == {*decoder, "decoder_layers", "kv_plan"}
    with pytest.raises(SpecdecError) as refused:
        Triton(exact=1)  # type: ignore[arg-type]
    assert str(refused.value) == "exact is 1; expected True or False"


def _given(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> Any:
    """What a backend asks a tensor for, on a GPU."""

    class Given(Tensor):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device(device)

    return torch.empty(shape, dtype=dtype).as_subclass(Given)


HALF, INT = torch.bfloat16, torch.int64
FLOATS = (torch.float32, HALF, torch.float16)
DRAWS = ("sample", "accept", "rejection_sample", "block_sample", "tree_sample")
COUNTS = ("noise_keys", "verify_prefix", "emit", "kv_plan")
TAKES: list[tuple[str, tuple[Any, ...], bool]] = [
    *((op, (_given(2, 9),), True) for op in DRAWS),
    *((op, (_given(2, 9, dtype=HALF),), False) for op in DRAWS),
    *((op, (_given(2, 9, dtype=INT),), True) for op in COUNTS),
    *((op, (_given(2, 9),), False) for op in COUNTS),
    *((op, (_given(2, 3, 4, 8, dtype=d),), True) for op in ("kv_append", "kv_compact", "silu_mul") for d in FLOATS),
    *((op, (_given(2, 3, 4, 8, dtype=INT),), False) for op in ("kv_append", "kv_compact", "silu_mul")),
    ("process", (_given(2, 9),), False),
    *((op, (_given(2, 9, device="cpu"),), False) for op in ("sample", "silu_mul")),
    ("silu_mul", (_given(2, 9), _given(2, 9, device="cuda:1")), False),
    ("silu_mul", (_given(2, 9), _given(2, 9, dtype=HALF)), False),
    ("rms_norm", (_given(1, 16384),), True),
    ("rms_norm", (_given(1, 16385),), False),
    ("silu_mul", (_given(1, 16385),), True),
    ("tree_attention", (_given(1, 6, 2, 256), _given(1, 2, 9, 256)), True),
    ("tree_attention", (_given(1, 6, 2, 257), _given(1, 2, 9, 257)), False),
    ("tree_attention", (_given(1, 6, 2, 8), _given(1, 4, 9, 8)), False),
    ("rotary", (_given(1, 6, 2, 8), _given(1, 2, 8)), True),
    ("rotary", (_given(1, 6, 2, 7), _given(1, 2, 7)), False),
    ("rotary", (_given(1, 6, 2, 8), _given(1, 2, 4)), False),
    ("decoder_layers", (_given(2, 8, 9), _given(4, 9)), True),
    ("decoder_layers", (_given(1, 17, 9), _given(4, 9)), False),
    ("decoder_layers", (_given(2, 8, 9), _given(4, 9, dtype=HALF)), False),
    ("linear", (_given(2, 9), _given(4, 9)), False),
]


@pytest.mark.parametrize("number", range(len(TAKES)), ids=lambda n: f"{TAKES[n][0]}-{n}")
def test_it_takes_what_fits_a_program(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    op, tensors, taken = TAKES[number]
    assert Triton().takes(op, *tensors) is taken
    if op in ("linear", "decoder_layers"):
        own = tensors[1].dtype == tensors[0].dtype
        assert Triton(exact=True).takes(op, *tensors) is own
