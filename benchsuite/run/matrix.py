"""The matrix of arms: the product of the options' comma-separated lists."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchsuite import values
from benchsuite.measure.arms import Arm, PeerName, Setting
from benchsuite.measure.peers import parse_peer, peer_batches
from benchsuite.run.names import EXTRA, named_workloads, split_arms
from benchsuite.run.request import RunRequest
from specdec.devices import kind_of, records
from specdec.errors import SpecdecError, unknown
from specdec.lists import split_list
from specdec.ranks import Place
from specdec.registry import Registry
from specdec_plugins.endpoints.named import Endpoint


def build_matrix(request: RunRequest) -> list[Arm]:
    """Return every arm that a request names. Arms of one setting are adjacent, with plain first.

    Raises SpecdecError for a peer or a strategy that cannot be read, and for a controller that does not exist or does
    not take the K it is given. ``Bench.prepare`` and ``engine_arms`` check the other names.
    """
    peers = [peer for peer in request.peer if peer == "auto" or (peer != "none" and parse_peer(peer))]
    peers += endpoint_peers(request.endpoint)
    ours = named_strategies(_of_widths(request.width) if request.width else request.arm)
    ours = ours if request.arm or request.width else _product(request)
    arms = [
        Arm(setting, **one)
        for setting in settings_of(request)
        for one in _strategies(setting, ours, peers, request.graphs == "auto")
    ]
    return list(dict.fromkeys(arms))


def engine_arms(request: RunRequest, setting: Setting) -> list[Arm]:
    """Return the arms of the engine alone in one setting: plain, plain again, and the strategies of the request.

    Raises SpecdecError as ``build_matrix``, and for names and options that do not exist.
    """
    alone = replace(
        request,
        target=(setting.target,),
        backend=(setting.backend,),
        device=(setting.device,),
        dtype=(setting.dtype,),
        batch=(1,),
        sampling={name: (setting.values[name],) for name in request.sampling},
        workload=request.workload[:1],
        peer=(),
        endpoint=(),
    )
    arms, registry = [arm for arm in build_matrix(alone) if not arm.eager], Registry()
    for arm in arms:
        arm.check(registry)
    return arms


WIDTH_DRAFT = "oracle(0.9)"
"""The draft of --specdec-width: its windows are always full, and are kept up to any place of them."""


def _of_widths(widths: Sequence[int]) -> str:
    """The strategies of these window widths, as --specdec-arm has them; plain decoding has width 1."""
    return ", ".join(f"{WIDTH_DRAFT}/match/fixed/{width - 1}" for width in widths if width > 1)


def known_part(request: RunRequest) -> RunRequest:
    """Return a request without the strategies and peers that no installed plugin has, or has without their options.

    A base that is measured beside this checkout need not have all of them.
    """
    registry = Registry()

    def strategy(text: str) -> None:
        for one in named_strategies(text):
            for kind in ("draft", "policy"):
                registry.parse(kind, one[kind])

    draft, policy, controller = (
        _accepted(partial(registry.parse, kind), getattr(request, kind)) for kind in ("draft", "policy", "controller")
    )
    return replace(
        request,
        draft=() if request.arm else draft,  # where no arm is left, they would be run
        policy=policy,
        controller=controller,
        peer=_accepted(lambda text: text in EXTRA["peer"] or parse_peer(text), request.peer),
        arm=", ".join(_accepted(strategy, split_list(request.arm))),
    )


def _accepted(read: Callable[[str], object], texts: Iterable[str]) -> tuple[str, ...]:
    """The texts that ``read`` does not refuse."""
    found = []
    for text in texts:
        try:
            read(text)
        except SpecdecError:
            continue
        found.append(text)
    return tuple(found)


def settings_of(request: RunRequest) -> list[Setting]:
    """Return the settings of a request: the product of its lists. SpecdecError for a workload that cannot be read."""
    lists: dict[str, Sequence[object]] = {
        **{name: getattr(request, name) for name in ("target", "backend", "device", "dtype", "batch")},
        **request.sampling,
        "workload": named_workloads(request),
    }
    products = (dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values()))
    return [Setting.of({"seed": request.seed, **chosen}) for chosen in products]


def _product(request: RunRequest) -> list[dict[str, Any]]:
    """Every draft with every policy, controller and K."""
    controllers: list[tuple[str, int | None]] = [
        *((f"adaptive(maximum={k})", min(k, 4)) for k in request.adaptive_k or ()),
        *([] if request.adaptive_k else itertools.product(request.controller, request.k or [None])),
    ]
    registry = Registry()
    lengths = [registry.split_k(controller, k) for controller, k in controllers]
    return [
        {"draft": draft, "policy": policy, "controller": controller, "k": k}
        for draft, policy, (controller, k) in itertools.product(request.draft, request.policy, lengths)
    ]


def named_strategies(text: str) -> list[dict[str, Any]]:
    """Return the strategies of a text as --specdec-arm has it, each as the fields of an ``Arm``. SpecdecError for one
    that cannot be read.

    Example: ``named_strategies("ngram/match/fixed/4, mine=suffix")``
    """
    registry, strategies = Registry(), list[dict[str, Any]]()
    for short, parts in split_arms(text):
        k = values.wholes(0)(parts[3], "the K of --specdec-arm")[0] if len(parts) == 4 else None
        draft, policy, controller = [*parts[:3], *["match", "fixed"][len(parts) - 1 :]]
        controller, k = registry.split_k(controller, k)
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
    _refuse_unknown_plain([PeerName(peer) for peer in named])
    outside = [peer for peer in named if setting.batch == 1 or peer_batches(peer)]
    once_more = [{"again": True}, *([{"eager": True}] if graphs and records(kind) else [])]
    return [{}, *once_more, *ours, *({"peer": peer} for peer in outside)]


def _refuse_unknown_plain(peers: Sequence[PeerName]) -> None:
    """Raise SpecdecError for a peer whose plain decoding is to be that of another, which is not among them."""
    for peer in peers:
        names = [other.given for other in peers if other is not peer and other.name == peer.name and other.given]
        if peer.own_plain is not None and peer.own_plain not in names:
            raise unknown(f"plain of the peer {peer.label}", peer.own_plain, names, "Name a peer of --specdec-peer.")


def default_peers(kind: str) -> list[str]:
    """Return the peers of ``--specdec-peer auto`` on a kind of device.

    On CUDA the compiled one is among them, because our steps are recorded there: a forward that the host launches op by
    op is no measure for them. Elsewhere compiling takes longer than a short run, and collective calls are not compiled.
    """
    alone = Place.of(os.environ) is None
    compiled = ["transformers_compiled"] if kind == "cuda" and alone else []
    return ["transformers", "transformers_prompt_lookup", *compiled]


def endpoint_peers(endpoints: Sequence[Endpoint]) -> list[str]:
    """Return servers as peers, which are asked one request at a time. SpecdecError without httpx.

    Example: of ``--specdec-endpoint spec=http://localhost:8001`` it is
    ``["endpoint(url=http://localhost:8001, name=spec)"]``.
    """
    return [
        parse_peer(f"endpoint({one.url!r}, name={one.name!r}" + (f", model={one.model!r})" if one.model else ")")).text
        for one in endpoints
    ]
