"""The matrix of arms: the product of the options' comma-separated lists."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from benchsuite import options
from benchsuite.measure.arms import SAMPLED, Arm, Setting
from benchsuite.measure.peers import parse_peer, peer_batches
from benchsuite.measure.workloads import workload_names
from specdec.devices import kind_of, records
from specdec.errors import SpecdecError
from specdec.ranks import Place
from specdec.registry import Registry, split_list
from specdec.request import RANGES

N = TypeVar("N", int, float)

LEAST: dict[str, float] = {"temperature": 0.0, "top_k": 0, "top_p": 0.0, "max_new_tokens": 1}
"""Fields of ``SAMPLED`` that are limited from below alone; ``specdec.request.RANGES`` limits the others."""


def build_matrix(config: pytest.Config) -> list[Arm]:
    """Return every arm that the options ask for. Arms of one setting are adjacent, with plain first.

    Raises SpecdecError for a value of the wrong type, and for a controller that does not exist or does not take the K
    it is given. ``Bench.prepare`` checks the other names.
    """

    def texts(name: str) -> list[str]:
        found = split_list(options.value(config, name))
        if not found:
            raise SpecdecError(f"--specdec-{name} is empty; leave it out for its default")
        return found

    def numbers(name: str, kind: Callable[[str], N], least: N) -> list[N]:
        return [_number(f"--specdec-{name}", text, kind, least) for text in texts(name)]

    def sampled(name: str) -> Sequence[float]:
        option = name.replace("_", "-")
        if name in LEAST:
            return numbers(option, type(LEAST[name]), LEAST[name])
        return [_within(name, text) for text in texts(option)]

    peers = [peer for peer in texts("peer") if peer == "auto" or (peer != "none" and parse_peer(peer))]
    peers += endpoint_peers(options.value(config, "endpoint"))
    graphs = options.value(config, "graphs") == "auto"
    strategies = _named(config) if options.value(config, "arm") else _product(config, texts, numbers)
    seed = _number("--specdec-seed", options.value(config, "seed"), int, 0)
    lists: dict[str, Sequence[object]] = {
        "target": texts("target"),
        "backend": texts("backend"),
        "device": texts("device"),
        "dtype": texts("dtype"),
        "batch": numbers("batch", int, 1),
        **{name: sampled(name) for name in SAMPLED if name != "seed"},
        "workload": [name for text in texts("workload") for name in workload_names(text)],
    }
    products = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    settings = [Setting.of({"seed": seed, **values}) for values in products]
    arms = [Arm(setting, **one) for setting in settings for one in _strategies(setting, strategies, peers, graphs)]
    return list(dict.fromkeys(arms))


def _product(
    config: pytest.Config, texts: Callable[[str], list[str]], numbers: Callable[..., list[int]]
) -> list[dict[str, Any]]:
    """Every draft with every policy, controller and K."""
    if not options.value(config, "adaptive-k"):
        ks = numbers("k", int, 0) if options.value(config, "k") else [None]
        controllers = list(itertools.product(texts("controller"), ks))
    elif options.given(config, "k") or options.given(config, "controller"):
        raise SpecdecError(
            "--specdec-adaptive-k chooses K by itself: leave out --specdec-k and --specdec-controller, or leave it out"
        )
    else:
        controllers = [(f"adaptive(maximum={k})", min(k, 4)) for k in numbers("adaptive-k", int, 1)]
    registry = Registry()
    lengths = [registry.split_k(controller, k) for controller, k in controllers]
    return [
        {"draft": draft, "policy": policy, "controller": controller, "k": k}
        for draft, policy, (controller, k) in itertools.product(texts("draft"), texts("policy"), lengths)
    ]


def _named(config: pytest.Config) -> list[dict[str, Any]]:
    """The strategies that --specdec-arm names."""
    for name in ("draft", "policy", "controller", "k", "adaptive-k"):
        if options.given(config, name):
            raise SpecdecError(f"--specdec-arm says which strategies run; leave out --specdec-{name}, or --specdec-arm")
    return named_strategies(options.value(config, "arm"))


def named_strategies(text: str) -> list[dict[str, Any]]:
    """Return the strategies of a text as --specdec-arm has it, each as the fields of an ``Arm``. SpecdecError for one
    that cannot be read.

    Example: ``named_strategies("ngram/match/fixed/4, mine=suffix")``
    """
    registry, strategies = Registry(), list[dict[str, Any]]()
    for written in split_list(text):
        # An equals sign or a slash inside brackets belongs to an option: draft_model(model=path/to/draft).
        named = re.fullmatch(r"([^(/=]+)=(.*)", written)
        parts = [part.strip() for part in re.split(r"/(?![^(]*\))", named[2] if named else written)]
        if not 1 <= len(parts) <= 4 or not all(parts):
            raise SpecdecError(
                f"cannot read the arm {written!r}; expected draft, draft/policy, … or draft/policy/controller/K"
            )
        k = _number("the K of --specdec-arm", parts[3], int, 0) if len(parts) == 4 else None
        draft, policy, controller = [*parts[:3], *["match", "fixed"][len(parts) - 1 :]][:3]
        controller, k = registry.split_k(controller, k)
        short = named[1].strip() if named else None
        strategies.append({"draft": draft, "policy": policy, "controller": controller, "k": k, "name": short})
    names = [one["name"] for one in strategies if one["name"]]
    if len(set(names)) < len(names):
        raise SpecdecError(f"--specdec-arm has the names {', '.join(names)}; give each arm a name of its own")
    _refuse_two_names(strategies)
    return strategies


def _refuse_two_names(strategies: list[dict[str, Any]]) -> None:
    """Raise SpecdecError for a strategy with two names: it is one row, which can show only one of them."""
    first: dict[tuple[object, ...], dict[str, Any]] = {}
    for one in strategies:
        key = tuple(one[part] for part in ("draft", "policy", "controller", "k"))
        other = first.setdefault(key, one)
        if other["name"] != one["name"]:
            both = " and ".join(each["name"] or each["draft"] for each in (other, one))
            written = "/".join(str(part) for part in key if part is not None)
            raise SpecdecError(
                f"{both} of --specdec-arm are one strategy, {written}, which is measured once: leave one of them out; "
                "to see what noise makes of equal arms, look at `plain again`"
            )


def _strategies(setting: Setting, ours: list[dict[str, Any]], peers: list[str], graphs: bool) -> list[dict[str, Any]]:
    # transformers runs at batch 1 only: it pads its batches, and the engine's are ragged.
    kind = kind_of(setting.device)
    named = [parse_peer(peer).text for one in peers for peer in (default_peers(kind) if one == "auto" else [one])]
    outside = [peer for peer in named if setting.batch == 1 or peer_batches(peer)]
    once_more = [{"again": True}, *([{"eager": True}] if graphs and records(kind) else [])]
    return [{}, *once_more, *ours, *({"peer": peer} for peer in outside)]


def _within(name: str, text: str) -> float:
    """The value of a parameter that may be negative or has an upper end; SpecdecError, with its range, outside."""
    fits, expected = RANGES[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        option = name.replace("_", "-")
        raise SpecdecError(f"--specdec-{option} is {text!r}; expected numbers, each {expected}, separated by commas")
    return value


def _number(option: str, text: str, kind: Callable[[str], N], least: N) -> N:
    try:
        got = kind(text)
    except ValueError:
        got = least - 1
    if not least <= got < float("inf"):
        noun = "whole numbers" if kind is int else "numbers"
        raise SpecdecError(f"{option} is {text!r}; expected {noun}, {least} or more, separated by commas")
    return got


def default_peers(kind: str) -> list[str]:
    """Return the peers of ``--specdec-peer auto`` on a kind of device.

    On CUDA the compiled one is among them, because our steps are recorded there: a forward that the host launches op by
    op is no measure for them. Elsewhere compiling takes longer than a short run, and collective calls are not compiled.
    """
    alone = Place.of(os.environ) is None
    compiled = ["transformers_compiled"] if kind == "cuda" and alone else []
    return ["transformers", "transformers_prompt_lookup", *compiled]


def endpoint_peers(text: str) -> list[str]:
    """Return the servers of ``--specdec-endpoint`` as peers, which are asked one request at a time.

    Raises SpecdecError as ``parse_endpoints`` does, and without httpx.

    Example: ``endpoint_peers("spec=http://localhost:8001")`` is ``["endpoint(url=http://localhost:8001, name=spec)"]``.
    """
    if not text:
        return []
    from specdec_plugins.endpoints.named import parse_endpoints

    return [
        parse_peer(f"endpoint({one.url!r}, name={one.name!r}" + (f", model={one.model!r})" if one.model else ")")).text
        for one in parse_endpoints(text)
    ]
