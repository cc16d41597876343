"""Export verdicts and figures for other programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.machine.files import strict_json
from benchsuite.report.document import Document
from benchsuite.report.findings import finding_sentence, findings_section
from benchsuite.report.renderers import markdown

Blocks = Callable[[Finding], bool]
"""Whether a finding fails the run."""


def as_json(findings: Sequence[Finding], origins: Mapping[str, Any]) -> str:
    """The run's verdict, every finding, and the ``origins`` of both sides and their order, as JSON."""
    content = {
        "format": "specdec-gate-verdicts",
        "version": 1,
        "verdict": worst(finding.verdict for finding in findings),
        "findings": [finding.record() for finding in findings],
        **origins,
    }
    return strict_json(content)


def _bmf(findings: Sequence[Finding], blocks: Blocks) -> str:
    """Bencher's metric format: the change of each figure with bounds; if not timed, 1 for a failure, else 0."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for finding in findings:
        record = finding.record()
        untimed = record["change"] is None
        kind, value = ("fails", float(blocks(finding))) if untimed else (_slug(finding), record["change"])
        bounds = {"lower_value": record["low"], "upper_value": record["high"]}
        measure = {"value": value, **{k: v for k, v in bounds.items() if v is not None}}
        found.setdefault(record["row"], {})[f"{kind}-level-{record['level']}"] = measure
    return strict_json(found)


def _slug(finding: Finding) -> str:
    """A figure as a name without blanks and slashes: ``s-per-token``."""
    return finding.subject.lower().replace("/", "-per-").replace(", ", "-").replace(" ", "-")


def _github_action_benchmark(findings: Sequence[Finding], blocks: Blocks) -> str:
    """github-action-benchmark's ``customSmallerIsBetter``: each figure divided by the base's; for a row that was not
    timed, 2 if it fails and 1 if not."""
    found = [
        {
            "name": f"{finding.row} ({_scope(finding)})",
            "unit": f"x, against the {finding.against}",
            "value": 1.0 + blocks(finding) if finding.change is None else round(1 + finding.change, 5),
            "extra": finding_sentence(finding),
        }
        for finding in findings
    ]
    return strict_json(found)


def _scope(finding: Finding) -> str:
    return ", ".join(part for part in (finding.subject, f"level {finding.level}") if part)


def _markdown(findings: Sequence[Finding], blocks: Blocks) -> str:
    """Markdown for a comment or for the summary of a CI job."""
    overall = worst(finding.verdict for finding in findings)
    return markdown(Document(sections=[findings_section(findings, f"Gate: {overall}")]))


def _junit(findings: Sequence[Finding], blocks: Blocks) -> str:
    """JUnit XML: a test case for each finding; an INCONCLUSIVE finding that does not fail the run is skipped."""
    bad = [finding for finding in findings if blocks(finding)]
    unsure = [finding for finding in findings if finding.verdict == GateVerdict.INCONCLUSIVE and not blocks(finding)]
    suite = ElementTree.Element(
        "testsuite", name="gate", tests=str(len(findings)), failures=str(len(bad)), errors="0", skipped=str(len(unsure))
    )
    for finding in findings:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=f"{finding.row} {_scope(finding)}")
        kind = "failure" if finding in bad else "skipped" if finding in unsure else None
        # XML allows no other characters.
        message = re.sub(r"[^\x09\x0a\x20-\ud7ff\ue000-\ufffd]", "?", finding_sentence(finding))
        if kind:
            ElementTree.SubElement(case, kind, message=message)
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


FORMATS: dict[str, Callable[[Sequence[Finding], Blocks], str]] = {
    "bmf": _bmf,
    "github-action-benchmark": _github_action_benchmark,
    "markdown": _markdown,
    "junit": _junit,
}
