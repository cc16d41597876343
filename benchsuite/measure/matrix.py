"""The matrix of arms: the product of the options' comma-separated lists."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar, cast

import pytest

from benchsuite import options
from benchsuite.measure.peers import PeerName, default_peers, endpoint_peers, parse_peer, peer_batches
from benchsuite.measure.workloads import workload_names
from specdec.devices import kind_of, records
from specdec.errors import SpecdecError, unknown
from specdec.registry import Registry, split_list
from specdec.request import RANGES, SamplingParams

N = TypeVar("N", int, float)

RANGED = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""Fields of ``Setting`` whose values ``specdec.request.RANGES`` limits from both sides."""


@dataclass(frozen=True)
class Setting:
    """Values that all arms of one comparison share. Arms of different settings are never compared."""

    target: str
    backend: str
    device: str
    dtype: str
    batch: int
    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    seed: int
    workload: str
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def without_workload(self) -> Setting:
        """This setting without its workload; models and engines are shared by this key."""
        return replace(self, workload="")

    @property
    def odd(self) -> list[str]:
        """Every value that is not the usual one, with its name: ``batch4``. The seed is one for a whole run."""
        usual = Setting("", "auto", "auto", "auto", 1, 0.0, 0, 1.0, 64, self.seed, "")
        return [
            f"{name}{got}"
            for name, got in asdict(self).items()
            if name not in ("target", "workload") and got != getattr(usual, name)
        ]

    @property
    def id(self) -> str:
        """The setting's part of its rows' names; unique within a matrix."""
        return "-".join([self.target, self.workload, *self.odd])

    def sampling(self, eos: tuple[int, ...]) -> SamplingParams:
        """Return the sampling parameters of the setting's requests. Raises SpecdecError for a value out of range."""
        return SamplingParams(
            self.temperature,
            self.top_k,
            self.top_p,
            self.seed,
            self.max_new_tokens,
            eos=eos,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
        )


@dataclass(frozen=True)
class Arm:
    """One row of a comparison: a strategy of the engine, plain decoding, or a peer (another library).

    ``controller`` is written without its K, which is ``k``; ``k`` is None for a controller that takes no K.
    ``name``: the user's short name. ``again``: plain decoding a second time; its speed relative to plain's is what the
    machine's noise makes of 1. ``eager``: plain decoding whose steps are not recorded, where plain's are; plain's speed
    relative to its is what recording is worth.
    """

    setting: Setting
    draft: str | None = None
    policy: str = "match"
    controller: str = "fixed"
    k: int | None = 0
    peer: str | None = None
    again: bool = False
    eager: bool = False
    name: str | None = field(default=None, compare=False)

    @property
    def plain(self) -> bool:
        """Whether this is the engine without proposals, and not once more (``again``, ``eager``)."""
        return self.draft is None and not self.control

    @property
    def control(self) -> bool:
        """Whether this is an outside reference, or plain decoding once more: no strategy, and not the baseline."""
        return self.peer is not None or self.again or self.eager

    @property
    def label(self) -> str:
        """The row's name in tables: ``plain``, ``ngram``, ``transformers prompt lookup`` …"""
        once_more = "plain again" if self.again else "plain eager" if self.eager else None
        ours = once_more or self.name or self.draft or "plain"
        return PeerName(self.peer).label if self.peer else ours

    @property
    def strategy(self) -> str:
        """The arm as --specdec-arm or --specdec-peer writes it, ``ngram/match/fixed/4``; or its label."""
        if self.draft is None:
            return self.peer or self.label
        return "/".join([self.draft, self.policy, self.controller, *([] if self.k is None else [str(self.k)])])

    @property
    def id(self) -> str:
        """The arm's part of a test id; unique within a matrix."""
        strategy = [self.label.replace(" ", "-")]
        if self.peer is not None:
            # -k cannot select by an equals sign.
            strategy += [part.replace("=", "") for part in PeerName(self.peer).shown.split(", ") if part]
        if self.draft is not None:
            strategy += [self.policy, *([] if self.k is None else [f"k{self.k}"])]
            strategy += [self.controller] if self.controller != "fixed" else []
        setting = self.setting
        return "-".join([setting.target, setting.workload, *strategy, *setting.odd]).replace("/", ":")


def arm_named(text: str, arms: Sequence[Arm]) -> Arm:
    """Return the arm that ``text`` names, by its strategy or its label; of several workloads', the first.

    Raises SpecdecError if no arm has that name, or several strategies have it.
    """
    exact = [arm for arm in arms if arm.strategy == text]
    found = {arm.strategy: arm for arm in exact or arms if text in (arm.label, arm.strategy)}
    if len(found) == 1:
        return next(iter(found.values()))
    choices = list(dict.fromkeys(arm.strategy for arm in arms))
    if found:
        raise SpecdecError(f"--specdec-baseline {text!r} names {len(found)} arms; name one of {', '.join(found)}")
    raise unknown("arm", text, choices, "--specdec-baseline names an arm of every setting that is measured.")


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
        "temperature": numbers("temperature", float, 0.0),
        "top_k": numbers("top-k", int, 0),
        "top_p": numbers("top-p", float, 0.0),
        **{name: [_within(name, text) for text in texts(name.replace("_", "-"))] for name in RANGED},
        "max_new_tokens": numbers("max-new-tokens", int, 1),
        "workload": [name for text in texts("workload") for name in workload_names(text)],
    }
    products = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    settings: Iterator[Setting] = (Setting(seed=seed, **cast(Any, values)) for values in products)
    arms = [Arm(setting, **one) for setting in settings for one in _strategies(setting, strategies, peers, graphs)]
    for arm in arms:
        arm.setting.sampling(())  # raises SpecdecError for a value out of range
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
