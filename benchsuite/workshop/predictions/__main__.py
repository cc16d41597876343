"""What predictions are worth on this machine: ``python -m benchsuite.workshop.predictions`` (``make predictions``).

It measures a matrix of strategies and sets each cell beside what other texts and the costs say of it; plants mistakes
into the costs and shows in which rows they are seen; then measures an exhaustive grid of drafts, K and batches on each
text, gives the advisor a tenth of that time, and sets its choices beside the grid and ``goodput`` beside the best K; at
last ``goodput`` runs beside plain decoding in further dtypes. Everything is printed, and kept in one folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp
from pathlib import Path
from statistics import geometric_mean

from benchsuite.machine import provenance
from benchsuite.machine.files import strict_json, write_folder
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.predict.accuracy import accuracies_of
from benchsuite.predict.advisor import CLOSE, Advice, Advisor, TriedArm
from benchsuite.predict.checked import check_cells
from benchsuite.predict.forecasts import costs_of, forecasts_of
from benchsuite.report.document import Document, Lines, Part, Section, Table
from benchsuite.report.predicted import accuracy_json, accuracy_parts, cell_parts, forecast_json, forecast_section
from benchsuite.report.renderers import markdown, page
from benchsuite.run.matrix import named_strategies, settings_of
from benchsuite.run.request import request_of
from benchsuite.workshop.predictions.grid import (
    Grid,
    GridChoice,
    Regret,
    adapting_arms,
    choice,
    grid_arms,
    measure_grid,
    median_regret,
    regrets,
)
from benchsuite.workshop.predictions.planted import planted_parts, refusals
from specdec.errors import SpecdecError, folded
from specdec.lists import split_list

WORKLOADS = "chat,question_answering,summarisation,code_editing,rewriting,reasoning"

EAGLE = "eagle(head=trained)"

DRAFTS = {
    "ngram": "ngram",
    "suffix": "suffix",
    "hybrid": "hybrid",
    "hybrid+eagle": f"hybrid(sources='suffix, ngram, {EAGLE}')",
    "eagle": EAGLE,
}
"""The drafts of the grid, by their short names."""

ROWS = (
    "ngram/match/goodput/15, suffix/match/goodput/15, hybrid/match/goodput/15, "
    f"hybrid+eagle={DRAFTS['hybrid+eagle']}/match/goodput/15, eagle={EAGLE}/match/goodput/8, "
    "eagle-tree=eagle(head=trained, beam=4, depth=4)/match/fixed/8, "
    "medusa=medusa(head_init=trained)/match/goodput/4, oracle(0.8)/match/fixed/8, garbage/match/fixed/8"
)
"""The rows of ``make bench``."""

TITLE = "Predictions beside what was measured"

TENTH = 0.1
"""The advisor's share of the time that the grid took."""


