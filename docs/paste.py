"""Run the commands of a page and put what they print into it: ``python docs/paste.py README.md`` (``make docs``).

A page marks each place with a comment, a fenced block that is replaced, and a line that says where it comes from::

    <!-- paste: make demo
    from: ^arm +policy
    to: ^$
    rows: plain|ngram -->
    ```
    (the lines of the output from the first that matches ``from`` up to the next that matches ``to``, of which only
    the header, the rule and the rows that begin with ``rows`` are kept; without ``rows`` all are)
    ```
    Printed by `make demo` at commit …
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from benchsuite.machine.provenance import own_commit, processor

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"<!-- paste: (?P<marker>.*?) -->\n```\n(?P<block>.*?)```\n(?P<origin>Printed by .*?\n)", re.DOTALL)


@dataclass(frozen=True)
class Marker:
    """What a comment asks for."""

    command: str
    start: str
    end: str
    rows: str

    @staticmethod
    def parse(text: str) -> Marker:
        """Read a marker; ValueError for one without a command, or with a key that is none."""
        command, *lines = (line.strip() for line in text.splitlines())
        given = dict(line.split(": ", 1) for line in lines)
        known = {"from": "^", "to": r"^\0", "rows": ""}
        if not command or given.keys() - known.keys():
            raise ValueError(f"cannot read the marker {text!r}; expected a command, then lines of {', '.join(known)}")
        merged = {**known, **given}
        return Marker(command, merged["from"], merged["to"], merged["rows"])

    def cut(self, output: str) -> str:
        """The part of a command's output that is pasted; ValueError where nothing matches ``from``."""
        lines = [line.rstrip() for line in output.splitlines()]
        first = next((i for i, line in enumerate(lines) if re.search(self.start, line)), None)
        if first is None:
            raise ValueError(f"{self.command!r} printed no line that matches {self.start!r}:\n{output[-2000:]}")
        last = next((i for i in range(first, len(lines)) if re.search(self.end, lines[i])), len(lines))
        found = lines[first:last]
        if self.rows:
            found = found[:2] + [line for line in found[2:] if re.match(self.rows, line)]
        return "\n".join(found) + "\n"


def printed(command: str) -> str:
    """What a command prints, run from the top of the checkout; CalledProcessError where it fails."""
    return subprocess.run(command, shell=True, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def filled(page: str, outputs: dict[str, str]) -> str:
    """The page with every block printed again; ``outputs`` has what commands have printed, and gets more."""

    def fill(place: re.Match[str]) -> str:
        marker = Marker.parse(place["marker"])
        if marker.command not in outputs:
            print(f"running: {marker.command}", flush=True)
            outputs[marker.command] = printed(marker.command)
        commit = own_commit() or "unknown"
        shown = commit[:7] + ("+" if commit.endswith("+") else "")
        machine = f"{processor()} ({torch.backends.cpu.get_cpu_capability()}), {torch.get_num_threads()} threads, "
        machine += f"torch {torch.__version__}"
        origin = f"Printed by `{marker.command}` at commit `{shown}` on {date.today()}: {machine}.\n"
        return f"<!-- paste: {place['marker']} -->\n```\n{marker.cut(outputs[marker.command])}```\n{origin}"

    return PLACE.sub(fill, page)


if __name__ == "__main__":
    ran: dict[str, str] = {}
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(filled(path.read_text(encoding="utf-8"), ran), encoding="utf-8")
