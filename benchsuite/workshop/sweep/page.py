"""docs/families.md: how the trial of each type of model ended, written and read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import transformers

from benchsuite.workshop.sweep.battery import CRASHED, EXACT, OTHER, REFUSED, UNTRIED, WRONG, FamilyOutcome
from benchsuite.workshop.sweep.configs import class_names

PAGE = Path(__file__).parents[3] / "docs" / "families.md"

HEADINGS = {
    EXACT: "Runs exactly",
    REFUSED: "Refused",
    WRONG: "Wrong",
    CRASHED: "Crash",
    OTHER: "Not a decoder of text",
    UNTRIED: "Not tried",
}
"""The heading under which the page has the types of models with each result."""

MEANINGS = {
    EXACT: "Each logit is the unmodified model's to 2e-5 of the largest; greedy speculation gives `generate`'s tokens. "
    "(Recurrent layers: the logits of its own steps, to 3e-4. Where float64 changes its logits by more than 5e-6: to "
    "four times that.)",
    REFUSED: "The model is a decoder, and wrapping it raises `SpecdecError`.",
    WRONG: "The model is accepted, and a logit or a token is not its own: a defect of this project.",
    CRASHED: "Building, wrapping or running it ends with an exception that is no `SpecdecError`, or with a signal.",
    OTHER: "The unmodified model gives no next token of a text that depends on the earlier tokens alone.",
    UNTRIED: "transformers builds the model with a package that is not installed.",
}

INTRODUCTION = """\
# Types of model

All {count} types of model that `AutoModelForCausalLM` of transformers {version} builds were tried over the arena:

{table}

`python -m benchsuite.workshop.sweep` writes this page; types named on its command line are tried again and the others
stay. `pytest -m families --specdec-deep` compares each type with its line here, and without `--specdec-deep` a few.

A tiny model of each type is made by rule from the names of its configuration's fields
(`benchsuite/workshop/sweep/configs.py`): four layers, 32 numbers a token, 64 tokens, windows of 12 and chunks of 16
tokens, random weights, multipliers of 0.75 where they are 1 by default. Each type is tried in a process of its own, on
the CPU, in float32. Two rows of different length are prefilled in uneven chunks. Windows of 1 to 9 tokens follow, each
in part rejected, then a tree, up to 56 tokens. Two requests are then decoded at once with the draft `oracle(0.8)`. The
bytes that are counted of its configuration must be those of the model and its arena. **Not tried**: trained weights,
other dtypes, scaled rotary embeddings, options that a configuration has off by default.
"""


def families_page(outcomes: Mapping[str, FamilyOutcome]) -> str:
    """The page of these outcomes, by type."""
    by_result = {name: [one for one in outcomes.values() if one.result == name] for name in HEADINGS}
    table = ["| result | types | meaning |", "| ------ | ----- | ------- |"]
    table += [f"| {HEADINGS[name]} | {len(found)} | {MEANINGS[name]} |" for name, found in by_result.items() if found]
    version, count = transformers.__version__, len(outcomes)
    lines = [INTRODUCTION.format(version=version, count=count, table="\n".join(table))]
    for name, found in by_result.items():
        if found:
            why = name != EXACT
            lines += [f"## {HEADINGS[name]} ({len(found)})", ""]
            lines += ["| type | class | reason |", "| ---- | ----- | ------ |"] if why else ["| type | class |"]
            lines += [] if why else ["| ---- | ----- |"]
            for one in sorted(found, key=lambda outcome: outcome.kind):
                cells = [one.kind, class_names(one.kind), *([one.reason.replace("|", "\\|")] if why else [])]
                lines.append(f"| {' | '.join(cells)} |")
            lines.append("")
    return "\n".join(lines)


def read_families(page: str) -> dict[str, FamilyOutcome]:
    """The outcomes of a page, by type. Raises ValueError for a section that it does not know."""
    results = {heading: name for name, heading in HEADINGS.items()}
    found: dict[str, FamilyOutcome] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading = section.partition(" (")[0]
        if heading not in results:
            raise ValueError(f"the page has a section {heading!r}; expected {', '.join(results)}")
        for line in section.splitlines():
            cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) > 1 and cells[0] != "type" and not cells[0].startswith("--"):
                found[cells[0]] = FamilyOutcome(cells[0], results[heading], *cells[2:])
    return found
