"""What a run is asked for: its options, from wherever they come, read once into one frozen object. Imports no torch.

Nothing else reads an option of ours. Of pytest and of its other plugins' options those are read where they matter.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite import options
from benchsuite.gate import rules
from benchsuite.gate.record import GateError
from benchsuite.measure.arms import SAMPLED
from benchsuite.options import OPTIONS, Option, Texts
from benchsuite.run import sources
from specdec.errors import SpecdecError

if TYPE_CHECKING:
    from benchsuite.gate.rules import Rules
    from specdec_plugins.endpoints.named import Endpoint

KNOWN = {
    **{option.name: ("specdec", option) for option in OPTIONS if option.name not in ("config", "repeat")},
    **{f"gate-{option.name}": ("gate", option) for option in rules.OPTIONS},
}
"""Every option that a file may set, as a configuration file names it."""

UNSAID = ("results", "resume", "config", "repeat", "detail", "debug")
"""Options that say nothing of what is measured, or only where the other options are."""


@dataclass(frozen=True)
class RunRequest:
    """The options of a run as values; each field is the option of its name, described in ``benchsuite.options``.

    A tuple is a comma list, in the order of its text; None is an option that is left empty. ``sampling`` has the list
    of every number of ``SamplingParams`` but the seed, by their fields' names. ``given``: the names of the options that
    the user has set. ``texts``: what was written for those that say what is measured, as a run's manifest keeps them.
    ``gate``: the gate's own options, None for a run that neither gates nor saves a baseline.
    """

    target: tuple[str, ...]
    draft: tuple[str, ...]
    policy: tuple[str, ...]
    controller: tuple[str, ...]
    k: tuple[int, ...] | None
    adaptive_k: tuple[int, ...] | None
    arm: str
    width: tuple[int, ...] | None
    peer: tuple[str, ...]
    endpoint: tuple[Endpoint, ...]
    endpoint_start: Path | None
    endpoint_api: str
    trace: str
    concurrency: tuple[int, ...] | None
    rate: tuple[float, ...]
    certify: str
    certify_by: str
    slo: Mapping[str, float]
    backend: tuple[str, ...]
    device: tuple[str, ...]
    dtype: tuple[str, ...]
    graphs: str
    exact: bool
    batch: tuple[int, ...]
    workload: tuple[str, ...]
    depth: tuple[int, ...]
    sampling: Mapping[str, tuple[float, ...]]
    seed: int
    prompts: int | None
    pairs: int | None
    precision: float | None
    budget: float | None
    timeout: float | None
    baseline: str
    across: tuple[str, ...]
    judge: str
    deterministic: bool
    profile: bool
    dry_run: bool
    shard: tuple[int, int]
    detail: str
    debug: bool
    predict: str
    repeat: Path | None
    results: Path | None
    resume: bool
    given: frozenset[str]
    texts: Mapping[str, str]
    gate: Rules | None

    @classmethod
    def of(cls, given: Texts, prefix: str = "specdec-") -> RunRequest:
        """Return the request of these texts. SpecdecError or GateError for a text that an option does not take, and for
        options that exclude each other; ``prefix`` is that of their names in the errors.

        Example: ``RunRequest.of(texts_of({"batch": "1,4"})).batch`` is ``(1, 4)``.
        """
        read = {one.name.replace("-", "_"): one.value(given.texts[one.name], prefix) for one in OPTIONS}
        usual = {one.name: one.default for one in OPTIONS if one.name in KNOWN}
        said = {
            one.name: str(read[one.name.replace("-", "_")]).lower() if one.flag else given.texts[one.name]
            for one in OPTIONS
        }
        paths = {name: given.path(name.replace("_", "-")) for name in ("repeat", "results", "endpoint_start")}
        own = {
            "sampling": MappingProxyType({name: read[name] for name in SAMPLED if name != "seed"}),
            "endpoint": _endpoints(given.texts["endpoint"]),
            "given": frozenset(name for name in usual if name in given.given or given.texts[name] != usual[name]),
            "texts": MappingProxyType({name: text for name, text in said.items() if name not in UNSAID}),
            "gate": rules.parse(given),
        }
        known = {one.name for one in fields(cls)}
        found = cls(**{name: value for name, value in {**read, **paths, **own}.items() if name in known})
        found._refuse_contradictions()
        return found

    @property
    def chooses(self) -> bool:
        """Whether prompts and pairs follow from what has been measured."""
        return self.precision is not None or self.budget is not None

    def results_root(self) -> Path | None:
        """Return the folder of ``--specdec-results``, created if missing; None if none is given. SpecdecError if it
        cannot be made."""
        if self.results is not None:
            try:
                self.results.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SpecdecError(
                    f"--specdec-results {str(self.results)!r} cannot be made: {error.strerror}; name a folder"
                ) from error
        return self.results

    def _refuse_contradictions(self) -> None:
        """Raise SpecdecError for options that exclude each other."""
        if self.arm:
            for name in ("draft", "policy", "controller", "k", "adaptive-k"):
                if name in self.given:
                    raise SpecdecError(
                        f"--specdec-arm says which strategies run; leave out --specdec-{name}, or --specdec-arm"
                    )
        if self.width:
            for name in ("draft", "policy", "controller", "k", "adaptive-k", "arm"):
                if name in self.given:
                    raise SpecdecError(
                        "--specdec-width replays plain at each width, and no other strategy: leave out "
                        f"--specdec-{name}, or --specdec-width"
                    )
        if self.adaptive_k and {"k", "controller"} & self.given:
            raise SpecdecError(
                "--specdec-adaptive-k chooses K by itself: leave out --specdec-k and --specdec-controller, or leave it "
                "out"
            )
        if self.chooses and self.pairs:
            raise SpecdecError(
                "--specdec-pairs fixes what --specdec-precision and --specdec-budget choose: leave out one or the other"
            )
        if self.dry_run and self.predict != "off":
            raise SpecdecError(
                f"--specdec-predict {self.predict}: a dry run's figures mean nothing: leave out --specdec-dry-run, or "
                "--specdec-predict"
            )
        if self.results is None:
            for name, does in (("profile", "writes traces"), ("resume", "goes on with a run")):
                if getattr(self, name):
                    raise SpecdecError(f"--specdec-{name} {does}: name its folder with --specdec-results")
        if self.gate is None:
            return
        if self.resume:
            raise SpecdecError("the gate measures every row itself: leave out --specdec-resume, or --gate")
        if self.dry_run:
            raise SpecdecError("a dry run has nothing to gate: leave out --specdec-dry-run, or --gate")
        if self.chooses:
            raise SpecdecError(
                "the gate compares runs of the same work, and --specdec-precision and --specdec-budget choose another "
                "in every run: leave them out, or fix the work with --specdec-prompts and --specdec-pairs"
            )


def _endpoints(text: str) -> tuple[Endpoint, ...]:
    if not text:
        return ()
    from specdec_plugins.endpoints.named import parse_endpoints

    return tuple(parse_endpoints(text))


def read_request(config: pytest.Config) -> RunRequest:
    """Return what a run of pytest is asked for: its command line, else what ``sources`` adds, else its ini file.

    Raises UsageError for what cannot be meant.
    """
    every = {one.name: ("specdec", one) for one in OPTIONS} | KNOWN
    texts, given, written = dict[str, str](), set[str](), dict[str, str]()
    for name, (group, option) in every.items():
        key = options.key_of(option.name, group)
        typed: Any = config.getoption(key)
        texts[name] = _of_ini(key, config.getini(key), option) if typed is None else str(typed)
        given |= set() if typed is None else {name}
        if typed is None and texts[name] != option.default:
            written[name] = f"the ini file {config.inipath}"
    mode = config.getoption("gate")
    texts |= {"gate": str(mode or config.getini("gate")), "gate-plant": str(config.getoption("gate_plant"))}
    given |= {"gate"} if mode else set()
    ini = config.inipath.parent if config.inipath else None
    found = sources.with_sources(Texts(texts, frozenset(given), config.invocation_params.dir, ini, written), KNOWN)
    try:
        return RunRequest.of(found)
    except (SpecdecError, GateError) as error:
        raise pytest.UsageError(f"{error}{_where(str(error), found.written)}") from None


def _where(said: str, written: Mapping[str, str]) -> str:
    """Where the options stand that a refusal names, if that is not the command line."""
    named = [name for name in written if re.search(rf"--(specdec-)?{name}(?![\w-])", said)]
    return "".join(f"; {name} stands in {written[name]}" for name in named)


def _of_ini(key: str, value: Any, option: Option) -> str:
    """A value of the ini file as the command line would have it: TOML has lists, numbers, true and false."""
    if isinstance(value, list) and option.many:
        return ",".join(str(one).strip().rstrip(",") for one in value)
    if isinstance(value, list | dict):
        raise pytest.UsageError(f"the ini file's {key} is {value!r}; expected one value")
    return str(value)


def texts_of(given: Mapping[str, str], folder: Path = Path()) -> Texts:
    """Return the texts of a run of which these options are given, by their fields' names, and no others.

    ``folder``: what paths are relative to. TypeError for a name that is no option's.

    Example: ``RunRequest.of(texts_of({"batch": "1,4", "adaptive_k": "8"}))``
    """
    defaults = {one.name: one.default for one in OPTIONS}
    defaults |= {f"gate-{one.name}": one.default for one in rules.OPTIONS} | {"gate": "off", "gate-plant": ""}
    mine = {name.replace("_", "-"): text for name, text in given.items()}
    unknown = mine.keys() - defaults.keys()
    if unknown:
        raise TypeError(f"no options: {', '.join(sorted(unknown))}")
    return Texts({**defaults, **mine}, frozenset(mine), folder)


def request_of(given: argparse.Namespace) -> RunRequest:
    """Return the request of a command's arguments: of those that have an option's name, as texts. SpecdecError for one
    that cannot be meant."""
    names = {one.name.replace("-", "_") for one in OPTIONS}
    return RunRequest.of(texts_of({name: text for name, text in vars(given).items() if name in names}), prefix="")