def predictions_main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code (2 for a SpecdecError, whose text goes to standard error)."""
    given = _parser().parse_args(arguments)
    try:
        parts = split_list(given.parts)
        if not parts or set(parts) - PARTS.keys():
            raise SpecdecError(f"--parts is {given.parts!r}; expected some of {', '.join(PARTS)}, as a comma list")
        sections, files, run = list[Section](), dict[str, str](), _Run(given)
        for part, measured in PARTS.items():
            if part in parts:
                said, made = measured(run)
                sections += said
                files |= made
        card = _card(given)
        text = markdown(Document(TITLE, [Section(parts=[Lines(card)]), *sections]))
        folder = write_folder(
            given.results,
            "predictions",
            {"predictions.md": text, **files},
            card,
            request_of(given).seed,
            complete=True,
        )
    except SpecdecError as error:
        print(folded(f"benchsuite.workshop.predictions: {error}"), file=sys.stderr)
        return 2
    print(text)
    print(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchsuite.workshop.predictions", description="What predictions are worth."
    )
    parser.add_argument("--target", default="smollm2-135m", help="tiny, smollm2-135m, a folder, a hub id")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--dtypes", default="bfloat16,int8", help="of the part dtypes; default: bfloat16,int8")
    parser.add_argument(
        "--arms", default=ROWS, help="the rows, as --specdec-arm has them; default: those of make bench"
    )
    parser.add_argument("--drafts", default=", ".join(DRAFTS), help=f"drafts of the grid; default: {', '.join(DRAFTS)}")
    parser.add_argument("--workload", default=WORKLOADS, help="kinds of text, as a comma list")
    parser.add_argument("--batch", default="1,4", help="batches, as a comma list")
    parser.add_argument("--prompts", default="8", help="most prompts of each text")
    parser.add_argument("--max-new-tokens", default="32")
    parser.add_argument(
        "--grid-tokens",
        type=int,
        default=64,
        help="tokens of a prompt in the grid; the advisor has a tenth of its time",
    )
    for name in ("--dtype", "--device", "--backend"):
        parser.add_argument(name, default="auto")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the folder is made")
    return parser


@dataclass(frozen=True)
class _Run:
    """A run of the command. ``grids`` are measured when the first part asks for them."""

    given: argparse.Namespace

    @cached_property
    def grids(self) -> _Grids:
        return _Grids(self.given)


def _card(given: argparse.Namespace) -> list[str]:
    commit, changes = provenance.own_commit(), provenance.own_changes()
    return [
        f"{provenance.processor()}, {' '.join(provenance.vectors())}; commit {commit}{' with changes' * bool(changes)}",
        f"`python -m benchsuite.workshop.predictions {' '.join(sys.argv[1:])}`",
        f"{given.target}, {given.prompts} prompts of {given.max_new_tokens} tokens, in the grid of "
        f"{given.grid_tokens}, batches {given.batch}, dtype {given.dtype}",
    ]


def _settings(given: argparse.Namespace) -> list[Setting]:
    return settings_of(request_of(given))


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _rows(run: _Run) -> tuple[list[Section], dict[str, str]]:
    """Every row predicted from other texts, beside what was measured; and mistakes planted into the costs."""
    given = run.given
    settings = _settings(given)
    arms = [Arm(setting, **one) for setting in settings for one in named_strategies(given.arms)]
    bench = Bench(MeasuringPlan(prompts=request_of(given).prompts))
    bench.prepare(arms)
    for setting in settings:
        _tell(f"measuring {setting.id}")
        bench.row(Arm(setting), lambda what: None)
    _tell("probing costs")
    found = forecasts_of(bench, "fresh")
    content = forecast_json(found)
    rows = forecast_section(content)
    sections = [
        rows,
        Section("Every cell", cell_parts(found.cells)),
        Section("Mistakes planted into the costs", planted_parts([*bench.cells.values()], found)),
        Section("Costs of another machine and dtype", [Lines(refusals(next(iter(found.costs.values()))))]),
    ]
    document = Document(TITLE, [Section(parts=[Lines(_card(given))]), rows])
    return sections, {"predictions.json": strict_json(content), "predictions.html": page(document)}


class _Grids:
    """The grids of a command's texts, measured once for the parts that need them; ``probed``: seconds of the probe."""

    def __init__(self, given: argparse.Namespace) -> None:
        settings = [setting.replaced(max_new_tokens=given.grid_tokens) for setting in _settings(given)]
        self.workloads = list(dict.fromkeys(setting.workload for setting in settings))
        drafts = _drafts(given)
        self.fixed, self.adapting = grid_arms(settings, drafts), adapting_arms(settings, drafts)
        self.bench = Bench(MeasuringPlan(prompts=request_of(given).prompts))
        self.bench.prepare([*self.fixed, *self.adapting])
        _tell("probing costs")
        began = time.perf_counter()
        found = costs_of(self.bench, "fresh", self.fixed)
        self.costs = {setting: one for settings, one, _ in found for setting in settings}
        self.probed = time.perf_counter() - began
        self.of = {workload: self._measured(workload) for workload in self.workloads}

    def arms(self, every: Sequence[Arm], workload: str) -> list[Arm]:
        """Those of a text."""
        return [arm for arm in every if arm.setting.workload == workload]

    def _measured(self, workload: str) -> Grid:
        _tell(f"grid of {workload}")
        return measure_grid(self.bench, self.arms(self.fixed, workload))


