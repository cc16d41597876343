"""What each backend is called, promises, is compiled with and takes, with each condition at its bound."""

from __future__ import annotations

import os
import platform
import subprocess
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.tests.rig import INTERPRETS
from specdec import SpecdecError
from specdec.packed import Packed
from specdec.quantised import Quantised
from specdec_kernels import build, cpu, cuda, flex, reference, triton
from specdec_kernels.cpu import Cpu
from specdec_kernels.cuda import Cuda
from specdec_kernels.flex import Flex
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton

DECODER = {
    *("linear", "rms_norm", "rotary", "silu_mul", "decoder_layers"),
    *("kv_plan", "kv_append", "kv_compact", "tree_attention"),
}


@pytest.mark.parametrize(
    ("backend", "name", "priority", "devices", "own_threads", "row_invariant"),
    [
        (Reference, "reference", 10, None, False, {"kv_plan", "kv_append", "kv_compact", "rotary"}),
        (Cpu, "cpu", 30, ("cpu",), True, DECODER),
        (Flex, "flex", 4, ("cuda",), False, {"kv_plan", "kv_append", "kv_compact", "rotary"}),
        (Cuda, "cuda", 100, ("cuda",), False, {"kv_plan", "kv_append", "kv_compact", "rotary"}),
    ],
)
def test_a_backend_has_its_name_its_place_and_its_promises(
    backend: type[Reference],
    name: str,
    priority: int,
    devices: tuple[str, ...] | None,
    own_threads: bool,
    row_invariant: set[str],
) -> None:
    assert (backend.name, backend.priority, backend.own_threads) == (name, priority, own_threads)
    assert backend.row_invariant == row_invariant
    assert devices is None or backend.devices == devices


@pytest.mark.parametrize(
    ("module", "name", "backend"),
    [
        (reference, "reference", Reference),
        (cpu, "cpu", Cpu),
        (flex, "flex", Flex),
        (cuda, "cuda", Cuda),
        (triton, "triton", Triton),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_module_registers_one_backend_under_its_name(module: ModuleType, name: str, backend: type) -> None:
    registered: list[tuple[str, Any]] = []
    module.specdec_register_backends(lambda *given: registered.append(given))
    assert registered == [(name, backend)]


def test_a_level_needs_all_of_its_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {name for needed in cpu.LEVELS.values() for name in needed}
    for absent, there in (
        ([], ["avx512_bf16", "avx512", "avx2", "plain"]),
        (["avx512_bf16"], ["avx512", "avx2", "plain"]),
        (["avx512_dq"], ["avx2", "plain"]),
        (["f16c"], ["avx512_bf16", "avx512", "plain"]),
        (["fma3"], ["plain"]),
    ):
        found = {name: name not in absent for name in every}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found, raising=False)
        assert cpu.levels.__wrapped__() == tuple(there)


@pytest.mark.parametrize("level", cpu.LEVELS)
def test_torch_and_the_compiler_know_every_instruction_set_of_a_level(level: str) -> None:
    """A name that torch does not know would rule a level out everywhere, and one flag less would slow it down."""
    compiler, needed = cpu.cpu_compiler(), cpu.LEVELS[level]
    if platform.machine() != "x86_64" or compiler is None or not hasattr(torch.cpu, "get_capabilities"):
        pytest.skip("instruction sets of x86 are asked for by torch's names and the compiler's")
    assert needed.keys() <= torch.cpu.get_capabilities().keys()
    command = [compiler, *(f"-m{flag}" for flag in needed.values()), "-dM", "-E", "-x", "c++", os.devnull]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sets = {name.replace("_", "").replace("fma3", "fma").upper() for name in needed}
    assert {f"__{name}__" for name in sets} <= set(macros.split())


def test_the_cpus_compiler_is_the_one_that_is_asked_for_else_the_first_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"clang++": "/x/clang++", "g++": "/x/g++", "c++": "/x/c++", "mine": "/x/mine"}
    monkeypatch.setattr("shutil.which", there.get)
    for value in (None, ""):
        monkeypatch.setenv("CXX", value) if value is not None else monkeypatch.delenv("CXX", raising=False)
        assert cpu.cpu_compiler() == "/x/c++"
    monkeypatch.setenv("CXX", "mine")
    assert cpu.cpu_compiler() == "/x/mine"
    monkeypatch.setenv("CXX", "none")
    assert cpu.cpu_compiler() is None  # what is asked for is not replaced by another
    monkeypatch.delenv("CXX")
    for gone, next_one in (("c++", "/x/g++"), ("g++", "/x/clang++"), ("clang++", None)):
        del there[gone]
        assert cpu.cpu_compiler() == next_one


