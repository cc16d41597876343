"""Runs compared: a change is called one only where its interval says so, and everything else has a name."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.__main__ import benchsuite_main
from benchsuite.compare.changes import MARKS, Change, changes, summary
from benchsuite.compare.sides import SHARED, ComparedSide, Figures, read_side
from benchsuite.gate.record import DECODE, FigureTimes, GatedRow, Launch, Record
from benchsuite.measure.figures import KEYS
from benchsuite.report.compared import comparison_document, history_document
from benchsuite.report.renderers import markdown, page, terminal
from benchsuite.tests.rig import SETTING
from specdec.errors import SpecdecError

LOGS = [0.1, 0.9, 0.3, 0.7, 0.5, 0.2, 0.8, 0.4]
"""Logs of speedups that differ far more between prompts than any change below."""


def with_logs(logs: list[float], **other: object) -> Figures:
    """Figures of one workload, with the interval that these logs have."""
    from benchsuite.measure.interval import estimate

    speed = estimate({"chat": logs})
    return replace(Figures(speed.ratio, speed.low, speed.high, {"chat": logs}), **other)  # type: ignore[arg-type]


def only_change(before: Figures | None, now: Figures | None) -> Change:
    """The change of a single row."""
    base, head = (
        ComparedSide(name, {}, {"row": found} if found else {}) for name, found in (("a", before), ("b", now))
    )
    [found] = changes(base, head)
    return found


def test_the_same_prompts_are_paired() -> None:
    noise = [0.001 * (-1) ** n for n in range(8)]
    slower = only_change(with_logs(LOGS), with_logs([x - 0.03 + e for x, e in zip(LOGS, noise, strict=True)]))
    assert slower.kind == "slower"
    assert slower.ratio == pytest.approx(math.exp(-0.03))
    assert slower.high is not None
    assert slower.high < 1
    unpaired = only_change(replace(with_logs(LOGS), logs={}), replace(with_logs([x - 0.03 for x in LOGS]), logs={}))
    assert unpaired.kind == "within noise"
    assert (
        only_change(with_logs(LOGS), with_logs([x + e for x, e in zip(LOGS, noise, strict=True)])).kind
        == "within noise"
    )


def test_two_intervals_add_as_independent_errors_do() -> None:
    before, now = Figures(1.0, 1 / 1.03, 1.03), Figures(1.1, 1.1 / 1.04, 1.1 * 1.04)
    found = only_change(before, now)
    half = math.exp(math.hypot(math.log(1.03), math.log(1.04)))
    assert found.low == pytest.approx(1.1 / half)
    assert found.high == pytest.approx(1.1 * half)
    assert found.kind == "faster"


@pytest.mark.parametrize(
    ("before", "now", "kind", "also"),
    [
        (None, with_logs(LOGS), "new", ""),
        (with_logs(LOGS), None, "gone", ""),
        (with_logs(LOGS), with_logs(LOGS, failure="BUG: one\nmore"), "fails now", "BUG: one"),
        (with_logs(LOGS, failure="BUG: one"), with_logs(LOGS), "works again", "BUG: one"),
        (with_logs(LOGS, failure="a"), with_logs(LOGS, failure="a"), "no speed", ""),
        (
            with_logs(LOGS, same={"seed": 0}),
            with_logs(LOGS, same={"seed": 1}),
            "not comparable",
            "measured otherwise: seed 0 → 1",
        ),
        (with_logs(LOGS, counted={"tau": 2.0}), with_logs(LOGS, counted={"tau": 1.5}), "within noise", "tau 2 → 1.5"),
        (with_logs(LOGS[:5]), with_logs(LOGS[:5]), "too few units", ""),
        (Figures(None), Figures(None), "no speed", ""),
    ],
)
def test_every_kind_of_change_has_a_name(before: Figures | None, now: Figures | None, kind: str, also: str) -> None:
    found = only_change(before, now)
    assert (found.kind, found.also) == (kind, also)
    assert kind in MARKS
    assert found.changed == (kind not in ("within noise", "too few units", "no speed") or also != "")


def test_marks_differ() -> None:
    assert len(set(MARKS.values())) == len(MARKS)


def test_only_what_changed_is_shown_unless_all_is_asked_for() -> None:
    row = "smollm2-135m-question_answering-hybrid(sources=suffix)-match-goodput-k15"
    base = ComparedSide("a", {}, {row: with_logs(LOGS), "same": with_logs(LOGS)})
    slow = with_logs(
        [x - 0.5 for x in LOGS], counted={"tau": 1.5, "acceptance_rate": 0.25, "emitted_digest": "0123456789abcdef"}
    )
    head = ComparedSide("b", {}, {row: slow, "same": with_logs(LOGS)})
    changed = comparison_document([base, head], every=False)
    text = "\n".join(terminal(changed))
    assert row in text
    assert "same" not in text.replace("measured", "")
    assert max(map(len, text.splitlines())) <= 140
    assert "2 rows: 1 slower, 1 within noise (all of them: --all)" in text
    assert "same" in markdown(comparison_document([base, head], every=True))
    assert f'class="bad" title="slower">{MARKS["slower"]}</td><td data-head="row">{row}' in page(changed)
    assert summary([]) == "no rows"


def test_a_history_is_in_the_order_of_the_runs_times() -> None:
    sides = [ComparedSide(name, {"time": time}, {"r": with_logs(LOGS)}) for name, time in (("new", "2"), ("old", "1"))]
    html = page(history_document(sides))
    assert html.index("1: old") < html.index("2: new")
    assert html.count("<circle") == 3, "two points, and one in the legend"


def baseline(path: Path, speed: float) -> None:
    """Write a baseline of eight launches with one row that is ``speed`` times as fast as its control."""
    launches = []
    for shift in (-0.002, -0.001, 0.0, 0.0, 0.0, 0.0, 0.001, 0.002):
        relative = tuple(-x - math.log(speed) - shift for x in LOGS)
        launches.append(Launch({DECODE: FigureTimes((1.0,) * 8, relative)}))
    row = GatedRow(
        work={"seed": 0},
        control="plain",
        counters={"target_forwards": 1},
        digest="d",
        plain_digest="d",
        launches=tuple(launches),
    )
    Record({"commit": "c"}, {"tiny-chat-ngram": row}).save(path)


def test_files_and_revisions_of_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    baseline(tmp_path / "gate.json", 1.0)
    baseline(tmp_path / "with:colon.json", 1.0)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], check=True)
    (tmp_path / "gate.json").unlink()
    baseline(tmp_path / "gate.json", 0.9)
    assert benchsuite_main(["compare", "HEAD:gate.json", "gate.json", "--html", "c.html", "--markdown", "c.md"]) == 0
    shown = capsys.readouterr().out
    assert "1 row: 1 slower" in shown
    assert read_side("HEAD:with:colon.json").rows == read_side("with:colon.json").rows
    assert "0.900" in shown
    assert "0.900" in (tmp_path / "c.html").read_text()
    assert "| -  | tiny-chat-ngram |" in (tmp_path / "c.md").read_text()
    assert benchsuite_main(["history", "HEAD:gate.json", "gate.json", "--html", "h.html"]) == 0
    info = {"speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "verdict": "faster", "tau": 2.0}
    info |= dict.fromkeys(("setting", "acceptance_rate", "emitted_digest", "units", "baseline", *SHARED))
    (tmp_path / "b.json").write_text(
        json.dumps({"benchmarks": [{"name": "test_speculation[tiny-chat-x]", "extra_info": info}]})
    )
    assert read_side("b.json").rows["tiny-chat-x"].speedup == 2.0
    del info["setting"]
    (tmp_path / "b.json").write_text(json.dumps({"benchmarks": [{"name": "test_speculation[x]", "extra_info": info}]}))
    with pytest.raises(
        SpecdecError, match=r"older specdec-bench: its rows do not name .* that run's folder of results"
    ):
        read_side("b.json")


@pytest.mark.parametrize("field", [name for name in SETTING.values if name not in ("seed", "workload")])
def test_each_setting_is_compared_by_its_own_noise_and_its_own_plain_output(field: str, tmp_path: Path) -> None:
    """Two settings of one run, which differ in one field; plain's interval against itself is 2 % wide, and 30 %."""
    other = {"target": "b", "backend": "cpu", "device": "cpu:0", "dtype": "int8"}.get(field, 0.5)
    settings = [SETTING, SETTING.replaced(**{field: 2 if field in ("batch", "top_k", "max_new_tokens") else other})]
    benchmarks = []
    for setting, noise in zip(settings, (1.02, 1.3), strict=True):
        shared = (
            dict.fromkeys(KEYS)
            | {name: setting.values[name] for name in SHARED}
            | {"setting": setting.id, "verdict": "~", "speedup": 1.5, "emitted_digest": noise}
        )
        for draft, low in (("ngram", 1.4), ("plain again", 1 / noise), (None, None)):
            info = shared | {
                "draft": draft,
                "speedup_low": low,
                "speedup_high": noise if draft == "plain again" else 1.6,
            }
            benchmarks.append({"name": f"test_speculation[{setting.id}-{draft}]", "extra_info": info})
    (tmp_path / "b.json").write_text(json.dumps({"benchmarks": benchmarks}))
    found = read_side(str(tmp_path / "b.json")).rows
    for setting, noise in zip(settings, (1.02, 1.3), strict=True):
        row = found[f"{setting.id}-ngram"]
        assert row.noise == pytest.approx(math.log(noise))
        assert row.same["plain's output"] == str(noise)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"benchmarks": []}', '{"format": "specdec-gate"}'])
