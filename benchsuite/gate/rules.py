"""The ``--gate…`` options, their ini keys, and the rules that they define together."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchsuite import options, values
from benchsuite.gate.record import GateError
from benchsuite.machine.provenance import git
from benchsuite.options import Option, Texts
from specdec.lists import split_list

MODES = ("off", "report", "fail")
FORMATS = ("bmf", "github-action-benchmark", "markdown", "junit")
NEEDED = 5
"""Launches that each side needs for a verdict about time: with fewer, the signed-rank test cannot reach 1/32."""


def read_levels(text: str, option: str) -> tuple[int, ...] | None:
    """Return the levels of a comma list, each once, rising; None for an empty text. SpecdecError for any but 0 to 2."""
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part in ("0", "1", "2") for part in parts):
        raise values.refused_value(option, text, "0, 1 or 2, or a comma list of them")
    return tuple(sorted({int(part) for part in parts}))


def read_launches(text: str, option: str) -> tuple[int, int]:
    """Return FIRST and MORE of ``FIRST+MORE``, MORE 0 where it is left out. SpecdecError for anything else."""
    parts = text.split("+")
    if not (1 <= len(parts) <= 2 and all(part.strip().isdecimal() for part in parts)) or int(parts[0]) < 1:
        raise values.refused_value(option, text, "FIRST+MORE, for example 5+8")
    return int(parts[0]), int(parts[1]) if len(parts) == 2 else 0


OPTIONS = (
    Option("against", "", "a baseline file, or a revision of git that is measured beside this one"),
    Option(
        "base", "", "the same as against; with -m serving also the name of an endpoint, which others are held against"
    ),
    Option(
        "level",
        "",
        "levels to gate at: 0 counters, 1 speedup, 2 base and head measured live (default: 0 and 1 "
        "against a file, 0 and 2 against a revision)",
        many=True,
        read=read_levels,
    ),
    Option(
        "tolerance",
        "0.03",
        "the slowdown that passes, as a fraction; a slowdown of twice this size is found",
        read=values.fraction,
    ),
    Option("ttft-tolerance", "0.1", "the slowdown of the first token that passes, as a fraction", read=values.fraction),
    Option(
        "coarse-tolerance",
        "0.15",
        "the slowdown of plain decoding by the clock that passes at level 2, as a fraction",
        read=values.fraction,
    ),
    Option(
        "acceptance-tolerance",
        "0.025",
        "more forwards per emitted token that pass, as a fraction, where counters are not compared exactly",
        read=values.fraction,
    ),
    Option(
        "alpha",
        "0.01",
        "the chance of a false alarm over all rows of one figure of a level, as a fraction",
        read=values.fraction,
    ),
    Option(
        "launches",
        "5+8",
        "processes on each side, FIRST+MORE: MORE are added if a row is undecided after FIRST",
        read=read_launches,
    ),
    Option("pairs", "10", "pairs (row, control) that a launch times at least", read=values.whole_number),
    Option(
        "on-missing",
        "fail",
        "rows that one side lacks: fail; new: those that the baseline lacks pass; report: vanished ones pass too; "
        "save: make the baseline file if there is none",
        read=values.one_of("fail", "new", "report", "save"),
    ),
    Option(
        "on-mismatch",
        "fail",
        "a baseline of another machine: fail, counters (level 0 only), or ignore",
        read=values.one_of("fail", "counters", "ignore"),
    ),
    Option("inconclusive", "fail", "what cannot be decided: fail, or report", read=values.one_of("fail", "report")),
    Option("save", "", "write what was measured to a new baseline file"),
    Option("anchor", "", "a pinned baseline file: slowdowns since then count, however small the step that made them"),
    Option(
        "order-seed",
        "",
        "the seed of the order in which the sides are launched (default: a fresh one)",
        read=values.unless_empty(values.whole_number),
    ),
    Option("json", "", "write verdicts and figures to a file"),
    Option("export", "", f"write FORMAT=FILE; formats: {', '.join(FORMATS)}", many=True),
    Option(
        "path",
        "",
        "folders of a revision's checkout that go on Python's path, with blanks between (default: the top, and where "
        "this run has its plugins from)",
    ),
    Option(
        "environment",
        "shared",
        "dependencies of both sides: shared, what is installed; own, of a revision and this checkout, what each pins",
        read=values.one_of("shared", "own"),
    ),
    Option("update", "", "accept this run: write it over the baseline file", flag=True),
    Option("dedicated", "", "this machine is used by nothing else: absolute times gate as well (level 3)", flag=True),
    Option(
        "self-test", "", "compare this code with itself, as it is and slowed down by twice the tolerance", flag=True
    ),
)

LAUNCHES = next(option.value(option.default, "gate-") for option in OPTIONS if option.name == "launches")
"""The launches of a gate that is given none."""

TOLERANCE = next(option.value(option.default, "gate-") for option in OPTIONS if option.name == "tolerance")
"""The tolerance of a gate that is given none."""

IDLE = ("against", "base", "anchor", "level", "json", "export", "environment", "update", "dedicated", "self-test")
"""Options that have no effect without ``--gate``."""


def add_gate_options(parser: pytest.Parser) -> None:
    """Declare the options and their ini keys."""
    group = parser.getgroup("gate", "regression gate (specdec-bench)")
    group.addoption(
        "--gate",
        dest="gate",
        nargs="?",
        const="fail",
        default=None,
        type=_mode,
        metavar="MODE",
        help="gate the benchmarks of this run: fail (the default of a bare --gate), report, or off",
    )
    parser.addini("gate", "ini twin of --gate", default="off")
    options.declare(parser, group, "gate", OPTIONS)
    group.addoption("--gate-plant", dest="gate_plant", default="", help=argparse.SUPPRESS)


def _mode(text: str) -> str:
    if text not in MODES:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected one of {', '.join(MODES)}: write --gate=fail")
    return text


@dataclass(frozen=True)
class Rules:
    """The parsed options. ``base``: the commit to measure live. ``file``: the baseline. ``endpoint``: the name of the
    endpoint that others are held against. At most one of them is set.

    ``tolerance_given``: whether ``tolerance`` is not the default, which servers have another one of. ``plant``:
    slowdowns that are added to the engines of this run, as ``--gate-plant`` writes them.
    """

    mode: str
    file: Path | None
    base: str | None
    levels: tuple[int, ...] | None
    tolerance: float
    ttft_tolerance: float
    coarse_tolerance: float
    acceptance_tolerance: float
    alpha: float
    launches: tuple[int, int]
    launches_given: bool
    pairs: int
    on_missing: str
    on_mismatch: str
    inconclusive: str
    save: Path | None
    anchor: Path | None
    order_seed: int | None
    json: Path | None
    exports: tuple[tuple[str, Path], ...]
    path: tuple[str, ...] | None
    own_environment: bool
    update: bool
    dedicated: bool
    self_test: bool
    plant: str = ""
    endpoint: str | None = None
    tolerance_given: bool = False

    @property
    def gating(self) -> bool:
        """Whether the run is judged, not only saved."""
        return self.mode != "off"


def parse(given: Texts) -> Rules | None:
    """Return the rules of a run; None if it neither gates nor saves.

    GateError for options that contradict each other and for files that cannot be read or written, SpecdecError for the
    text of one option.
    """
    given, mode = _one_base(given), given.texts["gate"]
    if mode not in MODES:
        raise GateError(f"the ini key gate is {mode!r}; expected one of {', '.join(MODES)}")
    save = given.path("gate-save")
    if mode == "off":
        _refuse_idle(given, bool(save))
        if not save:
            return None
    found = {option.name: option.value(given.texts[f"gate-{option.name}"], "gate-") for option in OPTIONS}
    exports = _written(given, save)
    file, base, endpoint = None, None, _endpoint(given) if mode != "off" else None
    if mode != "off" and not found["self-test"] and not endpoint:
        file, base = _against(given, found["on-missing"])
    if found["update"] and not file:
        raise GateError("--gate-update writes over a baseline file; name it with --gate-against")
    if mode != "off" and found["environment"] == "own" and not base:
        raise GateError(
            "--gate-environment=own installs what a revision pins, and there is none to compare with; name it with "
            "--gate-against REV, or gate with --gate-environment=shared"
        )
    return Rules(
        mode=mode,
        file=file,
        base=base,
        levels=found["level"],
        tolerance=found["tolerance"],
        ttft_tolerance=found["ttft-tolerance"],
        coarse_tolerance=found["coarse-tolerance"],
        acceptance_tolerance=found["acceptance-tolerance"],
        alpha=found["alpha"],
        launches=found["launches"],
        launches_given="gate-launches" in given.given or found["launches"] != LAUNCHES,
        pairs=found["pairs"],
        on_missing=found["on-missing"],
        on_mismatch=found["on-mismatch"],
        inconclusive=found["inconclusive"],
        save=save,
        anchor=_anchor(given) if mode != "off" else None,
        order_seed=found["order-seed"],
        json=given.path("gate-json"),
        exports=exports,
        path=tuple(found["path"].split()) or None,
        own_environment=found["environment"] == "own",
        update=found["update"],
        dedicated=found["dedicated"],
        self_test=found["self-test"],
        plant=given.texts["gate-plant"],
        endpoint=endpoint,
        tolerance_given=found["tolerance"] != TOLERANCE or "gate-tolerance" in given.given,
    )


def _one_base(given: Texts) -> Texts:
    """The texts with what ``--gate-base`` names in ``--gate-against``. GateError if they name two things.

    What the command line names goes before what a file does.
    """
    both = [f"gate-{name}" for name in ("against", "base") if given.texts[f"gate-{name}"]]
    named = [name for name in both if name in given.given] or both
    if len({given.texts[name] for name in named}) > 1:
        found = " and ".join(f"--{name} {given.texts[name]}" for name in named)
        raise GateError(f"{found} name two bases, and a run has one: leave out one of them")
    if not named or named[0] == "gate-against":
        return given
    texts = {**given.texts, "gate-against": given.texts["gate-base"]}
    also = {"gate-against"} if "gate-base" in given.given else set()
    return replace(given, texts=texts, given=(given.given - {"gate-against"}) | also)


def _endpoint(given: Texts) -> str | None:
    """The endpoint that ``--gate-base`` names, None if it names something else. GateError if there is no other one."""
    named = given.texts["gate-against"]
    names = [part.partition("=")[0].strip() for part in split_list(given.texts["endpoint"])]
    if named not in names:
        return None
    if len(names) == 1:
        raise GateError(
            f"--gate-base {named} is the only endpoint: name what is held against it, as in --specdec-endpoint "
            f"{named}=http://127.0.0.1:8000,head=http://127.0.0.1:8001"
        )
    return named


def _written(given: Texts, save: Path | None) -> tuple[tuple[str, Path], ...]:
    """The exports. GateError if the file of any option cannot be written, or if ``save`` would replace a file."""
    if save and save.exists():
        raise GateError(
            f"--gate-save {given.texts['gate-save']} is there already; --gate-against it with --gate-update, or remove "
            "it"
        )
    folder, texts = given.base("gate-export"), given.texts["gate-export"].split(",")
    exports = tuple(_export(part.strip(), folder) for part in texts if part.strip())
    files = [("save", save), ("json", given.path("gate-json")), *(("export", target) for _, target in exports)]
    for name, target in files:
        if target:
            refuse_unwritable(f"--gate-{name} {given.texts[f'gate-{name}']}", target)
    return exports


def _anchor(given: Texts) -> Path | None:
    """The anchor's file. GateError if it is not there: an anchor is pinned by hand, never made by a gated run."""
    file = given.path("gate-anchor")
    if file is not None and not file.is_file():
        raise GateError(
            f"--gate-anchor {given.texts['gate-anchor']!r} is no file; pin a baseline of launches with --gate-save "
            f"{file.name} --gate-launches 13"
        )
    return file


