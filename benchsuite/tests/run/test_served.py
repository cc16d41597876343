"""The part of the plugin that measures servers, in runs that ask none: items, plan, folder, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.benches.serving import bench as serving
from benchsuite.benches.serving import local_judge
from benchsuite.benches.serving.asked import Read
from benchsuite.benches.serving.bench import ServingBench, ServingPlan, prompts_of
from benchsuite.benches.serving.certificate import Certificate, UnsteadyPlain
from benchsuite.benches.serving.figures import EndpointFigures, Slo
from benchsuite.benches.serving.load import Sent, ServedBlock, Traffic
from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.measure.workloads import load_workload
from benchsuite.report.renderers import terminal
from benchsuite.report.serving import serving_document
from benchsuite.run.request import RunRequest, texts_of
from benchsuite.run.serving import ServingPlugin
from benchsuite.tests.run.shown import Shown
from specdec import SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Chunk, Reply

TWO = {"endpoint": "near=http://localhost:1, far=http://localhost:2", "prompts": "1", "workload": "chat,reasoning"}


class UnaskedBench(ServingBench):
    """A benchmark whose servers answer at once, without being asked; ``refuses``: what is wrong with one of them."""

    refuses = ""

    def __init__(
        self, plan: ServingPlan, keep: Callable[[ServingBench], None], servers: ServersInTurn, read: Read | None
    ) -> None:
        super().__init__(plan, keep, servers, read)
        self.keep, self.reader = keep, read

    def prepare(self) -> None:
        """Ask nobody."""
        if self.refuses:
            raise SpecdecError(self.refuses)

    def measure(self, load: Traffic) -> list[EndpointFigures]:
        """Answer each prompt in a second, and keep the block."""
        reply = Reply("xy", (), (Chunk(0.5, "x", 2), Chunk(1.0, "y", 2)), 1.0, 3, 4, "length", 1, {})
        sent = tuple(Sent(n, 0.0, 1.0, reply) for n in range(len(self.plan.prompts)))
        self.blocks[load] = [ServedBlock(name, 0, sent) for name in self.names]
        self.keep(self)
        return self.figures(load)

    def certify(self, dtype: str) -> list[Certificate]:
        """Nothing is certified; a detail says of which dtype."""
        self.certificates = [Certificate("far", UnsteadyPlain("near"), (dtype,))]
        return self.certificates


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every benchmark of servers is one that asks nobody."""
    monkeypatch.setattr(serving, "ServingBench", UnaskedBench)


class MadeUpServing:
    """A run of pytest over servers with these options, which has collected a test of each kind."""

    def __init__(self, folder: Path, /, **given: str) -> None:
        config: Any = SimpleNamespace(option=SimpleNamespace(collectonly=False))
        self.config = config
        self.plugin = ServingPlugin(config, RunRequest.of(texts_of({**TWO, **given}, folder)))
        self.cases: list[Any] = []
        self.parametrize("specdec_certificates", "specdec_served")
        items = [SimpleNamespace(fixturenames=(name,)) for name in ("specdec_served", "specdec_certificates", "other")]
        self.session: Any = SimpleNamespace(items=[*items, SimpleNamespace()], exitstatus=0)

    def parametrize(self, *fixtures: str) -> None:
        """Collect a test that uses these fixtures."""

        def parametrized(fixture: str, cases: Sequence[Any], indirect: bool) -> None:
            assert (fixture, indirect) == ("specdec_served", True)
            self.cases += cases

        made: Any = SimpleNamespace(fixturenames=fixtures, parametrize=parametrized)
        self.plugin.pytest_generate_tests(made)

    def begin(self) -> Any:
        """End the collection; returns the benchmark, if there is one."""
        self.plugin.pytest_collection_finish(self.session)
        return self.plugin.bench

    def end(self, status: int = 0) -> list[str]:
        """End the run; returns what it shows."""
        self.session.exitstatus = status
        self.plugin.pytest_sessionfinish(self.session, status)
        shown = Shown()
        self.plugin.pytest_terminal_summary(shown)
        self.plugin.pytest_unconfigure()
        return shown.lines