def test_the_cpus_library_is_compiled_with_the_levels_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    library = SimpleNamespace(**{f"specdec_{op}": SimpleNamespace() for op in cpu.SIGNATURES})

    def built(*given: Any) -> Any:
        asked.append(given)
        return library

    monkeypatch.setattr(build, "library", built)
    monkeypatch.setattr(cpu, "cpu_compiler", lambda: "/x/c++")
    loaded: Any = cpu.load_cpu_library("avx2", ("-x",))
    assert loaded is library
    flags = ("-O3", "-std=c++17", "-fPIC", "-pthread", "-mtune=native")
    assert asked == [("cpu-avx2", ("/x/c++", *flags, "-mavx2", "-mfma", "-mf16c", "-x"), ".cpp")]
    for op, types in cpu.SIGNATURES.items():
        assert vars(getattr(library, f"specdec_{op}")) == {"argtypes": types, "restype": None}
    monkeypatch.setattr(cpu, "cpu_compiler", lambda: None)
    with pytest.raises(build.BuildError) as refused:
        cpu.load_cpu_library("plain")
    assert str(refused.value) == ("no C++ compiler: looked for CXX, c++, g++ and clang++; install one or set CXX")


def test_a_cpu_backend_is_of_the_best_level_or_of_the_one_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(level: str) -> Any:
        loaded.append(level)
        if level == "avx2":
            raise build.BuildError("it is broken")
        return SimpleNamespace(specdec_linear="product", specdec_slots_of_a_pass=lambda: 8)

    monkeypatch.setattr(cpu, "load_cpu_library", load)
    monkeypatch.setattr(cpu, "levels", lambda: ("avx512", "avx2", "plain"))
    monkeypatch.setattr(build, "forbidden", lambda: None)
    made = [Cpu(), Cpu("auto"), Cpu("plain", False), Cpu("avx2")]
    assert loaded == ["avx512", "avx512", "plain", "avx2"]
    assert [one.level for one in made] == loaded
    assert [one.missing() for one in made] == [None, None, None, "it is broken"]
    monkeypatch.setattr(build, "forbidden", lambda: "it is forbidden")
    assert Cpu().missing() == "it is forbidden"
    assert len(loaded) == 4
    with pytest.raises(SpecdecError) as refused:
        Cpu("avx512_bf16")
    assert "unknown level 'avx512_bf16'" in str(refused.value)
    with pytest.raises(SpecdecError) as refused:
        Cpu(pack="yes")  # type: ignore[arg-type]
    assert str(refused.value) == "pack is 'yes'; expected True or False"


def _unloaded(monkeypatch: pytest.MonkeyPatch, pack: bool = True) -> Cpu:
    monkeypatch.setattr(
        cpu, "load_cpu_library", lambda level: SimpleNamespace(specdec_linear=None, specdec_slots_of_a_pass=lambda: 8)
    )
    return Cpu(pack=pack)


def test_matrices_of_a_cpu_in_the_dtypes_of_its_products_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, kept = _unloaded(monkeypatch), _unloaded(monkeypatch, pack=False)
    codes = Quantised.of(torch.randn(20, 64), 8)
    packed = Packed.of(codes)
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.zeros(20, 64, dtype=dtype)
        assert isinstance(whole.pack(weight), Packed)
        assert kept.pack(weight) is weight
    for backend in (whole, kept):
        assert isinstance(backend.pack(codes), Packed)
        for left in (packed, torch.zeros(3, 4, dtype=torch.float16), torch.zeros(3, 4, device="meta")):
            assert backend.pack(left) is left


def _of(*shape: int, dtype: torch.dtype = torch.float32, step: int = 1, device: str = "cpu") -> Tensor:
    return torch.zeros(*shape[:-1], shape[-1] * step, dtype=dtype, device=device)[..., ::step]