def _advisor(run: _Run) -> tuple[list[Section], dict[str, str]]:
    """The advisor's choices beside the grid of each text."""
    grids = run.grids
    choices, advices, spent = list[GridChoice](), list[Advice](), 0.0
    for workload, grid in grids.of.items():
        budget = TENTH * grid.seconds - grids.probed / len(grids.workloads)
        _tell(f"advice for {workload}: {budget:.0f} s beside its share of the probe")
        advisor = Advisor(grids.bench, grids.arms(grids.fixed, workload), budget)
        found = advisor.advise()
        spent += advisor.spent
        advices += found
        choices += [choice(grids.bench, grid, one) for one in found]
    known = {arm: units for grid in grids.of.values() for arm, units in grid.units.items() if units}
    accuracy = accuracy_json(accuracies_of(known, grids.costs, check_cells(known, grids.costs, alone=True)))
    whole = sum(grid.seconds for grid in grids.of.values())
    time = (
        f"{len(grids.fixed) // len(grids.workloads)} cells a text, measured in {whole:.0f} s; the advisor took "
        f"{spent:.0f} s, and the probe of costs, once for all texts, {grids.probed:.0f} s: "
        f"{(spent + grids.probed) / whole:.1%} of the grid's time."
    )
    kept = {
        "grid_s": whole,
        "advisor_s": spent,
        "probe_s": grids.probed,
        "accuracy": accuracy,
        "choices": [_choice_json(one) for one in choices],
        "cells": [_tried_json(one, grids.of) for advice in advices for one in advice.tried],
    }
    section = Section("The advisor beside an exhaustive grid", [Lines([time]), *choice_parts(choices)])
    apart = Section("Predictions of the grid's cells, of its own runs", accuracy_parts(accuracy))
    return [section, apart], {"grid.json": strict_json(kept)}


def _goodput(run: _Run) -> tuple[list[Section], dict[str, str]]:
    """The regret of ``goodput`` against the best fixed K of each draft in the grid of each text."""
    grids, found = run.grids, list[Regret]()
    for workload, grid in grids.of.items():
        _tell(f"goodput on {workload}")
        found += regrets(grids.bench, grids.arms(grids.adapting, workload), grid)
    section = Section("goodput beside the best fixed K of its draft", regret_parts(found))
    return [section], {"goodput.json": strict_json([_regret_json(one) for one in found])}


def _drafts(given: argparse.Namespace) -> dict[str, str]:
    named = split_list(given.drafts)
    odd = [name for name in named if name not in DRAFTS]
    if odd or not named:
        raise SpecdecError(f"--drafts is {given.drafts!r}; expected some of {', '.join(DRAFTS)}")
    return {name: DRAFTS[name] for name in named}


def _dtypes(run: _Run) -> tuple[list[Section], dict[str, str]]:
    """``goodput`` beside plain decoding in further dtypes of the target."""
    given = run.given
    drafts, sections, files = _drafts(given), list[Section](), dict[str, str]()
    for dtype in split_list(given.dtypes):
        _tell(f"goodput in {dtype}")
        settings = [replace(setting, dtype=dtype) for setting in _settings(given)]
        arms = adapting_arms(settings, drafts)
        bench = Bench(MeasuringPlan(prompts=request_of(given).prompts))
        bench.prepare(arms)
        found = regrets(bench, arms)
        sections.append(Section(f"goodput in {dtype}", regret_parts(found)))
        files[f"goodput-{dtype}.json"] = strict_json([_regret_json(one) for one in found])
    return sections, files