def test_a_test_of_servers_has_an_item_for_each_load_and_without_a_server_one_that_is_skipped(tmp_path: Path) -> None:
    run = MadeUpServing(tmp_path, concurrency="1,4", rate="2.5")
    assert run.cases == [Traffic(concurrency=1).id, Traffic(concurrency=4).id, Traffic(rate=2.5).id]
    run.parametrize("specdec_row")
    assert len(run.cases) == 3
    none = MadeUpServing(tmp_path, endpoint="")
    [skipped] = none.cases
    [mark] = skipped.marks
    assert (skipped.values, mark.name) == (("none",), "skip")
    said = "no endpoint is given: --specdec-endpoint plain=http://localhost:8000,spec=http://localhost:8001 names "
    assert mark.kwargs["reason"].startswith(said)
    assert none.begin() is None


def test_certificates_come_after_all_that_is_timed_however_another_plugin_orders_tests(tmp_path: Path) -> None:
    """pytest-randomly shuffles them; a certificate is of the texts that were timed."""
    run = MadeUpServing(tmp_path)
    certificates, *others = names = [("specdec_certificates",), ("specdec_served",), (), ("specdec_served", "other")]
    items: list[Any] = [SimpleNamespace(fixturenames=name) for name in names]
    ordering = run.plugin.pytest_collection_modifyitems(items)
    next(ordering)
    items.sort(key=lambda item: item.fixturenames != certificates)
    with pytest.raises(StopIteration):
        next(ordering)
    assert [item.fixturenames for item in items] == [*others, certificates]


@pytest.mark.parametrize("left", [["specdec_served"], ["specdec_certificates"], ["specdec_row"], []])
def test_servers_are_asked_where_a_test_of_theirs_is_to_run(left: list[str], tmp_path: Path) -> None:
    run = MadeUpServing(tmp_path)
    run.session.items = [SimpleNamespace(fixturenames=(name,)) for name in left]
    assert (run.begin() is not None) == (left in (["specdec_served"], ["specdec_certificates"]))
    run.config.option.collectonly = True
    run.plugin.bench = None
    assert run.begin() is None


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        ({"timeout": "0"}, ServingPlan((), (), Ask("", 64, 0.0), 1, None, 0)),
        (
            {
                **{"pairs": "3", "seed": "5", "temperature": "0.5", "max_new_tokens": "7", "slo": "ttft=2,e2e=9"},
                **{"timeout": "30", "prompts": "2"},
            },
            ServingPlan((), (), Ask("", 7, 0.5, seed=5), 3, Slo(ttft=2.0, e2e=9.0), 5),
        ),
        (
            {"seed": "5", "endpoint_api": "chat", "timeout": "300"},
            ServingPlan((), (), Ask("", 64, 0.0, chat=True), 1, None, 5),
        ),
    ],
    ids=["nothing", "sampled", "chat"],
)
def test_servers_are_asked_what_the_request_says(given: dict[str, str], plan: ServingPlan, tmp_path: Path) -> None:
    """The first prompts of each kind of text; no answer, and no silence in one, is longer than a run's limit."""
    found = MadeUpServing(tmp_path, **given).begin().plan
    usual = [Endpoint("near", "http://localhost:1"), Endpoint("far", "http://localhost:2")]
    total = float(given["timeout"]) or usual[0].total_s
    ends = tuple(Endpoint(one.name, one.url, total_s=total, read_s=min(usual[0].read_s, total)) for one in usual)
    texts = prompts_of([load_workload(name).first(int(given.get("prompts", 1))) for name in ("chat", "reasoning")])
    assert found == ServingPlan(
        ends, texts, plan.ask, plan.rounds, plan.slo, plan.seed, (Traffic(1),), found.before_new
    )
    again = MadeUpServing(tmp_path, **given).begin().plan
    assert found.before_new != again.before_new, "no server has met it before"


