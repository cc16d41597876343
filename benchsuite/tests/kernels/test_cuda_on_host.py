"""The cuda backend and every line of its kernels, run on the host: results, what is launched, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.guards.fake_cuda import PROCESSORS
from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import CASES, FLOAT16_CASES, LAUNCHED, TAILS, Case
from benchsuite.tests.rig import slow_after
from benchsuite.workshop.native.cuda_on_host import _Here, cuda_on_host, host_library, host_source, launched
from benchsuite.workshop.native.guarded import Guarded
from specdec import Window
from specdec.ops import Ops
from specdec_kernels import build, cuda
from specdec_kernels.cpu import cpu_compiler
from specdec_kernels.cuda import Cuda
from specdec_kernels.reference import Reference

pytestmark = pytest.mark.skipif(cpu_compiler() is None, reason="no C++ compiler to run CUDA's sources on the host")

OPS = (
    *("sample", "accept", "verify_prefix", "rejection_sample", "kv_append", "kv_compact"),
    *("rms_norm", "rotary", "silu_mul"),
)
MOST = 10_000
"""Numbers of a case's first tensor: a block's threads take turns here."""


@pytest.fixture
def cuda_backend() -> Iterator[Cuda]:
    """The cuda backend, over CPU tensors."""
    with cuda_on_host() as made:
        yield made


def _cases(op: str) -> list[Case]:
    found = [case for case in (*CASES, *LAUNCHED, *FLOAT16_CASES) if case.op == op]
    found += [case for case in TAILS if case.op == op != "silu_mul"]
    small = (case for case in found if case.make(torch.Generator(), torch.float32)[0].numel() <= MOST)
    return list(small) if op in ("rms_norm", "silu_mul") else found


@pytest.mark.parametrize("op", slow_after(3, OPS))
def test_an_op_agrees_with_the_reference_and_uses_nothing_outside(cuda_backend: Cuda, op: str) -> None:
    ops = Ops([cuda_backend, Reference()])
    for case in _cases(op):
        for dtype in case.dtypes:
            with Guarded() as guard:
                assert (wrong := disagreement(ops, case, dtype)) is None, f"{case.name}, {dtype}: {wrong}"
            assert not guard.written(), f"{case.name}, {dtype}: written beside tensors of {guard.written()} numbers"
    assert {name for (_, name), _ in ops.ran().items()} == {"cuda"}


def _peaks(size: int, *places: int) -> Tensor:
    return torch.zeros(len(places), size).scatter_(1, torch.tensor(places)[:, None], 1.0)


PLACES = (0, 1, 31, 32, 511, 512, 2047, 2048, 2079, 2080, 4095, 4096, 4127, 4128, 6199)


def test_a_token_is_found_wherever_it_lies_in_a_row_of_parts(cuda_backend: Cuda) -> None:
    for size, parts in ((6200, 3), (4096, 2)):
        places = [place for place in PLACES if place < size]
        assert cuda_backend.sample(_peaks(size, *places), None).tolist() == places
        assert launched("sample") == (len(places), parts, 1, 512, 0)
        # The meetings are zeros again: a lower score wins the next launch.
        assert cuda_backend.sample(_peaks(size, *places[::-1]) - 9.0, None).tolist() == places[::-1]
        assert [zeros.tolist() for zeros in cuda_backend._zeros.values()] == [[[0, 0]] * len(PLACES)]


def test_a_draw_in_parts_is_the_draw_of_one_part(cuda_backend: Cuda) -> None:
    g = torch.Generator().manual_seed(5)
    rows, width, size = 3, 4, 6200
    p = (torch.randn(rows, width, size, generator=g) * 2).softmax(dim=-1)
    q = (p[:, :-1].log() + torch.randn(rows, width - 1, size, generator=g)).softmax(dim=-1)
    tokens = torch.randint(size, (rows, width), generator=g)
    keys = [torch.randint(2**62, (rows, width), generator=g) for _ in range(3)]
    window = Window(tokens, torch.arange(-1, width - 1).expand(rows, width), torch.tensor([4, 2, 1]), q)
    whole = Reference().rejection_sample(p, window, *keys)
    for _ in range(2):
        drawn = cuda_backend.rejection_sample(p, window, *keys)
        assert launched("rejection_sample") == (rows, 3, 1, 512, 0)
        for mine, theirs in ((drawn.path, whole.path), (drawn.num_accepted, whole.num_accepted)):
            assert mine.tolist() == theirs.tolist()
        assert drawn.next.tolist() == whole.next.tolist()
    halves = Window(tokens, window.parents, window.width, q.bfloat16())
    cuda_backend.silu_mul(torch.ones(1, 4), torch.ones(1, 4))
    before = launched("rejection_sample")
    assert cuda_backend.rejection_sample(p, halves, *keys).next.shape == (rows,)
    assert launched("rejection_sample") == before


HALF = torch.bfloat16


def _norm(rows: int, size: int, dtype: torch.dtype, start: int = 0, stride: int = 0) -> Callable[[Cuda], Any]:
    def call(cuda_backend: Cuda) -> Any:
        x = torch.ones(rows, start + size + stride, dtype=dtype)[:, start : start + size]
        return cuda_backend.rms_norm(x, torch.ones(size, dtype=dtype), 1e-5, 0.0)

    return call


def _silu(rows: int, size: int, dtype: torch.dtype, gate: int = 0, up: int = 0) -> Callable[[Cuda], Any]:
    def call(cuda_backend: Cuda) -> Any:
        both = [torch.ones(rows, size + more, dtype=dtype)[:, :size] for more in (gate, up)]
        return cuda_backend.silu_mul(*both)

    return call


def _rotary(batch: int, width: int, size: int, dtype: torch.dtype, more: int = 0) -> Callable[[Cuda], Any]:
    def call(cuda_backend: Cuda) -> Any:
        query, keys = (torch.ones(batch, heads, width, size + more, dtype=dtype)[..., :size] for heads in (4, 2))
        return cuda_backend.rotary(query, keys, *(torch.ones(1, width, size, dtype=dtype) for _ in range(2)))

    return call


def _append(batch: int, width: int, size: int, dtype: torch.dtype, more: int = 0) -> Callable[[Cuda], Any]:
    def call(cuda_backend: Cuda) -> Any:
        arena = [torch.zeros(batch, 3, width, size + more, dtype=dtype)[..., :size] for _ in range(2)]
        new = [torch.ones(batch, 3, width, size, dtype=dtype) for _ in range(2)]
        return cuda_backend.kv_append(arena[0], arena[1], new[0], new[1], torch.arange(width).expand(batch, width))

    return call


def _compact(batch: int, depth: int, size: int, dtype: torch.dtype, more: int = 0) -> Callable[[Cuda], Any]:
    def call(cuda_backend: Cuda) -> Any:
        arena = [torch.zeros(batch, 1, depth + 1, size + more, dtype=dtype)[..., :size] for _ in range(2)]
        cells = torch.arange(depth).expand(batch, depth)
        return cuda_backend.kv_compact(arena[0], arena[1], cells + 1, cells)

    return call


def _verify(rows: int) -> Callable[[Cuda], Any]:
    zeros = torch.zeros(rows, 3, dtype=torch.int64)
    window = Window.chain(zeros[:, 0], zeros[:, 1:], zeros[:, 0])
    return lambda cuda_backend: cuda_backend.verify_prefix(window, zeros)


GEOMETRY: list[tuple[str, Callable[[Cuda], Any], tuple[int, ...]]] = [
    # 16 bytes a thread where all addresses, sizes and strides allow it; else a number.
    ("rms_norm", _norm(2, 252, torch.float32), (2, 1, 1, 64, 0)),
    ("rms_norm", _norm(2, 256, torch.float32), (2, 1, 1, 64, 0)),
    ("rms_norm", _norm(2, 260, torch.float32), (2, 1, 1, 96, 0)),
    ("rms_norm", _norm(2, 253, torch.float32), (2, 1, 1, 256, 0)),
    ("rms_norm", _norm(2, 256, torch.float32, start=1, stride=3), (2, 1, 1, 256, 0)),
    ("rms_norm", _norm(2, 256, torch.float32, stride=1), (2, 1, 1, 256, 0)),
    ("rms_norm", _norm(2, 256, torch.float32, stride=4), (2, 1, 1, 64, 0)),
    ("rms_norm", _norm(2, 4, torch.float32), (2, 1, 1, 32, 0)),
    ("rms_norm", _norm(2, 256, HALF), (2, 1, 1, 32, 0)),
    ("rms_norm", _norm(2, 260, HALF), (2, 1, 1, 288, 0)),
    ("rms_norm", _norm(2, 256, HALF, stride=4), (2, 1, 1, 256, 0)),
    ("rms_norm", _norm(1, 1025, torch.float32), (1, 1, 1, 1024, 0)),
    ("silu_mul", _silu(3, 1024, torch.float32), (3, 1, 1, 256, 0)),
    ("silu_mul", _silu(3, 1028, torch.float32), (3, 2, 1, 256, 0)),
    ("silu_mul", _silu(3, 1025, torch.float32), (3, 5, 1, 256, 0)),
    ("silu_mul", _silu(3, 1024, torch.float32, gate=1), (3, 4, 1, 256, 0)),
    ("silu_mul", _silu(3, 1024, torch.float32, up=1), (3, 4, 1, 256, 0)),
    ("silu_mul", _silu(3, 1024, torch.float32, gate=4, up=8), (3, 1, 1, 256, 0)),
    ("silu_mul", _silu(3, 1024, HALF), (3, 1, 1, 256, 0)),
    ("silu_mul", _silu(3, 1028, HALF), (3, 5, 1, 256, 0)),
    ("rotary", _rotary(2, 16, 128, torch.float32), (1, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 17, 128, torch.float32), (2, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 16, 128, HALF), (1, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 32, 128, HALF), (1, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 33, 128, HALF), (2, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 16, 128, torch.float32, more=1), (4, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 16, 12, torch.float32), (1, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 128, 8, torch.float32), (1, 6, 2, 256, 0)),
    ("rotary", _rotary(2, 64, 12, torch.float32), (2, 6, 2, 256, 0)),
    ("kv_append", _append(2, 16, 64, torch.float32), (1, 3, 4, 256, 0)),
    ("kv_append", _append(2, 17, 64, torch.float32), (2, 3, 4, 256, 0)),
    ("kv_append", _append(2, 16, 64, torch.float32, more=1), (4, 3, 4, 256, 0)),
    ("kv_append", _append(2, 16, 63, torch.float32), (4, 3, 4, 256, 0)),
    ("kv_append", _append(2, 16, 64, HALF), (1, 3, 4, 256, 0)),
    ("kv_append", _append(2, 16, 64, HALF, more=1), (4, 3, 4, 256, 0)),
    ("kv_compact", _compact(2, 3, 64, torch.float32), (1, 1, 4, 256, 3 * 256)),
    ("kv_compact", _compact(2, 300, 64, torch.float32), (2, 1, 4, 256, 300 * 10 * 16)),
    ("kv_compact", _compact(1, 3072, 8, torch.float32), (2, 1, 2, 256, 3072 * 16)),
    ("kv_compact", _compact(2, 3, 63, torch.float32), (1, 1, 4, 256, 3 * 63 * 4)),
    ("kv_compact", _compact(2, 3, 64, HALF, more=1), (1, 1, 4, 256, 3 * 64 * 2)),
    ("accept", lambda b: b.accept(torch.ones(512), torch.arange(512)), (1, 1, 1, 512, 0)),
    ("accept", lambda b: b.accept(torch.ones(513), torch.arange(513)), (2, 1, 1, 512, 0)),
    ("verify_prefix", _verify(32), (1, 1, 1, 32, 0)),
    ("verify_prefix", _verify(33), (2, 1, 1, 32, 0)),
]


@pytest.mark.parametrize(
    ("op", "call", "wanted"), GEOMETRY, ids=lambda value: value if isinstance(value, str) else None
)
def test_a_launch_has_as_many_threads_as_its_numbers_ask_for(
    cuda_backend: Cuda, op: str, call: Callable[[Cuda], Any], wanted: tuple[int, ...]
) -> None:
    call(cuda_backend)
    assert launched(op) == wanted


def _on(*shape: int, dtype: torch.dtype = torch.float32, step: int = 1) -> Tensor:
    return torch.empty(*shape[:-1], shape[-1] * step, dtype=dtype, device="meta")[..., ::step].as_subclass(_Here)


INT, F16, F64 = torch.int64, torch.float16, torch.float64
TAKES: list[tuple[str, tuple[Tensor, ...], bool]] = [
    *((op, (_on(2, 9),), True) for op in ("sample", "rejection_sample", "accept")),
    *((op, (_on(2, 9, dtype=HALF),), False) for op in ("sample", "rejection_sample", "accept", "verify_prefix")),
    *((op, (_on(2, 0),), False) for op in ("sample", "rejection_sample")),
    *((op, (_on(1, 1),), True) for op in ("sample", "rejection_sample")),
    *((op, (_on(1, 2**31 - 1),), True) for op in ("sample", "rejection_sample")),
    *((op, (_on(1, 2**31),), False) for op in ("sample", "rejection_sample")),
    ("accept", (_on(2, 0),), True),
    ("verify_prefix", (_on(2, 9, dtype=INT),), True),
    ("verify_prefix", (_on(2, 9),), False),
    *(
        (op, (_on(2, 3, 4, 8, dtype=dtype), _on(2, 3, 4, 8, dtype=dtype)), taken)
        for op in ("kv_append", "kv_compact")
        for dtype, taken in ((torch.float32, True), (HALF, True), (F16, True), (torch.int16, True), (F64, False))
    ),
    ("kv_append", (_on(2, 3, 4, 8, dtype=torch.uint8),), False),
    ("kv_append", (_on(2, 3, 4, 8, step=2),), False),
    ("kv_append", (_on(2, 3, 4, 8), _on(2, 3, 4, 8, dtype=HALF)), False),
    *(
        ("rotary", (_on(2, 3, 4, 8, dtype=dtype), _on(1, 4, 8, dtype=dtype)), dtype != F64)
        for dtype in (torch.float32, HALF, F16, F64)
    ),
    ("rotary", (_on(2, 3, 4, 8), _on(1, 4, 8, dtype=HALF)), False),
    ("rotary", (_on(2, 3, 4, 8), _on(1, 4, 4)), False),
    ("rotary", (_on(2, 3, 4, 7), _on(1, 4, 7)), False),
    *((op, (_on(2, 9, dtype=dtype),), True) for op in ("rms_norm", "silu_mul") for dtype in (torch.float32, HALF, F16)),
    *((op, (_on(2, 9, dtype=F64),), False) for op in ("rms_norm", "silu_mul")),
    *((op, (_on(2, 9), torch.ones(2, 9)), False) for op in ("rms_norm", "silu_mul")),
    ("sample", (torch.ones(2, 9),), False),
    *((op, (_on(2, 9), _on(2, 9)), False) for op in ("linear", "process", "tree_attention", "decoder_layers")),
    *((op, (_on(2, 9, dtype=INT),), False) for op in ("noise_keys", "emit", "kv_plan")),
]


@pytest.mark.parametrize("number", range(len(TAKES)), ids=lambda n: f"{TAKES[n][0]}-{n}")
def test_it_takes_tensors_of_a_gpu_of_the_types_that_its_kernels_have(number: int) -> None:
    op, tensors, taken = TAKES[number]
    assert Cuda().takes(op, *tensors) is taken


def test_a_launch_that_is_refused_says_which_on_what_and_why(cuda_backend: Cuda) -> None:
    arena = torch.zeros(1, 1, 2, 8)
    cells = torch.zeros(1, 3073, dtype=torch.int64)
    with pytest.raises(RuntimeError) as refused:
        cuda_backend._launch(
            "kv_compact", arena.device, arena, arena, cells, cells, 1, 1, 3073, 32, 4, cuda._byte_strides(arena, arena)
        )
    assert str(refused.value) == "the CUDA kernel of kv_compact on cpu failed: invalid argument"
    cuda_backend.kv_compact(arena, arena.clone(), cells, cells)  # the reference's
    cuda_backend._launch("accept", arena.device, None, None, None, 0)  # nothing to do


def test_a_row_of_blocks_fills_the_device_with_whole_parts(cuda_backend: Cuda) -> None:
    device = torch.device("cpu")
    for rows, size, parts in (
        *((1, 2047, 1), (1, 2048, 1), (1, 4095, 1), (1, 4096, 2), (0, 4096, 2), (1, 2048 * 600, 4 * PROCESSORS)),
        *((2, 2048 * 600, 2 * PROCESSORS), (4 * PROCESSORS, 4096, 1), (9 * PROCESSORS, 4096, 1)),
    ):
        assert cuda._parts(rows, size, device) == parts, (rows, size)


def noted(given: list[torch.device], answer: Any) -> Callable[[torch.device], Any]:
    """A function that notes the device which it is given and returns ``answer``."""

    def note(device: torch.device) -> Any:
        given.append(device)
        return answer

    return note


def test_meetings_are_kept_for_a_stream_grow_and_are_new_in_a_graph(
    cuda_backend: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.device] = []
    device = torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device", noted(asked, nullcontext()))
    assert cuda_backend._meetings(3, 1, device) is None
    first = cuda_backend._meetings(3, 2, device)
    assert first is not None
    assert first.tolist() == [[0, 0]] * 3
    assert first.dtype == torch.int64
    assert asked == [device]
    assert cuda_backend._meetings(2, 5, device) is first
    more = cuda_backend._meetings(4, 2, device)
    assert more is not None
    assert len(more) == 4
    assert cuda_backend._meetings(3, 2, device) is more
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=7))
    other = cuda_backend._meetings(4, 2, device)
    assert other is not more
    assert cuda_backend._meetings(4, 2, device) is other
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    captured = cuda_backend._meetings(3, 2, device)
    assert captured is not None
    assert captured.tolist() == [[0, 0]] * 3
    assert captured.dtype == torch.int64
    assert cuda_backend._meetings(3, 2, device) is not captured
    assert len(cuda_backend._zeros) == 2


def test_a_launch_is_on_the_devices_current_stream(cuda_backend: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    cuda_backend.__dict__["_kernels"] = SimpleNamespace(specdec_accept=lambda *values: given.append(values))
    on: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device", noted(on, nullcontext()))
    monkeypatch.setattr(torch.cuda, "current_stream", noted(on, SimpleNamespace(cuda_stream=9)))
    one = torch.ones(2)
    cuda_backend._launch("accept", torch.device("cuda:3"), one, None, 5)
    assert given == [(one.data_ptr(), None, 5, 9)]
    assert on == [torch.device("cuda:3")] * 2


def test_code_is_compiled_for_the_gpus_here_else_for_two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.architectures() == (80, 90)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: ((9, 0), (8, 6), (9, 0))[index])
    assert cuda.architectures() == (86, 90)


def test_the_compiler_is_cuda_homes_else_the_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = tmp_path / "home", tmp_path / "path"
    for folder in (home / "bin", path):
        folder.mkdir(parents=True)
        (folder / "nvcc").write_text("#!/bin/sh\n")
        (folder / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert cuda.cuda_compiler() == str(path / "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert cuda.cuda_compiler() == str(home / "bin" / "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert cuda.cuda_compiler() == str(path / "nvcc")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda.cuda_compiler() is None
    with pytest.raises(build.BuildError) as refused:
        cuda.load_cuda_library()
    assert str(refused.value) == "no CUDA compiler: looked for nvcc in CUDA_HOME and on the path; install it"


def test_the_library_is_built_once_with_its_flags_and_knows_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[Any, ...]] = []
    answers: list[Any] = [host_library()]

    def built(*given: Any) -> Any:
        commands.append(given)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    monkeypatch.setattr(build, "library", built)
    monkeypatch.setattr(cuda, "cuda_compiler", lambda: "/x/nvcc")
    monkeypatch.setattr(cuda, "architectures", lambda: (75,))
    cuda._library.cache_clear()
    try:
        library = cuda.load_cuda_library()
        assert cuda.load_cuda_library() is library
        start = ("/x/nvcc", "-O3", "-std=c++17", "-Xcompiler", "-fPIC")
        assert commands == [("cuda", (*start, "-gencode=arch=compute_75,code=sm_75"), ".cu")]
        with pytest.raises(TypeError):
            library.specdec_accept(1, 2, 3)  # one of its arguments is missing
        assert library.specdec_error(1) == b"invalid argument"
        assert library.specdec_accept(None, None, None, 0, None) == 0
        answers[0] = build.BuildError("broken")
        for _ in range(2):
            with pytest.raises(build.BuildError, match="^broken$"):
                cuda.load_cuda_library((80, 90), ("-x",))
        more = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in (80, 90)]
        assert commands[1:] == [("cuda", (*start, *more, "-x"), ".cu")]
    finally:
        cuda._library.cache_clear()


def test_what_is_missing_is_said_in_the_order_in_which_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: dict[str, Any] = {"forbidden": "it is forbidden", "absent": "no GPU", "code": build.BuildError("no nvcc")}

    def probe() -> int:
        if isinstance(reasons["code"], Exception):
            raise reasons["code"]
        return int(reasons["code"])

    monkeypatch.setattr(build, "forbidden", lambda: reasons["forbidden"])
    monkeypatch.setattr(cuda, "why_absent", lambda kind: reasons["absent"] if kind == "cuda" else kind)
    cuda_backend = Cuda()
    cuda_backend.__dict__["_kernels"] = SimpleNamespace(
        specdec_probe=probe, specdec_error=lambda code: f"code {code}".encode()
    )
    assert cuda_backend.missing() == "it is forbidden"
    reasons["forbidden"] = None
    assert cuda_backend.missing() == "no GPU"
    reasons["absent"] = None
    assert cuda_backend.missing() == "no nvcc"
    reasons["code"] = 35
    assert cuda_backend.missing() == "the CUDA kernels cannot run: code 35"
    reasons["code"] = 0
    assert cuda_backend.missing() is None
    with cuda_on_host() as whole:
        assert whole.missing() is None
        assert (Cuda.name, Cuda.priority, Cuda.devices) == ("cuda", 100, ("cuda",))


def test_a_launch_becomes_a_call() -> None:
    text = host_source(
        "#include <cuda_fp16.h>\nf<decltype(u), 4><<<dim3(a, b), 32, 0, s>>>(\n x);\nextern __shared__ uint4 m[];\n"
    )
    [_, _, *rest] = text.splitlines()
    assert rest == [
        "on_host::launch(f<decltype(u), 4>, dim3(a, b), 32, 0, s)(",
        " x);",
        "uint4* m = (uint4*)on_host::dynamic_shared;",
    ]