def choice_parts(choices: Sequence[GridChoice]) -> list[Part]:
    """Return the table of the advisor's choices, and how many texts have a good one at every batch."""
    rows = [
        (
            one.best.setting.workload,
            one.best.setting.batch,
            _named(one.best),
            f"{one.best_speedup:.2f}x",
            _named(one.chosen),
            f"{one.chosen_speedup:.2f}x",
            f"{one.share:.3f}",
            f"{one.again:.3f}",
        )
        for one in choices
    ]
    headers = ("text", "batch", "fastest cell", "", "advised", "", "share", "run again")
    by_text: dict[str, list[GridChoice]] = defaultdict(list)
    for one in choices:
        by_text[one.best.setting.workload].append(one)
    good = [mine for mine in by_text.values() if all(one.close for one in mine)]
    fair = [mine for mine in by_text.values() if geometric_mean([one.again for one in mine]) >= CLOSE]
    return [
        Table(headers, rows),
        Lines(
            [
                "share: the advised strategy's speed over the fastest cell's, in the grid, where the fastest of many "
                "was also a lucky one; run again: the same, from runs of these two in turn after the grid.",
                f"Within {1 - CLOSE:.0%} of the fastest at every batch, run again: {len(good)} of {len(by_text)} "
                f"texts; in the geometric mean over a text's batches: {len(fair)}; cells: "
                f"{sum(one.close for one in choices)} of {len(choices)}; in the grid itself "
                f"{sum(one.share >= CLOSE for one in choices)} of {len(choices)}.",
            ]
        ),
    ]


def regret_parts(found: Sequence[Regret]) -> list[Part]:
    """Return the table of each draft's regrets by text, with their medians and the slowest text beside plain."""
    texts = list(dict.fromkeys(one.arm.setting.workload for one in found))
    known = all(one.regret is not None for one in found)
    rows = []
    for name, batch in dict.fromkeys((one.arm.label, one.arm.setting.batch) for one in found):
        mine = [one for one in found if (one.arm.label, one.arm.setting.batch) == (name, batch)]
        slowest = min(mine, key=lambda one: one.speedup)
        middle = [f"{median_regret(mine) * 100:+z.1f}"] if known else []
        rows.append((name, batch, *map(_shown_regret, mine), *middle, f"{slowest.speedup:.2f}x"))
    headers = ("draft", "batch", *texts, *["median, %"] * known, "slowest")
    missing = "what goodput misses of the speed of the best fixed K in %, below 0 where it was faster (the best K; "
    return [
        Table(headers, rows),
        Lines(
            [
                f"Each text: {missing if known else ''}goodput's speedup over plain{')' if known else ''}, and the "
                "standard error in %; from runs in turn with plain decoding, apart from those that chose the best K."
            ]
        ),
    ]


def _shown_regret(one: Regret) -> str:
    error = f"± {one.error * 100:.1f}"
    if one.regret is None:
        return f"{one.speedup:.2f}x {error}"
    return f"{one.regret * 100:+z.1f} {error} (K {one.best_k}, {one.speedup:.2f}x)"


def _regret_json(one: Regret) -> dict[str, object]:
    return {
        "workload": one.arm.setting.workload,
        "batch": one.arm.setting.batch,
        "strategy": one.arm.strategy,
        "best_k": one.best_k,
        "regret": one.regret,
        "speedup": one.speedup,
        "error": one.error,
    }


def _named(arm: Arm) -> str:
    return "plain" if arm.plain else f"{arm.label}, K = {arm.k}"


def _choice_json(one: GridChoice) -> dict[str, object]:
    return {
        "workload": one.best.setting.workload,
        "batch": one.best.setting.batch,
        "best": one.best.strategy,
        "best_speedup": one.best_speedup,
        "advised": one.chosen.strategy,
        "advised_speedup": one.chosen_speedup,
        "share": one.share,
        "again": one.again,
    }


def _tried_json(one: TriedArm, grids: Mapping[str, Grid]) -> dict[str, object]:
    return {
        "workload": one.arm.setting.workload,
        "batch": one.arm.setting.batch,
        "strategy": one.arm.strategy,
        "speedup": grids[one.arm.setting.workload].speedup(one.arm),
        "predicted": exp(one.predicted),
        "expected": exp(one.expected),
        "runs": one.runs,
    }


PARTS = {"rows": _rows, "advisor": _advisor, "goodput": _goodput, "dtypes": _dtypes}
"""What the command measures, by name, in this order."""


if __name__ == "__main__":
    sys.exit(predictions_main())