def test_what_is_no_run_is_refused_with_what_can_be_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(SpecdecError, match=r"expected|run pytest|x\.json"):
        read_side(str(tmp_path / "x.json"))
    for nothing in (str(tmp_path), str(tmp_path / "nowhere"), "HEAD:nowhere.json"):
        with pytest.raises(SpecdecError, match="expected a folder of results"):
            read_side(nothing)


def test_a_change_within_the_noise_of_plain_against_itself_is_none() -> None:
    """What shifts a whole process moves all of its prompts alike, and is in no interval between them."""
    moved = [x - 0.03 for x in LOGS]
    quiet = only_change(with_logs(LOGS, noise=0.01), with_logs(moved, noise=0.02))
    assert quiet.kind == "slower"
    loud = only_change(with_logs(LOGS, noise=0.02), with_logs(moved, noise=0.03))
    assert loud.kind == "within noise"


def test_a_run_is_compared_with_its_json_by_what_both_know() -> None:
    more = with_logs(LOGS, same={"seed": 0, "units": 8}, counted={"tau": 2.0, "forwards": 9})
    less = with_logs(LOGS, same={"seed": 0, "control": "plain"}, counted={"tau": 2.0})
    assert (only_change(more, less).kind, only_change(more, less).also) == ("within noise", "")
