"""A trace has the parts of every step under their names, and tracing leaves the engine as it was."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from benchsuite.measure.profile import RANGES, ranges, trace
from benchsuite.tests.rig import Make
from specdec import Request, SamplingParams


@pytest.mark.slow
def test_every_step_is_a_range_that_holds_its_parts(assemble: Make, tmp_path: Path) -> None:
    engine = assemble().engine("ngram", "match", "fixed", 3)
    work = [Request(0, (1, 2, 3, 1, 2), SamplingParams(max_new_tokens=12))]
    before, attributes = engine.run(work)[0].tokens, dict(vars(engine))
    trace(engine, work, tmp_path / "trace.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    found = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    steps = len(engine.stats.steps)
    assert {name: found[name] for name in RANGES if name != "draft"} == dict.fromkeys(
        [name for name in RANGES if name != "draft"], steps
    )
    assert steps <= found["draft"] <= 2 * steps
    assert vars(engine).keys() == attributes.keys()
    assert engine.run(work)[0].tokens == before


def test_parts_are_named_inside_alone_and_without_a_draft_there_is_none(assemble: Make, tmp_path: Path) -> None:
    engine = assemble(backend="reference").engine(None)
    with ranges(engine):
        assert {"step"} <= vars(engine).keys()
        assert engine.step.__name__ == "step"
    assert "step" not in vars(engine)
    trace(engine, [Request(0, (1, 2, 3), SamplingParams(max_new_tokens=3))], tmp_path / "plain.json")
    events = json.loads((tmp_path / "plain.json").read_text())["traceEvents"]
    found = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    steps = len(engine.stats.steps)
    assert (found["draft"], found["host"], found["verify"], found["commit"]) == (0, steps, steps, steps)
