"""Every op of every backend agrees with the reference on ``benchsuite.conformance.ops.cases``; which backend ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import disagreement, packed, run_op, to
from benchsuite.conformance.ops.cases import CASES, Case
from benchsuite.tests.rig import INTERPRETED, Run, slow_after
from specdec import Registry, SpecdecError
from specdec.interfaces import OPS
from specdec.messages import Verdict
from specdec.ops import Ops
from specdec.quantised import Quantised
from specdec_kernels import cpu, cuda, triton
from specdec_kernels.reference import Reference

HERE = [
    pytest.param("cpu", "cpu", id="cpu"),
    *(
        pytest.param(f"cpu(level={level})", "cpu", marks=pytest.mark.slow, id=f"cpu-{level}")
        for level in cpu.levels()[1:]
    ),
    # Interpreted, a case takes up to seconds: tests/kernels/test_triton.py has those that hold something of their own.
    pytest.param("triton", "cpu", marks=[*INTERPRETED, pytest.mark.deep], id="triton-interpreted"),
    pytest.param("triton", "cuda", marks=[pytest.mark.cuda, pytest.mark.gpu], id="triton"),
    pytest.param("cuda", "cuda", marks=[pytest.mark.cuda, pytest.mark.gpu], id="cuda"),
]
NOT_TAKEN = {
    "cpu": {"accept", "noise_keys", "block_sample", "tree_sample"},
    "triton": {"process"},  # and products of float weights, for which torch's own are fastest
    "cuda": {
        *("process", "linear", "tree_attention", "decoder_layers"),
        *("noise_keys", "block_sample", "tree_sample", "emit", "kv_plan"),
    },
}
"""Ops that a backend leaves to the reference."""

COMPOSED = {"decoder_layers", "block_sample", "tree_sample"}
"""Ops whose parts run, each on its fastest backend, where no backend has them whole."""


@pytest.mark.parametrize("op", sorted({case.op for case in CASES} - NOT_TAKEN["cpu"]))
def test_an_op_gives_the_same_bits_whatever_number_of_threads_shares_it(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three threads on two processors: one of them is always late. Threads that were used are used again."""
    ops = registry().backend("cpu")
    if ops.chain[0].name != "cpu":
        pytest.skip("no C++ compiler")
    for case in (case for case in CASES if case.op == op):
        arguments = packed(ops, op, case.make(torch.Generator().manual_seed(7), torch.float32))
        results = []
        for threads in (1, 3, 3, 2):
            monkeypatch.setattr(cpu, "kernel_threads", lambda threads=threads: threads)
            results.append(run_op(ops, op, to(arguments)))
        for others in results[1:]:
            for one, other in zip(results[0], others, strict=True):
                assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)), f"{case.name}, {op}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
@pytest.mark.parametrize(("name", "device"), HERE)
def test_an_op_agrees_with_the_reference(name: str, device: str, case: Case) -> None:
    ops = registry().backend(name)
    backend = ops.chain[0]
    taken = case.op not in NOT_TAKEN[backend.name]
    if backend.name == "triton" and case.op == "linear":
        taken = isinstance(case.make(torch.Generator(), torch.float32)[1], Quantised)
    if backend.name == "cpu" and case.op == "silu_mul":
        taken = case.make(torch.Generator(), torch.float32)[0].numel() >= cpu.LEAST_SILU
    for dtype in case.dtypes:
        if backend.name == "triton" and case.op == "decoder_layers":
            x, layers, *_ = case.make(torch.Generator(), dtype)
            own = isinstance(layers[0].qkv, Quantised) or layers[0].qkv.dtype == dtype
            taken = own and x.shape[0] * x.shape[1] <= triton.TILE
        ops.calls.clear()
        assert disagreement(ops, case, dtype, device) is None
        ran = backend.name if taken else "reference"
        if case.op in COMPOSED and not taken:
            assert not any(op == case.op for op, _ in ops.ran())
        else:
            assert ops.ran() == {(case.op, ran): 1}, "the op ran elsewhere than it should"


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_cases(op: str) -> None:
    names = {case.name for case in CASES if case.op == op}
    assert names, f"no case of {op}"


class Broken(Reference):
    """The reference with a small error in the last result of one op."""

    name = "broken"
    priority = 99

    def __init__(self, op: str) -> None:
        self._op = op

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return _spoilt(found) if name in OPS and name == self._op else found