def test_every_load_has_as_many_prompts_as_are_asked_for(tmp_path: Path) -> None:
    loads = (Traffic(concurrency=1), Traffic(concurrency=4))
    plan = MadeUpServing(tmp_path, concurrency="1,4", prompts="2", workload="chat").begin().plan
    assert plan.loads == loads
    assert [len(plan.places(load)) for load in loads] == [2, 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": "0,1"}, "--specdec-temperature is '0,1'; endpoints are asked with one value of it"),
        ({"max_new_tokens": "4,5"}, "--specdec-max-new-tokens is '4,5'; endpoints are asked with one value of it"),
        (
            {"endpoint": "a=http://localhost:1, b=http://localhost:1"},
            "two endpoints have the address http://localhost:1: give each its own, or --specdec-endpoint-start a file",
        ),
        ({"seed": "1"}, "nobody is there"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_leaves_the_folder_to_others(
    given: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnaskedBench, "refuses", "nobody is there")
    run = MadeUpServing(tmp_path, results="kept", **given)
    with pytest.raises(pytest.UsageError) as refused:
        run.begin()
    assert str(refused.value).startswith(said)
    assert run.plugin.bench is None
    assert [*(tmp_path / "kept").iterdir()] == []
    assert run.end() == []


def test_commands_of_servers_are_those_of_their_file_and_one_address_may_have_several(tmp_path: Path) -> None:
    (tmp_path / "start.yaml").write_text("near: serve near\nfar: serve far\n")
    one = "near=http://localhost:1, far=http://localhost:1"
    found = MadeUpServing(tmp_path, endpoint=one, endpoint_start="start.yaml").begin()
    assert found.servers.commands == {"near": "serve near", "far": "serve far"}
    assert MadeUpServing(tmp_path).begin().servers.commands == {}


@pytest.mark.parametrize(
    ("given", "reads"),
    [({"certify_by": "tiny"}, True), ({}, False), ({"certify_by": "tiny", "certify": "off"}, False)],
)
def test_outputs_are_read_by_a_local_judge_where_one_is_named_and_they_are_compared(
    given: dict[str, str], reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_judge, "LocalJudge", lambda name: SimpleNamespace(read=f"read by {name}"))
    assert MadeUpServing(tmp_path, **given).begin().reader == ("read by tiny" if reads else None)


@pytest.mark.parametrize("status", [0, 1])
def test_what_is_measured_is_kept_block_by_block_and_in_the_end_in_a_folder(status: int, tmp_path: Path) -> None:
    run = MadeUpServing(tmp_path, results="kept", concurrency="2")
    bench = run.begin()
    with pytest.raises(pytest.UsageError, match="is writing its results into"):
        MadeUpServing(tmp_path, results="kept").begin()
    partial = tmp_path / "kept" / "serving-partial.json"
    assert not partial.exists()
    rows = run.plugin.figures(Traffic(concurrency=2).id)
    assert [row.endpoint for row in rows] == ["near", "near again", "far"]
    assert json.loads(partial.read_text()) == json.loads(json.dumps(bench.as_json()))
    shown = run.end(status)
    [folder] = (tmp_path / "kept").iterdir()
    assert shown[0] == "= endpoints"
    assert shown[1:] == [*filter(None, terminal(serving_document(bench), titled=False)), f"results: {folder}"]
    assert json.loads((folder / "MANIFEST.json").read_text())["complete"] is (status == 0)
    assert MadeUpServing(tmp_path, results="kept").begin() is not None, "the folder is free again"


def test_results_that_cannot_be_written_fail_the_run_with_a_line_and_what_is_kept_stays(tmp_path: Path) -> None:
    """Of a server with a name that is too long for a folder; without a folder nothing is written."""
    long = f"{'n' * 250}=http://localhost:1"
    for results, code in (("kept", 1), ("", 0)):
        run = MadeUpServing(tmp_path, results=results, concurrency="2", endpoint=long)
        run.begin()
        run.plugin.figures(Traffic(concurrency=2).id)
        *_, last = run.end()
        assert run.session.exitstatus == code
        assert last.startswith(f"the results could not be written to {tmp_path / 'kept'}: ") == bool(results)
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["serving-partial.json"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"endpoint": ""}, "no endpoint is given: "),
        ({"certify": "off"}, "--specdec-certify off"),
        ({"endpoint": "a=http://localhost:1"}, "a single endpoint has nothing to be compared with"),
        ({"temperature": "0.5"}, "outputs are compared at temperature 0 or 1: "),
        ({"temperature": "0"}, ""),
        ({"temperature": "1", "certify": "float16"}, ""),
    ],
)
def test_outputs_are_compared_where_there_are_two_servers_at_a_temperature_of_which_something_is_known(
    given: dict[str, str], reason: str, tmp_path: Path
) -> None:
    run = MadeUpServing(tmp_path, **given)
    run.begin()
    if reason:
        with pytest.raises(pytest.skip.Exception) as skipped:
            run.plugin.certificates()
        assert str(skipped.value.msg).startswith(reason)
        return
    [found] = run.plugin.certificates()
    assert found.details == (given.get("certify", "unknown"),)
    assert any("far" in line for line in run.end()), "they are shown though nothing is timed"
