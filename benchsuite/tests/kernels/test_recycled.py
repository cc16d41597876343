"""Memory of large outputs is used again, and never under a tensor that something still refers to."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchsuite.conformance.models import tiny
from specdec_kernels.recycled import Recycled


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40), st.booleans()), min_size=1, max_size=30))
def test_what_is_kept_keeps_its_numbers(asked: list[tuple[int, int, bool]]) -> None:
    """Of each tensor a part is kept, or nothing; each is written whole."""
    memory, kept = Recycled(), list[tuple[Tensor, float]]()
    for number, (rows, size, keeps) in enumerate(asked, 1):
        given_out = memory.floats((rows, size))
        assert (given_out.shape, given_out.dtype) == ((rows, size), torch.float32)
        assert given_out.isfinite().all()
        given_out.fill_(number)
        if keeps:
            kept.append((given_out[-1:, size // 2 :], float(number)))
        del given_out
        assert all(bool((part == value).all()) for part, value in kept)


def test_memory_is_used_again_for_as_much_and_for_less() -> None:
    memory = Recycled()
    places = [memory.floats(shape).data_ptr() for shape in ((3, 40), (40, 3), (2, 2), (3, 40))]
    assert len({*places}) == 1
    kept = memory.floats((3, 40))
    assert memory.floats((3, 40)).data_ptr() != kept.data_ptr()


def test_the_logits_of_an_engines_steps_lie_in_one_place() -> None:
    """What refers to them ends with the step: else each step would map new memory."""
    engine = tiny.assembly(backend="cpu", max_rows=2).engine("ngram", k=3)
    places: list[int] = []
    engine.trace = lambda context, window, logits, verdict: places.append(logits.data_ptr())
    engine.run(tiny.requests(count=2))
    before = len(places)
    engine.run(tiny.requests(count=2))
    assert len(places) > before
    assert len({*places[before:]}) == 1
