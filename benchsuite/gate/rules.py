"""The ``--gate…`` options, their ini keys, and the rules that they define together."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchsuite import options
from benchsuite.gate.record import GateError
from benchsuite.machine.provenance import git
from benchsuite.options import Option

MODES = ("off", "report", "fail")
FORMATS = ("bmf", "github-action-benchmark", "markdown", "junit")
NEEDED = 5
"""Launches that each side needs for a verdict about time: with fewer, the signed-rank test cannot reach 1/32."""


OPTIONS = (
    Option("against", "", "a baseline file, or a revision of git that is measured beside this one"),
    Option(
        "level",
        "",
        "levels to gate at: 0 counters, 1 speedup, 2 base and head measured live (default: 0 and 1 "
        "against a file, 0 and 2 against a revision)",
        many=True,
    ),
    Option("tolerance", "0.03", "the slowdown that passes, as a fraction; a slowdown of twice this size is found"),
    Option("ttft-tolerance", "0.1", "the slowdown of the first token that passes, as a fraction"),
    Option(
        "coarse-tolerance", "0.15", "the slowdown of plain decoding by the clock that passes at level 2, as a fraction"
    ),
    Option("alpha", "0.01", "the chance of a false alarm over all rows of one figure of a level, as a fraction"),
    Option("launches", "5+8", "processes on each side, FIRST+MORE: MORE are added if a row is undecided after FIRST"),
    Option("pairs", "10", "pairs (row, control) that a launch times at least"),
    Option(
        "on-missing",
        "fail",
        "rows that one side lacks: fail; new: those that the baseline lacks pass; report: vanished ones pass too; "
        "save: make the baseline file if there is none",
    ),
    Option("on-mismatch", "fail", "a baseline of another machine: fail, counters (level 0 only), or ignore"),
    Option("inconclusive", "fail", "what cannot be decided: fail, or report"),
    Option("save", "", "write what was measured to a new baseline file"),
    Option("anchor", "", "a pinned baseline file: slowdowns since then count, however small the step that made them"),
    Option("order-seed", "", "the seed of the order in which the sides are launched (default: a fresh one)"),
    Option("json", "", "write verdicts and figures to a file"),
    Option("export", "", f"write FORMAT=FILE; formats: {', '.join(FORMATS)}", many=True),
    Option("path", ".", "folders of a revision's checkout that go on Python's path; with blanks between"),
    Option(
        "environment",
        "shared",
        "dependencies of both sides: shared, what is installed; own, of a revision and this checkout, what each pins",
    ),
    Option("update", "", "accept this run: write it over the baseline file", flag=True),
    Option("dedicated", "", "this machine is used by nothing else: absolute times gate as well (level 3)", flag=True),
    Option(
        "self-test", "", "compare this code with itself, as it is and slowed down by twice the tolerance", flag=True
    ),
)

DEFAULTS = {option.name: option.default for option in OPTIONS}
IDLE = ("against", "anchor", "level", "json", "export", "environment", "update", "dedicated", "self-test")
"""Options that have no effect without ``--gate``."""

CHOICES = {
    "on-missing": ("fail", "new", "report", "save"),
    "on-mismatch": ("fail", "counters", "ignore"),
    "inconclusive": ("fail", "report"),
    "environment": ("shared", "own"),
}


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
    """The parsed options. ``base``: the commit to measure live. ``file``: the baseline. At most one of them is set."""

    mode: str
    file: Path | None
    base: str | None
    levels: tuple[int, ...] | None
    tolerance: float
    ttft_tolerance: float
    coarse_tolerance: float
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
    path: tuple[str, ...]
    own_environment: bool
    update: bool
    dedicated: bool
    self_test: bool

    @property
    def gating(self) -> bool:
        """Whether the run is judged, not only saved."""
        return self.mode != "off"


@dataclass(frozen=True)
class _Given:
    """The gate's options of one run, as text."""

    config: pytest.Config

    def text(self, name: str) -> str:
        return options.value(self.config, name, "gate")

    def flag(self, name: str) -> bool:
        return options.flag(self.config, name, "gate")

    def path(self, name: str) -> Path | None:
        """The file that an option names, or None. A path in the ini file is relative to the folder of the ini file."""
        ini = self.config.inipath
        from_ini = ini is not None and self.config.getoption(options.key_of(name, "gate")) is None
        folder = ini.parent if from_ini and ini else self.folder
        return folder / self.text(name) if self.text(name) else None

    @property
    def folder(self) -> Path:
        """The folder where pytest was started."""
        return self.config.invocation_params.dir


