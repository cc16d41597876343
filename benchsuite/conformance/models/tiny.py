"""Engines over tiny random models, and requests for them, used by the tests and the conformance kit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from benchsuite.conformance.models import families
from specdec import Draft, Engine, Env, Policy, Registry, Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.interfaces import Factory
from specdec.model import ArenaModel
from specdec.unpackaged import unpackaged_plugins
from specdec_plugins.drafts.oracle import Oracle

Extra = tuple[str, str, Factory]
"""(kind, name, factory) of a plugin that is not installed."""


def registry(*extra: Extra) -> Registry:
    """Return a registry of all plugins that are found and of ``extra`` ones."""
    return _registry(unpackaged_plugins(), *extra)


@cache
def _registry(unpackaged: tuple[tuple[str, object], ...], *extra: Extra) -> Registry:
    found = Registry()
    for kind, name, factory in extra:
        found.add(kind, name, factory, "the conformance kit")
    return found


def policy_named(text: str) -> Policy:
    """Return a policy by name and options; no built-in policy needs an environment."""
    entry, options = registry().parse("policy", text)
    built: Policy = entry.factory(None, **options)
    return built


def assembly(
    family: str = "llama",
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_rows: int = 1,
    max_length: int = 192,
    seed: int = 0,
    backend: str = "auto",
    extra: tuple[Extra, ...] = (),
) -> Assembly:
    """Return an Assembly over a tiny random model.

    Example: ``assembly("qwen3", max_rows=2).engine("ngram", k=4)``
    """
    model = families.build_model(family, seed, dtype).to(device)
    plugins = registry(*extra)
    target = ArenaModel(model, plugins.backend(backend))
    return Assembly(plugins, target, catalog.byte_tokenizer(), max_rows=max_rows, max_length=max_length)


def save_target(family: str, folder: Path, seed: int = 0) -> str:
    """Save a family's target in a folder; return the quoted path for ``draft_model(model=…)``, to draft with it.

    With another ``seed`` it is another model.
    """
    families.build_model(family, seed).save_pretrained(folder)
    catalog.byte_tokenizer().save_pretrained(folder)
    return repr(str(folder))


def prompts(count: int = 4, seed: int = 0) -> list[tuple[int, ...]]:
    """Return prompts of different lengths, some with repetition, from 3 to 60 tokens of the byte vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [37, 3, 60, 18, 29, 44][:count]
    made = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]
    return [tuple((p[: len(p) // 2] * 2) or p) if i % 2 == 0 else tuple(p) for i, p in enumerate(made)]


def requests(params: SamplingParams | None = None, count: int = 4) -> list[Request]:
    """Return requests over ``prompts``, each with three more new tokens than the previous one."""
    base = params or SamplingParams(max_new_tokens=14)
    return [
        Request(i, prompt, SamplingParams(**{**vars(base), "max_new_tokens": base.max_new_tokens + 3 * i}))
        for i, prompt in enumerate(prompts(count))
    ]


def ask(engine: Engine, ks: Iterable[int]) -> None:
    """Make the engine's controller return these K, one for each step. Changes the engine in place."""
    asked = iter(ks)
    object.__setattr__(engine.controller, "next_k", lambda stats: next(asked))


def past_stops(full: tuple[int, ...]) -> Extra:
    """A draft named ``past_stops`` that proposes ``full`` whatever ends a request, so that stops lie inside accepted
    blocks."""

    def factory(env: Env) -> Draft:
        return Oracle(replace(env, plain=lambda request: full), rate=1.0)

    return "draft", "past_stops", factory
