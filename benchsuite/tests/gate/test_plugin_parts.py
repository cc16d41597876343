"""Parts of the gate's plugin, called by themselves: what blocks a run, why a row was not measured, and the marker."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchsuite.gate.record import GateError
from benchsuite.gate.trial import Limit
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.run.gate import GateItem, GatePlugin, _limit


@pytest.mark.parametrize(
    ("mode", "update", "inconclusive", "blocking"),
    [
        ("fail", False, "fail", {"INCONCLUSIVE", "REGRESSED", "ERROR"}),
        ("fail", False, "report", {"REGRESSED", "ERROR"}),
        ("fail", True, "fail", {"ERROR"}),
        ("fail", True, "report", {"ERROR"}),
        *(("report", update, unsure, set()) for update, unsure in product((False, True), ("fail", "report"))),
    ],
)
def test_what_blocks_a_run_follows_from_mode_update_and_what_is_let_through(
    mode: str, update: bool, inconclusive: str, blocking: set[str]
) -> None:
    rules = SimpleNamespace(mode=mode, update=update, inconclusive=inconclusive)
    gate = cast(GatePlugin, SimpleNamespace(rules=rules))
    found = {str(one): GatePlugin.blocks(gate, Finding("row", 0, one, "said")) for one in GateVerdict}
    assert found == {str(one): one in blocking for one in GateVerdict}


def _item(nodeid: str = "t.py::test_a", **more: Any) -> Any:
    return SimpleNamespace(nodeid=nodeid, **more)


def _named(item: Any, peer: Callable[[str], bool] = lambda name: False) -> str | None:
    return GatePlugin._row(cast(GatePlugin, SimpleNamespace(_peer=peer)), item)


def test_an_item_measures_our_row_a_plain_benchmark_or_nothing() -> None:
    ours = SimpleNamespace(params={"specdec_row": "tiny-plain"})
    assert _named(_item(callspec=ours)) == "tiny-plain"
    assert _named(_item(callspec=ours, fixturenames=("benchmark",))) == "tiny-plain"
    assert _named(_item(callspec=ours, fixturenames=("benchmark",)), "tiny-plain".__eq__) is None
    assert _named(_item(callspec=SimpleNamespace(params={"specdec_row": 7}))) == "7"
    assert _named(_item(callspec=SimpleNamespace(params={"other": 1}), fixturenames=("benchmark",))) == "t.py::test_a"
    assert _named(_item(fixturenames=("tmp_path", "benchmark"))) == "t.py::test_a"
    assert _named(_item(fixturenames=("tmp_path",))) is None
    assert _named(_item()) is None


def _report(**said: Any) -> Any:
    return SimpleNamespace(
        **{"skipped": False, "failed": False, "when": "call", "longrepr": None, "longreprtext": "", **said}
    )


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (_report(), None),
        (_report(when="setup"), "its test did not run"),
        (_report(when="teardown"), "its test did not run"),
        (_report(failed=True), "its test failed"),
        (_report(failed=True, when="setup"), "its test failed"),
        (_report(skipped=True, longrepr=("t.py", 3, "Skipped: no GPU")), "its test was skipped: Skipped: no GPU"),
        (_report(skipped=True, longreprtext="first\nlast"), "its test was skipped: last"),
        (_report(skipped=True), "its test was skipped: no reason"),
    ],
)
@pytest.mark.parametrize("fixtures", [("benchmark",), ()])
def test_why_a_row_was_not_measured_is_what_its_report_says(
    report: Any, why: str | None, fixtures: tuple[str, ...]
) -> None:
    wanted: dict[str, str | None] = {"t.py::test_a": "its test did not run"}
    gate = SimpleNamespace(wanted=wanted, _row=lambda item: _named(item))
    made: Generator[None, Any, Any] = GatePlugin.pytest_runtest_makereport(
        cast(GatePlugin, gate), _item(fixturenames=fixtures)
    )
    next(made)
    with pytest.raises(StopIteration) as ended:
        made.send(report)
    assert ended.value.value is report
    assert wanted == {"t.py::test_a": why if fixtures else "its test did not run"}


def _marked(*given: Any, **named: Any) -> Any:
    return _item(get_closest_marker=lambda name: pytest.Mark(name, given, named, _ispytest=True))


def test_a_marker_is_a_tolerance_and_a_level() -> None:
    assert _limit(_item(get_closest_marker={"slow": 1}.get)) == Limit(tolerance=None, level=None)
    assert _limit(_marked()) == Limit(None, None)
    assert _limit(_marked(tolerance=0.2)) == Limit(0.2, None)
    assert [_limit(_marked(level=level)) for level in (0, 1, 2, 3)] == [Limit(None, level) for level in (0, 1, 2, 3)]
    assert _limit(_marked(tolerance=0.999, level=3)) == Limit(0.999, 3)
    assert _limit(_marked(tolerance=None, level=None)) == Limit(None, None)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (_marked(0.2), "gate takes tolerance=… (a fraction) and level=… (0, 1, 2 or 3), got (0.2,)"),
        (_marked(size=2), "gate takes tolerance=… (a fraction) and level=… (0, 1, 2 or 3), got {'size': 2}"),
        (
            _marked(0.2, level=1),
            "gate takes tolerance=… (a fraction) and level=… (0, 1, 2 or 3), got (0.2,){'level': 1}",
        ),
    ],
)
def test_a_marker_with_anything_else_is_refused(item: Any, message: str) -> None:
    with pytest.raises(pytest.UsageError) as refused:
        _limit(item)
    assert str(refused.value) == f"t.py::test_a: the marker {message}"


def test_a_markers_values_are_in_their_ranges() -> None:
    for tolerance in (0, 1, -0.1, 1.5):
        with pytest.raises(pytest.UsageError) as refused:
            _limit(_marked(tolerance=tolerance))
        assert str(refused.value) == f"t.py::test_a: the marker's tolerance is {tolerance!r}; 0.03 is 3 %"
    for level in (-1, 4, "1"):
        with pytest.raises(pytest.UsageError) as refused:
            _limit(_marked(level=level))
        assert str(refused.value) == f"t.py::test_a: the marker's level is {level!r}; expected 0, 1, 2 or 3"


def test_benchmarks_that_no_item_declared_are_named_once_and_in_order() -> None:
    def unknown(session: Any) -> str:
        config = SimpleNamespace() if session is None else SimpleNamespace(_benchmarksession=session)
        return GatePlugin._unknown(cast(GatePlugin, SimpleNamespace(config=config, _known={"known"})))

    found = [None, *(SimpleNamespace(fullname=name) for name in ("z", "known", "a", "z"))]
    assert unknown(SimpleNamespace(benchmarks=found)) == "a, z"
    assert unknown(SimpleNamespace(benchmarks=found[:1])) == ""
    assert unknown(SimpleNamespace()) == ""
    assert unknown(None) == ""


def test_findings_are_judged_once_and_a_gate_that_broke_says_so_to_the_others() -> None:
    calls: list[int] = []

    def judge() -> list[Finding]:
        calls.append(1)
        raise RuntimeError("broken")

    gate = cast(GatePlugin, SimpleNamespace(findings=None, _judge=judge))
    with pytest.raises(RuntimeError, match="broken"):
        GatePlugin.judge(gate)
    message = "the gate broke; its first item shows where"
    assert GatePlugin.judge(gate) == [Finding("suite", 0, GateVerdict.ERROR, message)]
    assert calls == [1]
    told = [Finding("row", 0, GateVerdict.PASS, "said")]
    gate = cast(GatePlugin, SimpleNamespace(findings=None, _judge=lambda: told))
    assert GatePlugin.judge(gate) is told
    assert gate.findings is told


def test_an_item_is_found_by_its_rows_name() -> None:
    item = cast(GateItem, SimpleNamespace(config=SimpleNamespace(rootpath="root"), name="row"))
    assert GateItem.reportinfo(item) == ("root", None, "gate: row")


@pytest.mark.parametrize(
    ("exitstatus", "collecting", "gating", "findings", "ends", "wrote"),
    [
        (0, False, True, ["PASS"], None, []),
        (0, False, True, ["PASS", "REGRESSED"], pytest.ExitCode.TESTS_FAILED, []),
        (1, False, True, ["REGRESSED"], None, []),
        (
            0,
            False,
            True,
            None,
            pytest.ExitCode.TESTS_FAILED,
            ["ERROR: the gate was asked for and no gate item ran, so nothing was compared"],
        ),
        (0, False, False, None, None, []),
        (1, False, True, None, None, []),
        (2, False, True, None, None, None),
        (5, False, True, None, None, None),
        (0, True, True, None, None, None),
    ],
)
def test_a_run_ends_as_its_findings_say(
    exitstatus: int,
    collecting: bool,
    gating: bool,
    findings: list[str] | None,
    ends: int | None,
    wrote: list[str] | None,
) -> None:
    written: list[int] = []
    gate = SimpleNamespace(
        config=SimpleNamespace(option=SimpleNamespace(collectonly=collecting)),
        rules=SimpleNamespace(gating=gating),
        findings=findings,
        wrote=[],
        blocks=lambda finding: finding == "REGRESSED",
        _write=written.append,
    )
    session = SimpleNamespace(exitstatus=None)
    GatePlugin.pytest_sessionfinish(cast(GatePlugin, gate), cast(pytest.Session, session), exitstatus)
    assert session.exitstatus == ends
    assert gate.wrote == (wrote or [])
    assert written == ([] if wrote is None else [exitstatus])


@pytest.mark.parametrize(("exitstatus", "ends"), [(0, pytest.ExitCode.USAGE_ERROR), (1, None)])
def test_a_file_that_cannot_be_written_ends_a_good_run_as_a_usage_error(exitstatus: int, ends: int | None) -> None:
    def refuse(exitstatus: int) -> None:
        raise OSError("no room")

    gate = SimpleNamespace(
        config=SimpleNamespace(option=SimpleNamespace(collectonly=False)),
        rules=SimpleNamespace(gating=False),
        wrote=[],
        _write=refuse,
    )
    session = SimpleNamespace(exitstatus=None)
    GatePlugin.pytest_sessionfinish(cast(GatePlugin, gate), cast(pytest.Session, session), exitstatus)
    assert (session.exitstatus, gate.wrote) == (ends, ["ERROR: no room"])


@pytest.mark.parametrize(
    ("made", "device"), [({"machine": {"device": "H200"}}, "H200"), ({"machine": {}}, None), ({"machine": None}, None)]
)
def test_a_run_is_gated_at_the_levels_of_the_device_that_it_ran_on(made: dict[str, Any], device: str | None) -> None:
    """The machine without its device is another one, and only counters would be compared."""

    def levels(of: str | None) -> tuple[int, ...]:
        raise GateError(f"levels of {of}")

    gate: Any = SimpleNamespace(_measured=lambda: SimpleNamespace(made=made), _unknown=lambda: "", _levels=levels)
    assert GatePlugin._judge(gate) == [Finding("suite", 0, GateVerdict.ERROR, f"levels of {device}")]