def parse(config: pytest.Config) -> Rules | None:
    """The rules of this run; None if it neither gates nor saves. GateError for invalid or contradictory options."""
    mode = str(config.getoption("gate") or config.getini("gate"))
    if mode not in MODES:
        raise GateError(f"the ini key gate is {mode!r}; expected one of {', '.join(MODES)}")
    given = _Given(config)
    text, flag = given.text, given.flag
    save = given.path("save")
    if mode == "off":
        _refuse_idle(config, bool(save))
        if not save:
            return None
    for name, allowed in CHOICES.items():
        if text(name) not in allowed:
            raise GateError(f"--gate-{name} is {text(name)!r}; expected one of {', '.join(allowed)}")
    exports = _written(given, save)
    file, base = None, None
    if mode != "off" and not flag("self-test"):
        file, base = _against(text("against"), given.path("against"), given.folder, text("on-missing"), save)
    if flag("update") and not file:
        raise GateError("--gate-update writes over a baseline file; name it with --gate-against")
    if mode != "off" and text("environment") == "own" and not base:
        raise GateError(
            "--gate-environment=own installs what a revision pins, and there is none to compare with; name it with "
            "--gate-against REV, or gate with --gate-environment=shared"
        )
    return Rules(
        mode=mode,
        file=file,
        base=base,
        levels=_levels(text("level")),
        tolerance=_fraction("tolerance", text("tolerance")),
        ttft_tolerance=_fraction("ttft-tolerance", text("ttft-tolerance")),
        coarse_tolerance=_fraction("coarse-tolerance", text("coarse-tolerance")),
        alpha=_fraction("alpha", text("alpha")),
        launches=_launches(text("launches")),
        launches_given=text("launches") != DEFAULTS["launches"] or config.getoption("gate_launches") is not None,
        pairs=_whole("pairs", text("pairs")),
        on_missing=text("on-missing"),
        on_mismatch=text("on-mismatch"),
        inconclusive=text("inconclusive"),
        save=save,
        anchor=_anchor(given) if mode != "off" else None,
        order_seed=_whole("order-seed", text("order-seed")) if text("order-seed") else None,
        json=given.path("json"),
        exports=exports,
        path=tuple(text("path").split()),
        own_environment=text("environment") == "own",
        update=flag("update"),
        dedicated=flag("dedicated"),
        self_test=flag("self-test"),
    )


def _written(given: _Given, save: Path | None) -> tuple[tuple[str, Path], ...]:
    """The exports. GateError if the file of any option cannot be written, or if ``save`` would replace a file."""
    if save and save.exists():
        raise GateError(
            f"--gate-save {given.text('save')} is there already; --gate-against it with --gate-update, or remove it"
        )
    exports = tuple(_export(part.strip(), given.folder) for part in given.text("export").split(",") if part.strip())
    files = [("save", save), ("json", given.path("json")), *(("export", target) for _, target in exports)]
    for name, target in files:
        if target:
            refuse_unwritable(f"--gate-{name} {given.text(name)}", target)
    return exports


def _anchor(given: _Given) -> Path | None:
    """The anchor's file. GateError if it is not there: an anchor is pinned by hand, never made by a gated run."""
    file = given.path("anchor")
    if file is not None and not file.is_file():
        raise GateError(
            f"--gate-anchor {given.text('anchor')!r} is no file; pin a baseline of launches with --gate-save "
            f"{file.name} --gate-launches 13"
        )
    return file


def _refuse_idle(config: pytest.Config, saving: bool) -> None:
    if config.getoption("gate"):
        return  # --gate=off was given
    given = [f"--gate-{name}" for name in IDLE if config.getoption(options.key_of(name, "gate")) is not None]
    if given:
        effect = "would only save" if saving else "would gate nothing"
        raise GateError(f"{', '.join(given)} without --gate {effect}; add --gate=fail or --gate=report")


def _against(
    text: str, file: Path | None, folder: Path, on_missing: str, save: Path | None
) -> tuple[Path | None, str | None]:
    if file is None:
        if save:
            return None, None
        raise GateError(
            "--gate needs something to compare this run with: --gate-against FILE (made with --gate-save FILE) or "
            "--gate-against REV"
        )
    if file.is_file():
        return file, None
    known = git(folder, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    if known:
        return None, known
    if file.is_dir():
        raise GateError(f"--gate-against {text!r} is a folder; expected a baseline file in it, or a revision")
    # Only a name that ends in .json can be a new baseline; otherwise a mistyped branch name would create a file.
    if file.suffix != ".json":
        raise GateError(
            f"--gate-against {text!r} is neither a file nor a revision that git knows here; fetch it (git fetch; in "
            "CI, a whole clone: fetch-depth: 0), or name a baseline FILE.json"
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


def _levels(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part in ("0", "1", "2") for part in parts):
        raise GateError(f"--gate-level is {text!r}; expected 0, 1 or 2, or a comma list of them")
    return tuple(sorted({int(part) for part in parts}))


def _fraction(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise GateError(f"--gate-{name} is {text!r}; expected a fraction between 0 and 1: 0.03 is 3 %")
    return value


def _whole(name: str, text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise GateError(f"--gate-{name} is {text!r}; expected a whole number, 1 or more")
    return int(text)


def _launches(text: str) -> tuple[int, int]:
    parts = text.split("+")
    if not (1 <= len(parts) <= 2 and all(part.strip().isdecimal() for part in parts)) or int(parts[0]) < 1:
        raise GateError(f"--gate-launches is {text!r}; expected FIRST+MORE, for example 5+8")
    return int(parts[0]), int(parts[1]) if len(parts) == 2 else 0


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


def refuse_what_disables(config: pytest.Config) -> None:
    """GateError if an option disables measuring, so that benchmark tests would pass without being measured."""
    option = config.option
    if getattr(option, "dist", "no") != "no" or getattr(option, "numprocesses", None):
        raise GateError(
            "pytest-xdist is active, so benchmarks are disabled and would compete for cores; gate without -n"
        )
    if not config.pluginmanager.hasplugin("benchmark"):
        raise GateError("pytest-benchmark is switched off (-p no:benchmark): there is nothing to gate")
    for name in ("benchmark_disable", "benchmark_skip"):
        if getattr(option, name, False) and not getattr(option, "benchmark_enable", False):
            raise GateError(f"--{name.replace('_', '-')} is given: nothing would be measured; leave it out to gate")