HALF, F16, F64, INT = torch.bfloat16, torch.float16, torch.float64, torch.int64
PACKED = Packed.of(torch.zeros(4, 8))
FOUR = (2, 3, 4, 8)
CPU_TAKES: list[tuple[str, tuple[Any, ...], bool]] = [
    *(
        ("linear", (_of(2, 8, dtype=dtype), PACKED), dtype in (torch.float32, HALF))
        for dtype in (torch.float32, HALF, F16)
    ),
    ("linear", (_of(2, 8), _of(4, 8)), False),
    *(("decoder_layers", (_of(1, 2, 8, dtype=dtype), PACKED), dtype != F64) for dtype in (torch.float32, HALF, F64)),
    ("decoder_layers", (_of(1, 2, 8), _of(4, 8)), False),
    *(("rms_norm", (_of(2, 8, dtype=dtype),), dtype != F16) for dtype in (torch.float32, HALF, F16)),
    *(("rotary", (_of(*FOUR, dtype=d), _of(1, 4, 8, dtype=d)), d != F16) for d in (torch.float32, HALF, F16)),
    ("rotary", (_of(*FOUR), _of(1, 4, 8, dtype=HALF)), False),
    ("rotary", (_of(*FOUR, dtype=F64), _of(1, 4, 8, dtype=F64)), False),
    ("rotary", (_of(*FOUR, step=2), _of(1, 4, 8)), False),
    ("silu_mul", (_of(2, 6144),), True),
    ("silu_mul", (_of(2, 6144, dtype=HALF),), True),
    ("silu_mul", (_of(12_288),), True),
    ("silu_mul", (_of(12_287),), False),
    ("silu_mul", (_of(2, 6144, dtype=F16),), False),
    ("silu_mul", (_of(2, 6144, step=2),), False),
    ("silu_mul", (_of(6144, 2).t(),), False),
    ("silu_mul", (_of(2, 6144, dtype=F16, step=2),), False),
    *(("kv_append", (_of(*FOUR, dtype=d), _of(*FOUR, dtype=d)), True) for d in (torch.float32, HALF, F16, F64)),
    ("kv_append", (_of(*FOUR), _of(*FOUR, dtype=HALF)), False),
    ("kv_append", (_of(*FOUR, step=2), _of(*FOUR)), False),
    ("kv_append", (_of(*FOUR), _of(*FOUR, step=2)), False),
    ("kv_append", (_of(*FOUR, step=2), _of(*FOUR, step=2)), False),
    ("kv_compact", (_of(*FOUR),), True),
    ("kv_compact", (_of(*FOUR, step=2),), False),
    *(
        ("tree_attention", (_of(1, 2, 64, 8, dtype=d), _of(1, 2, 9, 8, dtype=d)), d != F16)
        for d in (torch.float32, HALF, F16)
    ),
    ("tree_attention", (_of(1, 2, 65, 8), _of(1, 2, 9, 8)), False),
    ("tree_attention", (_of(1, 2, 3, 8), _of(1, 2, 9, 8), _of(2)), True),
    ("tree_attention", (_of(1, 2, 3, 8), _of(1, 2, 9, 8), _of(2, dtype=HALF)), False),
    ("tree_attention", (_of(1, 2, 3, 8), _of(1, 2, 9, 8), _of(2, step=2)), False),
    ("tree_attention", (_of(1, 2, 1, 80), _of(1, 2, 9, 80)), True),
    ("tree_attention", (_of(1, 2, 65, 8, dtype=F16), _of(1, 2, 9, 8, dtype=F16)), False),
    ("tree_attention", (_of(1, 2, 3, 8, step=2), _of(1, 2, 9, 8)), False),
    ("tree_attention", (_of(1, 2, 3, 8), _of(1, 2, 9, 8, step=2)), False),
    ("tree_attention", (_of(1, 2, 3, 8, step=2), _of(1, 2, 9, 8, step=2)), False),
    *(
        (op, (_of(1, 2, 9, dtype=d),), d == torch.float32)
        for op in ("process", "sample", "rejection_sample")
        for d in (torch.float32, HALF)
    ),
    *((op, (_of(1, 2, dtype=INT),), True) for op in ("verify_prefix", "emit")),
    ("kv_plan", (_of(2, dtype=INT),), True),
    *((op, (_of(1, 2, 9),), False) for op in ("accept", "block_sample", "tree_sample")),
    ("noise_keys", (_of(1, 2, dtype=INT),), False),
    ("sample", (_of(1, 2, 9, device="meta"),), False),
    ("rms_norm", (_of(2, 8, device="meta"),), False),
]


