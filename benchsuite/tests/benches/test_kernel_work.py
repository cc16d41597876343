"""Bytes and operations of the work on which kernels are timed, beside what a run of the reference reads and writes."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchsuite.benches.kernels.shapes import Target, Work
from benchsuite.conformance.guards.tape import result_tensors
from specdec import Registry, catalog
from specdec.model import ArenaModel

OPS = Registry().backend("reference")

WHOLE = (
    "rms_norm",
    "rotary",
    "silu_mul",
    "linear",
    "tree_attention",
    "process",
    "sample",
    "accept",
    "noise_keys",
    "kv_plan",
)
"""Ops that read all of their arguments, apart from a mask or an index, and write their results."""

ROWS_OF_TWO = ("rejection_sample", "block_sample", "tree_sample")
"""Ops that read the distributions of one slot a row."""


@cache
def target() -> Target:
    """The shapes of the tiny model."""
    return Target(ArenaModel(catalog.load("tiny", torch.device("cpu"), torch.float32).model, OPS))


def traffic_of(work: Work) -> tuple[int, int, int]:
    """Do the work on the reference; return the bytes of arguments and results, those changed in place, and the
    floating-point operations of its products."""
    given = [one for call in work.calls for one in result_tensors(call)]
    before = [one.clone() for one in given]
    with FlopCounterMode(display=False) as counter:
        made = [getattr(OPS, work.op)(*call) for call in work.calls]
    changed = sum(int((old != new).sum()) * new.itemsize for old, new in zip(before, given, strict=True))
    both = sum(one.nbytes for one in (*given, *result_tensors(made)))
    return both, changed, counter.get_total_flops()


@pytest.mark.parametrize("op", WHOLE)
def test_an_op_that_reads_all_it_is_given_moves_its_arguments_and_its_results(op: str) -> None:
    for work in list(target().work(op))[:6]:
        both, changed, _ = traffic_of(work)
        assert 0.85 * both <= work.moved <= both, work.shape
        assert changed == 0


@pytest.mark.parametrize("op", ["kv_append", "kv_compact"])
def test_an_op_in_place_moves_what_it_changes_read_and_written(op: str) -> None:
    for work in target().work(op):
        _, changed, _ = traffic_of(work)
        assert 2 * changed <= work.moved <= 2.6 * changed, "a cell that is moved to its own place does not change"


@pytest.mark.parametrize("op", ROWS_OF_TWO)
def test_a_sampler_reads_target_and_draft_at_one_slot_of_each_row(op: str) -> None:
    for work in target().work(op):
        rows, vocabulary = (int(part.partition("=")[2]) for part in work.shape.split() if part[0] in "BV")
        assert work.moved == 2 * rows * vocabulary * (4 + 4)


@pytest.mark.parametrize("op", ["linear", "decoder_layers"])
def test_products_have_the_operations_that_torch_counts(op: str) -> None:
    for work in list(target().work(op))[:20:3]:
        _, _, operations = traffic_of(work)
        assert work.operations == operations, work.shape


def test_attention_has_the_operations_of_its_two_products() -> None:
    for work in target().work("tree_attention"):
        [(query, keys, values, *_)] = work.calls
        groups = query.shape[1] // keys.shape[1]
        keys, values = (one.repeat_interleave(groups, dim=1) for one in (keys, values))
        with FlopCounterMode(display=False) as counter:
            (query @ keys.transpose(-1, -2)).softmax(-1) @ values
        assert work.operations == counter.get_total_flops()


@pytest.mark.parametrize("op", ["rms_norm", "rotary", "silu_mul", "process", "sample", "tree_attention"])
def test_work_of_more_numbers_has_as_many_more_operations(op: str) -> None:
    works = [work for work in target().work(op) if work.shape.split()[-1] == next(target().work(op)).shape.split()[-1]]
    each = {
        work.operations / sum(one.numel() for one in result_tensors(getattr(OPS, op)(*work.calls[0]))) for work in works
    }
    assert max(each) <= 1.001 * min(each)
    assert max(each) > 0
