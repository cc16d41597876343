"""Rows that are measured at once are measured once, by one worker of pytest-xdist, however it distributes tests."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.run.matrix import build_matrix
from benchsuite.run.results_folder import DIST
from benchsuite.run.speculation import ComparisonPlugin
from benchsuite.run.workers import scheduling, split_cells
from benchsuite.tests.rig import Run, requested

ROWS = ("--specdec-target", "tiny", "--specdec-workload", "chat", "--specdec-prompts", "1", "--specdec-peer", "none")

WHO = """
import os

import pytest

def test_row(specdec_row):
    with open("who.txt", "a") as file:
        file.write(f"{specdec_row.arm.setting.id} {os.environ['PYTEST_XDIST_WORKER']}\\n")

@pytest.mark.parametrize("n", range(8))
def test_other(n):
    pass
"""
"""A user's own tests: rows, and others."""


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("dist", ["worksteal", "load", "loadgroup", "loadfile", "loadscope"])
def test_a_cell_is_measured_by_one_worker(dist: str, run: Run, tmp_path: Path) -> None:
    """By ``worksteal`` the rows of test_other_plugins.py are measured too."""
    (tmp_path / "test_who.py").write_text(WHO)
    done = run(
        *("-m", "pytest", "test_who.py", "-n", "2", "--dist", dist, *ROWS, "--specdec-draft", "ngram,garbage"),
        *("--specdec-max-new-tokens", "3,4,5", "--benchmark-quiet"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = defaultdict[str, set[str]](set)
    lines = (tmp_path / "who.txt").read_text().splitlines()
    for line in lines:
        workers[line.split()[0]].add(line.split()[1])
    assert (len(lines), len(workers)) == (12, 3)
    assert all(len(found) == 1 for found in workers.values()), workers
    assert "nobody shows them: give\n--specdec-results FOLDER, or leave out -n" in done.stdout


@pytest.mark.slow
def test_a_way_that_measures_every_cell_twice_is_refused_and_other_tests_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_who.py").write_text(WHO)
    done = run(
        *("-m", "pytest", "test_who.py", "-n", "1", "--dist", "each", *ROWS, "--specdec-draft", "ngram"),
        "--benchmark-quiet",
    )
    assert done.returncode == 1
    assert "use --dist load, or leave out -n" in done.stdout
    assert "8 passed, 3 errors" in done.stdout, "eight others and three rows"


NODES = st.builds("{}::{}::test[{}]".format, st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 3))


@given(st.lists(st.tuples(NODES, st.sampled_from(["one", "two"]))))
def test_a_cell_is_split_where_its_tests_are_in_several_files_or_scopes(items: list[tuple[str, str]]) -> None:
    for cell in ("one", "two"):
        mine = [nodeid for nodeid, name in items if name == cell]
        files, scopes = ({nodeid.split("::")[0] for nodeid in mine}, {nodeid.rsplit("::", 1)[0] for nodeid in mine})
        for dist, split in (("loadfile", len(files) > 1), ("loadscope", len(scopes) > 1), ("each", bool(mine))):
            assert (cell in split_cells(dist, items)) == split
        assert cell not in split_cells("no", items)


@dataclass(eq=False)
class Worker:
    """A worker that keeps the indices of the tests that it is sent."""

    number: int
    sent: list[int] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> SimpleNamespace:
        return SimpleNamespace(id=f"gw{self.number}", spec=SimpleNamespace(popen=True))

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


XDIST: Any = SimpleNamespace(
    getvalue={"tx": ["popen"] * 2, "dist": "load"}.get,
    option=SimpleNamespace(loadscopereorder=True, maxschedchunk=None),
)
"""What pytest-xdist's controller knows of a run with two workers."""


def distributed(made: Any, names: list[str], dice: random.Random) -> dict[str, int]:
    """Which of two workers ran each test, if they end in any order; each is sent once, and nothing is remembered."""
    workers = [Worker(0), Worker(1)]
    for worker in workers:
        made.add_node(worker)
    for worker in workers:
        made.add_node_collection(worker, names)
    made.schedule()
    done = dict[int, int]()
    while left := [(worker, index) for worker in workers for index in worker.sent if index not in done]:
        worker, index = dice.choice(left)
        done[index] = worker.number
        made.mark_test_complete(worker, index, 0.0)
    assert sorted(index for worker in workers for index in worker.sent) == list(range(len(names)))
    assert made.tests_finished
    assert not any(made.assigned_work[worker] for worker in workers)
    return {names[index]: number for index, number in done.items()}


@settings(max_examples=30)
@given(st.lists(st.sampled_from([None, "one", "two", "three"]), min_size=8, max_size=16), st.randoms())
def test_rows_of_a_cell_are_sent_to_one_worker_and_what_is_done_is_forgotten(
    cells: list[str | None], dice: random.Random
) -> None:
    pytest.importorskip("xdist")
    cell_of = {f"test.py::test[{number}]": cell for number, cell in enumerate(cells)}
    found = distributed(scheduling(XDIST, None, cell_of.get), [*cell_of], dice)
    for cell in {*cells} - {None}:
        assert len({found[name] for name, one in cell_of.items() if one == cell}) == 1


@pytest.mark.parametrize("precision", ["", "2%"])
def test_the_controller_knows_a_row_by_its_name_among_the_parameters_of_a_test(precision: str) -> None:
    """Of two names that fit it is the longer one; where a precision chooses, all kinds of text are measured at once."""
    pytest.importorskip("xdist")
    given = {"target": "tiny,a/b", "workload": "chat,reasoning", "batch": "1,2", "draft": "ngram", "peer": "none"}
    request = requested(**given, device="cpu", precision=precision)
    cell_of = {
        name.format(arm.id): (arm.setting.without_workload if precision else arm.setting)
        for arm in build_matrix(request)
        for name in ("a.py::test[{}]", "a.py::test[3-{}]", "b.py::X::test[{}-true]")
    }
    others = [f"a.py::test_other[{name}]" for name in ("tiny", "tiny-chat", "x", "a:b")] + ["a.py::test_other"]
    plugin = ComparisonPlugin(XDIST, request)
    names = [*cell_of, *others]
    random.Random(0).shuffle(names)
    found = distributed(plugin.pytest_xdist_make_scheduler(XDIST, None), names, random.Random(1))
    assert len({*cell_of.values()}) == (4 if precision else 8)
    for cell in {*cell_of.values()}:
        assert len({found[name] for name, one in cell_of.items() if one == cell}) == 1
    assert {*found.values()} == {0, 1}
    wrong = ComparisonPlugin(XDIST, requested(**{**given, "draft": "ngrm"}, device="cpu"))
    assert distributed(wrong.pytest_xdist_make_scheduler(XDIST, None), names, random.Random(2)).keys() == {*names}
    for dist in ("loadfile", "loadscope", "each", "no"):
        other: Any = SimpleNamespace(getvalue={"dist": dist}.get)
        assert plugin.pytest_xdist_make_scheduler(other, None) is None


@pytest.mark.slow
def test_workers_are_not_begun_where_the_rows_cannot_be_named_or_kept(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong, said in (
        (("--specdec-draft=ngrm", "--specdec-results=out"), "unknown draft 'ngrm'; did you mean 'ngram'"),
        (("--specdec-draft=ngram", "--specdec-results=file/x"), "--specdec-results 'file/x' cannot be made: "),
    ):
        done = inside("-m", "pytest", "--pyargs", "benchsuite.test_speculation", "-n", "1", *ROWS, *wrong)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert said in (done.stdout + done.stderr).replace(f"{tmp_path}/", "")
    assert not (tmp_path / "out").exists()


def process_with_rows(config: dict[str, Any], **given: str) -> tuple[ComparisonPlugin, Any]:
    """The plugin of a process with this configuration, and a session with an item for each row."""
    option = SimpleNamespace(collectonly=False, verbose=0)
    made: Any = SimpleNamespace(option=option, **config)
    plugin, names = ComparisonPlugin(made, requested(**{**TINY, **given})), list[str]()

    def parametrize(name: str, cases: list[Any], indirect: bool, ids: list[str]) -> None:
        assert (name, indirect, [case.values for case in cases]) == ("specdec_row", True, [(one,) for one in ids])
        names.extend(ids)

    metafunc: Any = SimpleNamespace(fixturenames=["specdec_row"], parametrize=parametrize)
    plugin.pytest_generate_tests(metafunc)
    params = [SimpleNamespace(params={"specdec_row": name}) for name in names]
    items = [SimpleNamespace(nodeid=f"a.py::test[{n}]", callspec=one) for n, one in enumerate(params)]
    return plugin, SimpleNamespace(items=[SimpleNamespace(nodeid="a.py::test_other"), *items])


TINY = {"target": "tiny", "workload": "chat", "arm": "garbage", "peer": "none", "device": "cpu"}


def test_a_worker_measures_nothing_of_a_cell_that_others_measure_too() -> None:
    plugin, session = process_with_rows({"workerinput": {DIST: "each"}})
    plugin.pytest_collection_finish(session)
    assert plugin.bench is None
    with pytest.raises(pytest.fail.Exception) as failed:
        plugin.row("tiny-chat-plain")
    said = " ".join(str(failed.value).split())  # lines are as wide as the terminal
    assert said.startswith("pytest-xdist's --dist each sends rows of tiny-chat")
    assert said.endswith("at the same time; use --dist load, or leave out -n")


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (True, "pytest-xdist's processes disturb each other's costs: leave out -n"),
        (False, "costs of a target over several processes are not probed: run one process"),
    ],
)
def test_costs_are_not_probed_where_several_processes_measure(worker: bool, said: str) -> None:
    plugin, session = process_with_rows({"workerinput": {DIST: "load"}} if worker else {}, predict="fresh")
    ranks: Any = None if worker else SimpleNamespace(first=True)
    plugin.ranks_plugin.ranks = ranks
    with pytest.raises(pytest.UsageError) as refused:
        plugin.pytest_collection_finish(session)
    assert str(refused.value) == f"--specdec-predict fresh: {said}, or --specdec-predict"
