"""Fixtures of the suite's own tests: tiny targets, and engines over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from hypothesis import settings

from benchsuite import zoo
from specdec import Registry, Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel

# The engine's first call in a process is slow and machines are shared: a deadline would time noise.
settings.register_profile("specdec", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("specdec")

Make = Callable[..., Assembly]


@cache
def registry() -> Registry:
    """The installed plugins."""
    return Registry()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny products are faster on one thread, and beside a busy neighbour a hundred times so."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def assemble(one_thread: None) -> Make:
    """``assemble("qwen3", device="cpu", max_rows=2, max_length=256)``: an Assembly over a tiny random model."""

    def make(
        family: str = "llama",
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_rows: int = 1,
        max_length: int = 192,
        seed: int = 0,
        backend: str = "auto",
    ) -> Assembly:
        model = zoo.build(family, seed, dtype).to(device)
        target = ArenaModel(model, registry().backend(backend))
        tokenizer = catalog.byte_tokenizer()
        return Assembly(registry(), target, tokenizer, max_rows=max_rows, max_length=max_length)

    return make


def prompts(count: int = 4, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of different lengths, some with repetition, from 3 to 60 tokens of the byte vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [37, 3, 60, 18, 29, 44][:count]
    made = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]
    return [tuple((p[: len(p) // 2] * 2) or p) if i % 2 == 0 else tuple(p) for i, p in enumerate(made)]


def requests(params: SamplingParams | None = None, count: int = 4) -> list[Request]:
    """Requests over ``prompts``, each a little longer than the one before."""
    base = params or SamplingParams(max_new_tokens=24)
    return [
        Request(i, prompt, SamplingParams(**{**vars(base), "max_new_tokens": base.max_new_tokens + 5 * i}))
        for i, prompt in enumerate(prompts(count))
    ]


DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.gpu]),
    pytest.param("mps", marks=[pytest.mark.mps, pytest.mark.gpu]),
]
"""Every device a test may run on; those that are not here skip with the reason."""
