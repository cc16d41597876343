"""Costs: seconds of the parts of a step, measured apart from any arm's run, and kept in a file of their own."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchsuite.machine import provenance
from benchsuite.machine.files import strict_json, write_file
from benchsuite.measure.arms import Arm, Setting
from specdec.cache import cache_root
from specdec.calibration import Point, forward_seconds, interpolated
from specdec.errors import SpecdecError
from specdec.model import ArenaModel

VERSION_OF_COSTS = 3
"""Of the file's form."""


@dataclass(frozen=True)
class DraftCosts:
    """Seconds of a strategy's own parts, by rows, then by tokens of context.

    ``steps``: of the draft (``propose`` and ``observe``) in a step, by the proposals that it made; a key of -1 is a
    step that asked for none. ``rest``: of controller, policy, commit and host, in steps that asked for none (0) and for
    some (1). ``admit``: of ``admit`` and ``prefilled`` for a request; ``release``: of ``release`` and ``move``.
    ``forward``: of the target over this strategy's windows, where they are trees, which cost more than chains of the
    same width; empty for chains.
    """

    steps: Mapping[int, Mapping[int, Mapping[int, float]]]
    rest: Mapping[int, Mapping[int, float]]
    admit: Mapping[int, float]
    release: float = 0.0
    forward: Mapping[Point, float] = field(default_factory=dict)

    def draft(self, rows: int, length: float, proposed: int) -> float:
        """Seconds of the draft in a step; ``proposed`` -1 where nothing was asked for."""
        return interpolated(
            {
                some: interpolated({at: _of(kinds, proposed) for at, kinds in lengths.items()}, round(length))
                for some, lengths in self.steps.items()
            },
            rows,
        )

    def other(self, rows: int, asked: bool) -> float:
        """Seconds of everything but draft and target in a step."""
        return interpolated({some: kinds.get(int(asked), kinds.get(0, 0.0)) for some, kinds in self.rest.items()}, rows)


def _of(kinds: Mapping[int, float], proposed: int) -> float:
    """The seconds for ``proposed``, between those measured; idle steps have a key of their own."""
    if proposed < 0:
        return kinds.get(-1, 0.0)
    made = {key: seconds for key, seconds in kinds.items() if key >= 0}
    return interpolated(made, proposed) if made else kinds.get(-1, 0.0)


@dataclass(frozen=True)
class Costs:
    """What a target, its strategies and the engine cost on one machine, in seconds.

    ``identity``: everything that the figures depend on, by name; another machine's or model's are refused. ``forward``:
    of the target in steps of strategies, by ``Point``. ``prefill``: of a prompt, by its tokens. ``plain``: of a whole
    step of plain decoding, by ``Point`` of one slot, from runs without a draft: a forward of one token after a draft
    has worked is slower, and would make every speedup look larger. ``strategies``: by their names. ``noise``: the share
    by which the same work takes longer or shorter from one time to the next (the standard deviation of its logarithm).
    ``made``: seconds since 1970. ``skips_padding``: whether padding costs nothing (``ArenaModel.skips_padding``): a
    forward then costs what its rows' slots do on average. A file that does not say so is of padded windows.
    A strategy's name is ``strategy_of`` an arm: what its draft costs depends on the proposals made, not on its K.

    Example: ``Costs.load(path, identity).step("ngram/match/fixed", rows=1, length=200, asked=4, proposed=3, slots=4)``
    """

    identity: Mapping[str, str]
    forward: Mapping[Point, float]
    prefill: Mapping[int, float]
    plain: Mapping[Point, float]
    strategies: Mapping[str, DraftCosts]
    noise: float
    made: float = field(default_factory=time.time)
    skips_padding: bool = False

    def verify(self, width: float, rows: int, length: float, strategy: str | None = None) -> float:
        """Seconds of a forward of the target over chains, or over what a strategy proposes; between whole widths on a
        straight line."""
        own = self.strategies[strategy].forward if strategy else {}
        if own and 1 < width < 2:  # from one slot, which is no tree, to the narrowest tree
            one, two = (self.verify(whole, rows, length, strategy) for whole in (1, 2))
            return one + (width - 1) * (two - one)
        return forward_seconds(own if own and width > 1 else self.forward, width, rows, round(length))

    def plain_step(self, rows: int, length: float) -> float:
        """Seconds of a step of plain decoding."""
        return forward_seconds(self.plain, 1, rows, round(length))

    def slots(self, proposed: Sequence[int]) -> float:
        """What a row of a step with so many proposals of each row has to compute, in slots; see ``Step.slots``."""
        return 1 + (fmean(proposed) if self.skips_padding else max(proposed))

    def step(self, strategy: str, rows: int, length: float, asked: int, proposed: int, slots: float) -> float:
        """Seconds of a step that asked for ``asked`` proposals a row, got at most ``proposed`` of one row, and had
        ``slots`` of each row to compute (``slots``)."""
        known = self.strategies[strategy]
        drafting = known.draft(rows, length, proposed if asked else -1)
        return self.verify(slots, rows, length, strategy) + drafting + known.other(rows, asked > 0)

    def begun(self, strategy: str | None, length: float) -> float:
        """Seconds of a prompt's prefill, with what the draft does then and when the request ends."""
        known = self.strategies[strategy] if strategy else None
        drafting = interpolated(known.admit, round(length)) + known.release if known and known.admit else 0.0
        return interpolated(self.prefill, round(length)) + drafting

    def with_strategies(self, more: Mapping[str, DraftCosts]) -> Costs:
        """These costs and those of further strategies."""
        return replace(self, strategies={**self.strategies, **more})

    def cheaper(self, strategy: str, share: float) -> Costs:
        """These costs, with a draft whose proposals take ``share`` of their time."""
        known = self.strategies[strategy]
        steps = {
            rows: {
                length: {made: seconds * share if made > 0 else seconds for made, seconds in kinds.items()}
                for length, kinds in lengths.items()
            }
            for rows, lengths in known.steps.items()
        }
        return self.with_strategies({strategy: replace(known, steps=steps)})

    def age(self, now: float | None = None) -> str:
        """How long ago they were measured, in words. Example: ``measured 3 min ago``."""
        seconds = (time.time() if now is None else now) - self.made
        for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
            if seconds >= size:
                return f"measured {seconds / size:.0f} {unit} ago"
        return "measured just now"

    def save(self, path: Path) -> None:
        """Write them to a file, replacing it in one go."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, strict_json(_written_costs(self)).encode())

    @staticmethod
    def load(path: Path, identity: Mapping[str, str]) -> Costs:
        """Read a file. Raises SpecdecError if it holds something else, or was made where ``identity`` differs."""
        again = "measure again: leave the file out, or delete it"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["version"] != VERSION_OF_COSTS:
                raise SpecdecError(f"{path} has calibrations of version {found['version']}; {again}")
            costs = _read_costs(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"{type(error).__name__}: {error}"
            raise SpecdecError(f"{path} is no file of calibrations ({said}); {again}") from None
        names = sorted({*identity, *costs.identity})
        odd = [name for name in names if identity.get(name) != costs.identity.get(name)]
        if odd:
            wrong = "; ".join(f"{name} {costs.identity.get(name)!r}, here {identity.get(name)!r}" for name in odd)
            raise SpecdecError(
                f"the calibrations of {path} were made elsewhere: {wrong}. Times do not carry over: {again}"
            )
        return costs


def strategy_of(arm: Arm) -> str:
    """Return an arm's strategy without its K, as costs name it. Example: ``ngram/match/goodput``"""
    return "/".join([arm.draft or "", arm.policy, arm.controller])


