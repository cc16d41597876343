"""The text format of Prometheus pages: samples, read and written.

Sources: github.com/prometheus/docs, content/docs/instrumenting/exposition_formats.md (version 0.0.4); OpenMetrics 1.0
(exemplars); Prometheus 3 (names in quotation marks).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specdec.errors import SpecdecError

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_LABEL = re.compile(rf"\s*(?:([A-Za-z_][A-Za-z0-9_]*)|{_QUOTED})\s*=\s*{_QUOTED}\s*(,|(?=}}))")
_QUOTED_NAME = re.compile(rf"\s*{_QUOTED}\s*(,|(?=}}))")
_NO_PAGE = re.compile(rf"\s*(?:<|\[|{{\s*(?:{_QUOTED}\s*:|}}?\s*$))")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class PageError(SpecdecError):
    """What a server said cannot be read as figures; the text says which line or name, and why."""


@dataclass(frozen=True)
class PageSample:
    """One line of a page: the metric's name, its labels, and the value as the server wrote it.

    The value stays text until a figure is made of it, because pages hold NaN in gauges that nobody asks for.
    """

    name: str
    value: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def number(self) -> float:
        """The value. Raises PageError if it is no finite number of 0 or more, as every counter must be."""
        try:
            value = math.nan if "_" in self.value else float(self.value)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise PageError(
                f"{self.name} is {self.value!r}; expected a finite number of 0 or more. Look at the server's page"
            )
        return value

    def count(self) -> int:
        """The value as a whole number. Raises PageError if it is none."""
        value = self.number()
        if value != int(value):
            raise PageError(f"{self.name} is {self.value!r}; expected a whole number. Look at the server's page")
        return int(value)


def read_samples(text: str, begins: tuple[str, ...] = ("",)) -> list[PageSample]:
    """Return the samples of a page, in its order.

    A line that is no sample is left out if it does not begin with one of ``begins``: pages have many authors. Raises
    PageError for one that does, for a page of HTML, and for a page whose last line is cut off.
    Example: ``read_samples('a_total{engine="0"} 2.0\\n')`` is one sample of 2.
    """
    if _NO_PAGE.match(text):
        kind = "HTML" if text.lstrip()[0] == "<" else "JSON"
        raise PageError(
            f"expected a Prometheus page and got {kind}: {text.strip()[:60]!r}. Ask the server's own port for "
            "/metrics, not a proxy's; llama.cpp needs --metrics, SGLang --enable-metrics"
        )
    if text and not text.endswith("\n"):
        raise PageError(f"the page ends in the middle of a line: {text.splitlines()[-1][:60]!r}. Fetch it again")
    found = list[PageSample]()
    for number, line in enumerate(text.split("\n"), 1):  # splitlines also splits at characters that a label may hold
        if line.strip() and not line.lstrip().startswith("#"):
            sample = _sample(line.strip())
            if sample is not None:
                found.append(sample)
            elif line.lstrip().lstrip('{"').startswith(begins):
                raise PageError(f"line {number} of the page is no sample: {line[:60]!r}; expected NAME{{LABELS}} VALUE")
    return found


def write_samples(samples: Iterable[PageSample], kinds: Mapping[str, str]) -> str:
    """Return a page of these samples; ``kinds`` are the types (counter, gauge) by name, said before the samples."""
    lines: list[str] = []
    told = set[str]()
    for sample in samples:
        if sample.name in kinds and sample.name not in told:
            told.add(sample.name)
            lines.append(f"# TYPE {sample.name} {kinds[sample.name]}")
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        lines.append(f"{sample.name}{{{labels}}} {sample.value}" if labels else f"{sample.name} {sample.value}")
    return "".join(f"{line}\n" for line in lines)


def _sample(line: str) -> PageSample | None:
    """A line's sample; None if it is none."""
    name = _NAME.match(line)
    found, at = (name[0], name.end()) if name else ("", 0)
    labels = dict[str, str]()
    if line[at : at + 1] == "{":
        at += 1
        quoted = _QUOTED_NAME.match(line, at)
        if quoted and not found:
            found, at = _unescaped(quoted[1]), quoted.end()
        while line[at : at + 1] != "}":
            label = _LABEL.match(line, at)
            if not label:
                return None
            labels[label[1] or _unescaped(label[2])] = _unescaped(label[3])
            at = label.end()
        at += 1
    values = line[at:].partition(" # ")[0].split()  # an exemplar follows the mark
    if not found or not 1 <= len(values) <= 2:  # a second number is the time of the sample
        return None
    return PageSample(found, values[0], labels)


def _unescaped(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda found: _ESCAPES[found[0]], text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
