"""What CUDA's kernels do with one token at a time (``csrc/noise_cuda.h``), compiled for the host."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.guards.snippet import compiled_snippet
from benchsuite.conformance.ops.cases import CASES, EQUAL_NOISE
from specdec import Window
from specdec_kernels import build
from specdec_kernels.cpu import cpu_compiler
from specdec_kernels.reference import Reference

THREADS = 5
"""Tokens that follow each other are seen by different threads; the row's best token is the best of theirs."""

SOURCE = """
#include "noise_cuda.h"
extern "C" int64_t best_left(const float* p, const float* q, uint64_t key, long size, long threads) {
    uint64_t row = 0;
    for (long thread = 0; thread < threads; thread++) {
        Best best;
        for (long i = thread; i < size; i += threads) best.draw_left(p[i], q[i], key, i);
        if (best.packed > row) row = best.packed;
    }
    return token_of(row);
}
extern "C" int64_t best(const float* logits, const uint64_t* key, long size, long threads) {
    uint64_t row = 0;
    for (long thread = 0; thread < threads; thread++) {
        Best best;
        for (long i = thread; i < size; i += threads)
            if (key) best.draw(false, logits[i], *key, i);
            else best.take(false, logits[i], i);
        if (best.packed > row) row = best.packed;
    }
    return token_of(row);
}
extern "C" int64_t walked(
    const int64_t* tokens, const int64_t* parents, const int64_t* choices, long width, long slots, int64_t* path,
    int64_t* next) {
    return walk(tokens, parents, choices, width, slots, path, next);
}
extern "C" int kept(float p, float q, uint64_t key) { return keeps(p, q, key); }
"""


@pytest.fixture(scope="module")
def host() -> ctypes.CDLL:
    """The functions above. A change of the header is another file in the cache."""
    header = (build.SOURCES / "noise_cuda.h").read_text()
    flags = ["-std=c++17", f"-I{build.SOURCES}"]
    if cpu_compiler() is None:
        pytest.skip("no C++ compiler to run CUDA's draws on the host")
    path = compiled_snippet("CUDA's draws", SOURCE, "cuda-draws-{}.so", flags, made_for=header)
    library = ctypes.CDLL(str(path))
    library.best.restype = library.best_left.restype = library.walked.restype = ctypes.c_int64
    library.kept.argtypes = [ctypes.c_float, ctypes.c_float, ctypes.c_uint64]
    return library


def _address(values: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.data_ptr())


def _best_left(host: ctypes.CDLL, p: Tensor, q: Tensor, key: int) -> int:
    p, q = p.contiguous(), q.contiguous()
    return int(host.best_left(_address(p), _address(q), ctypes.c_uint64(key), ctypes.c_long(len(p)), THREADS))


def _best(host: ctypes.CDLL, logits: Tensor, key: Tensor | None) -> int:
    logits = logits.contiguous()
    where = None if key is None else _address(key)
    return int(host.best(_address(logits), where, ctypes.c_long(len(logits)), THREADS))


def test_what_is_left_of_p_is_drawn_as_the_reference_draws_it_whatever_q_holds(host: ctypes.CDLL) -> None:
    case = next(case for case in CASES if case.op == "rejection_sample" and case.name == "broken")
    p, window, accept_key, residual_key, bonus_key = case.make(torch.Generator().manual_seed(7), torch.float32)
    p, q, key = p[:, 0].clone(), window.q[:, 0], residual_key[:, :1].clone()
    p[:, 5] = 0.0  # the proposal, which is rejected in every row
    one = torch.ones(len(p), dtype=torch.int64)
    certain_rejection = Window.chain(one, one[:, None] * 5, one, q[:, None])
    keys = (k.expand(-1, 2) for k in (accept_key[:, :1], key, bonus_key[:, :1]))
    expected = Reference().rejection_sample(p[:, None].expand(-1, 2, -1), certain_rejection, *keys).next
    assert {bool(row.isfinite().all()) for row in q} == {True, False}
    got = [_best_left(host, p[row], q[row], int(key[row, 0])) for row in range(len(p))]
    assert got == expected.tolist()


def test_a_proposal_whose_q_is_not_a_positive_number_is_never_kept(host: ctypes.CDLL) -> None:
    for q in (math.nan, math.inf, 0.0, -0.0):
        assert not any(host.kept(0.9, q, key) for key in range(100)), q
    assert all(host.kept(0.9, 0.9, key) for key in range(100))


def test_the_first_of_equals_is_taken_with_noise_and_without(host: ctypes.CDLL) -> None:
    key, (first, second) = EQUAL_NOISE
    tied = torch.zeros(64).index_fill(0, torch.tensor([first, second]), 0.5)
    assert _best(host, tied, None) == first
    assert _best(host, tied.log(), torch.tensor([key])) == first
    assert _best_left(host, tied, torch.zeros(64), key) == first
    for place in np.random.default_rng(0).permutation(63):
        assert _best(host, torch.zeros(64).index_fill(0, torch.tensor([place, 63]), 1.0), None) == place


def test_a_row_is_walked_as_the_reference_walks_it(host: ctypes.CDLL) -> None:
    """Trees of two tokens: many siblings have the same one, and the first of them is followed."""
    case = next(case for case in CASES if case.op == "verify_prefix" and case.name == "tree-32x16")
    window, choices = case.make(torch.Generator().manual_seed(7), torch.float32)
    expected = Reference().verify_prefix(window, choices)
    for row, width in enumerate(window.width.tolist()):
        path, following = torch.zeros(16, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        given = [_address(part[row].contiguous()) for part in (window.tokens, window.parents, choices)]
        sizes = ctypes.c_long(width), ctypes.c_long(16)
        accepted = host.walked(*given, *sizes, _address(path), _address(following))
        assert accepted == expected.num_accepted[row]
        assert (path.tolist(), int(following)) == (expected.path[row].tolist(), int(expected.next[row]))


def test_a_row_with_nan_or_infinity_gives_a_token_of_the_vocabulary(host: ctypes.CDLL) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        for row in (torch.full((37,), bad), torch.linspace(-1, 1, 37).index_fill(0, torch.tensor([20]), bad)):
            for key in (None, torch.tensor([3])):
                assert 0 <= _best(host, row, key) < 37