def costs_identity(setting: Setting, target: ArenaModel) -> dict[str, str]:
    """Return all that costs depend on: the machine, its threads, this code, the target with its weights, the dtype.

    Weights are told apart by a digest of the configuration and of the smallest parameters.
    """
    digest = hashlib.sha256(target.model.config.to_json_string().encode())
    for parameter in sorted(target.model.parameters(), key=lambda one: one.numel())[:32]:
        digest.update(parameter.detach().to("cpu", torch.float32).numpy().tobytes())
    return {
        "machine": f"{provenance.device_name(target.device)}, {provenance.cores_line()}",
        "vectors": " ".join(provenance.vectors()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "commit": " ".join(filter(None, [provenance.own_commit(), provenance.own_changes()])),
        "target": setting.target,
        "weights": digest.hexdigest()[:16],
        "dtype": setting.dtype if target.bits else str(target.dtype).removeprefix("torch."),
        "backend": target.ops.name,
    }


def costs_path(identity: Mapping[str, str]) -> Path:
    """Return where the costs of an identity are kept, in the cache folder."""
    said = json.dumps({**identity, "version": str(VERSION_OF_COSTS)}, sort_keys=True)
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    return cache_root() / "calibrations" / f"{digest}.json"


def _written_costs(costs: Costs) -> dict[str, Any]:
    return {
        "version": VERSION_OF_COSTS,
        "made": costs.made,
        "identity": dict(costs.identity),
        "noise": costs.noise,
        "skips_padding": costs.skips_padding,
        "forward_s": [[*point, seconds] for point, seconds in sorted(costs.forward.items())],
        "prefill_s": [[length, seconds] for length, seconds in sorted(costs.prefill.items())],
        "plain_s": [[*point, seconds] for point, seconds in sorted(costs.plain.items())],
        "strategies": {
            name: {
                "steps_s": [
                    [rows, length, proposed, seconds]
                    for rows, lengths in one.steps.items()
                    for length, kinds in lengths.items()
                    for proposed, seconds in sorted(kinds.items())
                ],
                "rest_s": [[rows, kind, s] for rows, kinds in one.rest.items() for kind, s in sorted(kinds.items())],
                "admit_s": [[length, seconds] for length, seconds in sorted(one.admit.items())],
                "release_s": one.release,
                "forward_s": [[*point, seconds] for point, seconds in sorted(one.forward.items())],
            }
            for name, one in costs.strategies.items()
        },
    }


def _read_costs(found: Mapping[str, Any]) -> Costs:
    strategies = {}
    for name, one in found["strategies"].items():
        steps: dict[int, dict[int, dict[int, float]]] = {}
        for rows, length, proposed, seconds in one["steps_s"]:
            steps.setdefault(rows, {}).setdefault(length, {})[proposed] = seconds
        rest: dict[int, dict[int, float]] = {}
        for rows, kind, seconds in one["rest_s"]:
            rest.setdefault(rows, {})[kind] = seconds
        strategies[name] = DraftCosts(
            steps, rest, dict(one["admit_s"]), one["release_s"], _read_points(one["forward_s"])
        )
    return Costs(
        dict(found["identity"]),
        _read_points(found["forward_s"]),
        dict(found["prefill_s"]),
        _read_points(found["plain_s"]),
        strategies,
        found["noise"],
        found["made"],
        found.get("skips_padding", False),
    )


def _read_points(found: Iterable[Sequence[Any]]) -> dict[Point, float]:
    return {Point(rows, length, width): seconds for rows, length, width, seconds in found}