def _spoilt(op: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        out = op(*arguments)
        if out is None:  # in place: change the last value of the arena's view
            _spoil(arguments[1])
        elif isinstance(out, Verdict):
            _spoil(out.next)
        else:
            _spoil(out[-1] if isinstance(out, tuple) else out)
        return out

    return call


def _spoil(tensor: Tensor) -> None:
    if tensor.numel():
        # The last finite value: a processed logit may be -inf, which no factor changes.
        last = tensor[tuple(tensor.isfinite().nonzero()[-1])]
        spoilt = last * 1.1 + 0.1 if tensor.is_floating_point() else ~last if tensor.dtype == torch.bool else last + 1
        last.copy_(spoilt)


@pytest.mark.parametrize("op", slow_after(6, OPS))
def test_a_backend_that_is_broken_in_one_value_is_caught(op: str) -> None:
    cases = [case for case in CASES if case.op == op and "empty" not in case.name]
    caught = [case.name for case in cases if disagreement(Broken(op), case, torch.float32)]
    assert len(caught) >= len(cases) / 2, f"only {caught} of {[case.name for case in cases]} noticed"


def test_the_fastest_backend_that_takes_an_op_runs_it_and_is_counted() -> None:
    ops = Ops([registry().backend("cpu").chain[0], Reference()])
    ops.sample(torch.randn(1, 9), None)
    ops.sample(torch.randn(1, 9, dtype=torch.float64), None)
    weight = torch.randn(4, 8)
    ops.linear(torch.randn(2, 8), ops.pack(weight), None)
    ops.linear(torch.randn(2, 8), weight, None)
    assert ops.ran() == {
        ("sample", "cpu"): 1,
        ("sample", "reference"): 1,
        ("linear", "cpu"): 1,
        ("linear", "reference"): 1,
    }


def test_a_subclass_takes_the_ops_that_it_overrides() -> None:
    class Mine(Reference):
        name = "mine"
        priority = 77

        def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
            return super().silu_mul(gate, up)

    assert [op for op in OPS if Mine().takes(op, torch.zeros(1))] == ["silu_mul"]


def test_auto_lines_up_what_can_run_by_priority_and_names_what_cannot() -> None:
    class Plugin:
        """Three backends: two above the reference, one of which cannot run, and one below."""

        from specdec.hookspecs import hookimpl

        @hookimpl
        def specdec_register_backends(self, register: Any) -> None:
            register("reference", Reference)
            for name, priority, reason in (("fast", 90, None), ("gone", 80, "it is gone"), ("slow", 5, None)):
                members = {"name": name, "priority": priority, "missing": lambda self, reason=reason: reason}
                members["devices"] = ("cpu",)
                register(name, type(name, (Reference,), members))

    ops = Registry({"plugin": Plugin()}).backend()
    assert [backend.name for backend in ops.chain] == ["fast", "reference"]
    assert ops.absent("cpu") == ["gone: it is gone"]
    assert ops.absent("mps") == []


def test_a_level_that_the_processor_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(SpecdecError, match="unknown level 'avx1024'.*auto.*plain"):
        registry().backend("cpu(level=avx1024)")


SHOW = """
from specdec import Registry
ops = Registry().backend()
print([backend.name for backend in ops.chain])
print(*ops.absent("cpu"))
"""


@pytest.mark.slow
def test_force_py_skips_compiling_and_says_so(run: Run, tmp_path: Path) -> None:
    shown = run("-c", SHOW, SPECDEC_FORCE_PY="1", SPECDEC_CACHE=str(tmp_path)).stdout.splitlines()
    assert shown[0] == "['reference']"
    assert "cpu: SPECDEC_FORCE_PY=1 forbids compiled kernels" in shown[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_without_a_compiler_the_reference_runs_and_one_line_says_why(run: Run, tmp_path: Path) -> None:
    shown = run("-c", SHOW, PATH="", CXX="", SPECDEC_CACHE=str(tmp_path)).stdout.splitlines()
    assert shown[0] == "['reference']"
    assert "cpu: no C++ compiler: looked for CXX, c++, g++ and clang++" in shown[1]


@pytest.mark.slow
def test_a_failed_build_is_one_line_and_names_its_log(run: Run, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "vec.h:1: error: no such luck" >&2\nexit 1\n')
    compiler.chmod(0o755)
    shown = run("-c", SHOW, CXX=str(compiler), SPECDEC_CACHE=str(tmp_path / "cache")).stdout.splitlines()
    assert shown[0] == "['reference']"
    assert "compiling the cpu-" in shown[1]
    assert "vec.h:1: error: no such luck (all of it: " in shown[1]
    log = Path(shown[1].split("(all of it: ")[1].split(")")[0])
    assert "no such luck" in log.read_text()
    assert not list((tmp_path / "cache" / "kernels").glob("*.so"))


@pytest.mark.slow
@pytest.mark.skipif(
    cuda.cuda_compiler() is None, reason="no nvcc in CUDA_HOME or on the path: .cu sources not compiled"
)
def test_the_cuda_sources_compile_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    library = cuda.load_cuda_library()
    assert all(hasattr(library, f"specdec_{op}") for op in ("verify_prefix", "rejection_sample", "kv_append"))


def test_the_interpreter_is_never_chosen_unasked() -> None:
    ops = registry().backend()
    assert ops.chain[0].name in ("cpu", "cuda", "triton")
    assert not any(backend.name == "triton" for backend in ops.chain) or torch.cuda.is_available()


@pytest.mark.slow
def test_a_compiled_library_is_kept_and_found_again(run: Run, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\nexec {cpu.cpu_compiler()} "$@" -O0\n')  # to optimise takes half a minute
    compiler.chmod(0o755)
    first, second = (run("-c", SHOW, CXX=str(compiler), SPECDEC_CACHE=str(tmp_path / "cache")) for _ in range(2))
    assert "compiling the cpu" in first.stderr
    assert first.stdout.splitlines()[0] == second.stdout.splitlines()[0]
    assert "cpu" in first.stdout
    assert "compiling" not in second.stderr