@pytest.mark.parametrize("number", range(len(CPU_TAKES)), ids=lambda n: f"{CPU_TAKES[n][0]}-{n}")
def test_the_cpu_takes_what_its_kernels_have(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    op, tensors, taken = CPU_TAKES[number]
    assert _unloaded(monkeypatch).takes(op, *tensors) is taken


CODES = Quantised.of(torch.zeros(4, 64), 8)
INTERPRETED_TAKES: list[tuple[str, tuple[Any, ...], bool, bool]] = [
    # What it takes, and what it takes if it is exact.
    ("linear", (_of(2, 64), CODES), True, True),
    ("linear", (_of(40, 64, dtype=HALF), CODES), True, True),
    ("linear", (_of(2, 64, dtype=F64), CODES), False, False),
    ("linear", (_of(2, 8), PACKED), False, False),
    ("linear", (_of(2, 64), _of(4, 64)), False, True),
    ("linear", (_of(2, 64), _of(4, 64, dtype=HALF)), False, False),
    ("decoder_layers", (_of(2, 8, 64), CODES), True, True),
    ("decoder_layers", (_of(1, 17, 64), CODES), False, True),
    ("decoder_layers", (_of(2, 8, 8), PACKED), False, False),
    ("decoder_layers", (_of(1, 17, 64), _of(4, 64, dtype=HALF)), False, False),
    ("silu_mul", (_of(2, 64), CODES), False, False),
    ("silu_mul", (_of(2, 64), _of(2, 64, device="meta")), False, False),
    ("silu_mul", (_of(2, 64, device="meta"), _of(2, 64, device="meta")), False, False),
    ("silu_mul", (CODES, _of(2, 64)), False, False),
    ("tree_attention", (_of(1, 6, 3, 8), _of(1, 2, 9, 8)), True, True),
    ("tree_attention", (_of(1, 4, 2, 8), _of(1, 3, 9, 8)), False, False),
    ("tree_attention", (_of(1, 6, 3, 8), _of(1, 2, 9, 8), _of(6)), True, True),
    ("tree_attention", (_of(1, 6, 3, 8), _of(1, 2, 9, 8), _of(6, dtype=HALF)), False, False),
    ("tree_attention", (_of(1, 5, 2, 300), _of(1, 2, 9, 300)), False, False),
    ("rotary", (_of(1, 6, 2, 6), _of(1, 2, 6)), True, True),
    ("rotary", (_of(1, 6, 4, 9), _of(1, 4, 9)), False, False),
    ("rms_norm", (_of(1, 16384),), True, True),
    ("rms_norm", (_of(16385, 1),), True, True),
]


@pytest.mark.parametrize("number", range(len(INTERPRETED_TAKES)), ids=lambda n: f"{INTERPRETED_TAKES[n][0]}-{n}")
@INTERPRETS
def test_an_interpreted_backend_takes_tensors_of_the_cpu_and_codes(number: int) -> None:
    op, tensors, taken, exact = INTERPRETED_TAKES[number]
    assert (Triton().takes(op, *tensors), Triton(exact=True).takes(op, *tensors)) == (taken, exact)


def _here(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """What flex asks a tensor for, on a GPU."""

    class Here(Tensor):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("cuda")

    return torch.empty(shape, dtype=dtype).as_subclass(Here)


def test_flex_takes_attention_of_one_dtype_on_its_device() -> None:
    compiled, by_op = Flex(), Flex(compiled=False)
    for dtype in (torch.float32, HALF, F16, F64):
        for backend, make, other in ((compiled, _here, _of), (by_op, _of, None)):
            query, keys = make(*FOUR, dtype=dtype), make(*FOUR, dtype=dtype)
            assert backend.takes("tree_attention", query, keys) is (dtype != F64)
            assert not backend.takes("tree_attention", query, keys, make(4, dtype=dtype)), "sinks"
            if other is not None:
                assert not backend.takes("tree_attention", other(*FOUR, dtype=dtype), other(*FOUR, dtype=dtype))
    assert by_op.takes("tree_attention", _here(*FOUR), _here(*FOUR))
    assert not by_op.takes("tree_attention", _of(*FOUR), _of(*FOUR, dtype=HALF))
    assert not by_op.takes("tree_attention", _of(*FOUR), PACKED)
    assert not by_op.takes("tree_attention", PACKED, _of(*FOUR))
    assert not by_op.takes("silu_mul", _of(*FOUR), _of(*FOUR))


def test_flex_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str | None] = [None]
    monkeypatch.setattr(flex, "forbidden", lambda: told[0])
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        told[0] = None
        assert Flex().missing() == (None if there else "there is no CUDA device")
        told[0] = "it is forbidden"
        assert Flex().missing() == "it is forbidden"


def test_flex_is_compiled_for_each_shape_unless_it_is_computed_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    asked: list[tuple[Any, dict[str, Any]]] = []

    def compiles(function: Any, **named: Any) -> str:
        asked.append((function, named))
        return "compiled"

    monkeypatch.setattr(torch, "compile", compiles)
    assert flex._flex_attention.__wrapped__(False) is flex_attention
    made: Any = flex._flex_attention.__wrapped__(True)
    assert made == "compiled"
    assert asked == [(flex_attention, {"dynamic": False})]
    given: list[bool] = []

    def attends(compiled: bool) -> Any:
        given.append(compiled)
        return lambda query, keys, values, **named: query

    monkeypatch.setattr(flex, "_flex_attention", attends)
    for backend in (Flex(), Flex(compiled=False)):
        backend.tree_attention(_of(1, 2, 3, 4), _of(1, 2, 5, 4), _of(1, 2, 5, 4), _of(1, 1, 3, 5), 1.0, None)
    assert given == [True, False]