def _refuse_idle(given: Texts, saving: bool) -> None:
    if "gate" in given.given:
        return  # --gate=off was given
    idle = [f"--gate-{name}" for name in IDLE if f"gate-{name}" in given.given]
    if idle:
        effect = "would only save" if saving else "would gate nothing"
        raise GateError(f"{', '.join(idle)} without --gate {effect}; add --gate=fail or --gate=report")


def _against(given: Texts, on_missing: str) -> tuple[Path | None, str | None]:
    """The file, or the commit, that a run is held against."""
    text, file = given.texts["gate-against"], given.path("gate-against")
    if file is None:
        only = "; to write a baseline and compare nothing, give --gate=off" if given.texts["gate-save"] else ""
        raise GateError(
            "--gate needs something to compare this run with: --gate-against FILE (made with --gate-save FILE) or "
            f"--gate-against REV{only}"
        )
    if file.is_file():
        return file, None
    known = git(given.folder, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    if known:
        return None, known
    if file.is_dir():
        raise GateError(f"--gate-against {text!r} is a folder; expected a baseline file in it, or a revision")
    # Only a name that ends in .json can be a new baseline; otherwise a mistyped branch name would create a file.
    if file.suffix != ".json":
        endpoints = ", ".join(part.partition("=")[0] for part in split_list(given.texts["endpoint"]))
        raise GateError(
            f"--gate-against {text!r} is neither a file nor a revision that git knows here"
            + (f", nor an endpoint of {endpoints}" if endpoints else "")
            + "; fetch it (git fetch; in CI, a whole clone: fetch-depth: 0), or name a baseline FILE.json"
        )
    if on_missing == "save":
        refuse_unwritable(f"--gate-against {text}", file)
        return file, None
    raise GateError(
        f"--gate-against {text!r} is neither a file nor a revision that git knows here; make a baseline with "
        f"--gate-save {text}, or let this run make it with --gate-on-missing=save"
    )


def refuse_unwritable(option: str, file: Path) -> None:
    """GateError if the folder of ``file`` does not exist, or if ``file`` is itself a folder."""
    if not file.parent.is_dir():
        raise GateError(f"{option}: there is no folder {file.parent}")
    if file.is_dir():
        raise GateError(f"{option}: {file} is a folder; name a file")


def _export(text: str, folder: Path) -> tuple[str, Path]:
    kind, _, name = text.partition("=")
    if kind not in FORMATS or not name:
        raise GateError(f"--gate-export is {text!r}; expected FORMAT=FILE with one of {', '.join(FORMATS)}")
    return kind, folder / name


OTHERS = ("--benchmark-json", "--benchmark-save", "--specdec-results", "--junitxml", "--junit-xml", "--log-file")
"""Options of the run that a launch must not repeat, because each of them writes a file."""


def without_own(arguments: Sequence[str]) -> list[str]:
    """A run's arguments without the gate's options and without options that would write files again."""
    valued = {f"--gate-{option.name}" for option in OPTIONS if not option.flag} | {*OTHERS}
    kept: list[str] = []
    skip = False
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        name, equals, _ = argument.partition("=")
        if skip:
            skip = False
        elif name in valued or (argument == "--gate" and following in MODES):
            skip = not equals
        elif not re.fullmatch(r"--gate(-.*)?|--benchmark-autosave", name):
            kept.append(argument)
    return kept


def refuse_workers(config: pytest.Config) -> None:
    """GateError where pytest-xdist shares the tests out among processes."""
    option = config.option
    if getattr(option, "dist", "no") != "no" or getattr(option, "numprocesses", None):
        raise GateError(
            "pytest-xdist is active, so benchmarks are disabled and would compete for cores; gate without -n"
        )


def refuse_what_disables(config: pytest.Config) -> None:
    """GateError if an option disables measuring, so that benchmark tests would pass without being measured."""
    refuse_workers(config)
    option = config.option
    if not config.pluginmanager.hasplugin("benchmark"):
        raise GateError("pytest-benchmark is switched off (-p no:benchmark): there is nothing to gate")
    for name in ("benchmark_disable", "benchmark_skip"):
        if getattr(option, name, False) and not getattr(option, "benchmark_enable", False):
            raise GateError(f"--{name.replace('_', '-')} is given: nothing would be measured; leave it out to gate")
