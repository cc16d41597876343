"""The rule by which a backend agrees with the reference on a case: what it finds, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from benchsuite.conformance.ops.agreement import EXACT, disagreement, packed, run_op, to
from benchsuite.conformance.ops.cases import CASES, Case
from specdec.interfaces import OPS
from specdec.messages import Verdict
from specdec_kernels.reference import Reference


def case_of(op: str, name: str = "") -> Case:
    """A case of an op: the named one, or the first with numbers in all results."""
    found = [case for case in CASES if case.op == op]
    if name:
        return next(case for case in found if case.name == name)
    return next(case for case in found if all(out.numel() for out in reference_results(case)))


def reference_results(case: Case, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """What the reference returns of a case."""
    return run_op(Reference(), case.op, case.make(Generator().manual_seed(7), dtype))


class OneOff(Reference):
    """The reference, one result of one op altered."""

    def __init__(self, op: str, place: int, alter: Callable[[Tensor], Tensor]) -> None:
        self.altered, self.place, self.alter = op, place, alter

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in OPS or name != self.altered:
            return found

        def call(*given: Any) -> Any:
            out = found(*given)
            if out is None:  # in place
                given[self.place].copy_(self.alter(given[self.place]))
                return None
            if isinstance(out, Verdict):
                parts = [out.path, out.num_accepted, out.next]
                parts[self.place] = self.alter(parts[self.place])
                return Verdict(*parts)
            if isinstance(out, tuple):
                return tuple(self.alter(one) if place == self.place else one for place, one in enumerate(out))
            return self.alter(out)

        return call


def nudged(tensor: Tensor) -> Tensor:
    """The same with the last finite number moved by the least step that its dtype has."""
    flat = tensor.clone().flatten()
    at = int(flat.isfinite().nonzero()[-1])
    if flat.is_floating_point():
        flat[at] = torch.nextafter(flat[at], torch.tensor(torch.inf, dtype=flat.dtype))
    else:
        flat[at] = ~flat[at] if flat.dtype == torch.bool else flat[at] + 1
    return flat.view(tensor.shape)


@pytest.mark.parametrize("op", sorted({*OPS} - {"decoder_layers"}))
def test_what_is_drawn_planned_or_moved_must_be_the_same_to_the_bit_and_what_is_computed_need_not(op: str) -> None:
    case = case_of(op)
    results = reference_results(case)
    moved = op.startswith("kv_")
    assert (op in EXACT) == (moved or not any(out.is_floating_point() for out in results))
    count = 1 if op == "emit" else len(results)  # the text is written in place, and is the first of two
    for place in range(count):
        said = disagreement(OneOff(op, place, nudged), case, torch.float32)
        if op in EXACT:
            index = 1 if op == "emit" else place
            assert said == f"output {index} differs in 1 of {results[index].numel()} places"
        else:
            assert said is None
    assert disagreement(Reference(), case, torch.float32) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "name"), [("rms_norm", "odd"), ("rotary", "odd"), ("linear", "strided")])
def test_an_error_is_let_pass_up_to_twice_the_references_own_and_a_step_of_each_result(
    op: str, name: str, dtype: torch.dtype
) -> None:
    """The rule of the module, worked out again: errors are against the reference in float64."""
    case = case_of(op, name)
    given = case.make(Generator().manual_seed(7), dtype)
    truths = run_op(Reference(), op, to(given, dtype=torch.float64))
    for place, (result, truth) in enumerate(zip(reference_results(case, dtype), truths, strict=True)):
        own = float((result.double() - truth).abs().max())
        allowed = 2 * own + 2 * torch.finfo(dtype).eps * float(truth.abs().max())
        largest = int(truth.abs().argmax())

        def off(out: Tensor, truth: Tensor = truth, at: int = largest, by: float = 0.0) -> Tensor:
            """The truth, but for its largest number."""
            flat = truth.clone().flatten()
            flat[at] += by
            return flat.view(truth.shape).to(out.dtype)

        # A number of the dtype is up to half a step from the asked one, which is at most a quarter of what is allowed.
        found = {}
        for share in (0.5, 1.3):
            by = share * allowed
            found[share] = disagreement(OneOff(op, place, partial(off, by=by)), case, dtype)
        assert found[0.5] is None
        assert f"output {place} errs by" in str(found[1.3])
        assert str(found[1.3]).endswith(f"; the reference by {own:.2e}")


def test_a_result_of_another_shape_or_dtype_is_told_by_both() -> None:
    case = case_of("rms_norm", "odd")
    wide = disagreement(OneOff("rms_norm", 0, lambda out: out.double()), case, torch.float32)
    assert wide == "output 0 is torch.float64 (1, 5, 83); expected torch.float32 (1, 5, 83)"
    short = disagreement(OneOff("rms_norm", 0, lambda out: out[:, 1:]), case, torch.float32)
    assert short == "output 0 is torch.float32 (1, 4, 83); expected torch.float32 (1, 5, 83)"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_result_of_an_op_is_looked_at(place: int) -> None:
    """Also behind one that is right, and of an op on floats behind one that is."""
    case = case_of("verify_prefix", "tree-32x16")
    said = disagreement(OneOff("verify_prefix", place, lambda out: out + 1), case, torch.float32)
    assert str(said).startswith(f"output {place} differs in ")
    turned = disagreement(OneOff("rotary", place % 2, lambda out: out * 2), case_of("rotary", "odd"), torch.float32)
    assert str(turned).startswith(f"output {place % 2} errs by ")


def _with(wrong: float, out: Tensor) -> Tensor:
    """The same with something else in place of minus infinity."""
    return out.where(out > -torch.inf, wrong)


def test_a_result_that_is_no_number_disagrees_and_equal_infinities_agree() -> None:
    case = case_of("process", "every-11")
    results = reference_results(case)[0]
    assert bool((results == -torch.inf).any())
    assert disagreement(Reference(), case, torch.float32) is None
    for wrong in (torch.nan, torch.inf, 0.0):
        said = disagreement(OneOff("process", 0, partial(_with, wrong)), case, torch.float32)
        assert said is not None, wrong
    nothing = OneOff("silu_mul", 0, lambda out: out + 1)
    assert disagreement(nothing, case_of("silu_mul", "empty"), torch.float32) is None, "nothing to compare"
    assert disagreement(nothing, case_of("silu_mul", "single"), torch.float32) is not None


def test_an_op_that_works_in_place_gets_copies() -> None:
    for op, name in (("kv_append", "ring"), ("kv_compact", "swap"), ("emit", "tree"), ("decoder_layers", "3x5")):
        case = case_of(op, name)
        given = case.make(Generator().manual_seed(7), torch.float32)
        again = case.make(Generator().manual_seed(7), torch.float32)
        out = run_op(Reference(), op, given)
        written = {"emit": 2}.get(op, 0)
        if op == "decoder_layers":
            assert given[3][0].keys.equal(again[3][0].keys)
            assert len(out) == 3
            assert not out[1].equal(given[3][0].keys)
            continue
        assert given[written].equal(again[written])
        assert not out[0].equal(given[written]), "what was written is returned"


class PackedBackend(Reference):
    """Marks what it packs."""

    def pack(self, weight: Any) -> Any:
        return "packed", weight


def test_matrices_are_given_to_a_backend_in_its_own_form_and_nothing_else_is() -> None:
    x, weight, bias, wide = case_of("linear", "bias").make(Generator().manual_seed(7), torch.float32)
    assert packed(PackedBackend(), "linear", (x, weight, bias, wide)) == (x, ("packed", weight), bias, wide)
    given = case_of("decoder_layers", "three").make(Generator().manual_seed(7), torch.float32)
    x, layers, turn, at = packed(PackedBackend(), "decoder_layers", given)
    assert [layer.down for layer in layers] == [("packed", layer.down) for layer in given[1]]
    assert (x, turn, at) == (given[0], given[2], given[3])
    assert packed(PackedBackend(), "rms_norm", (x, weight)) == (x, weight)
