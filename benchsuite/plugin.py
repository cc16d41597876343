"""The pytest plugin: options, markers, fixtures. Thin, and free of torch until one of our items is collected."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite import options
from benchsuite.capture import uncaptured
from benchsuite.gate import rules
from benchsuite.gate.record import GateError
from benchsuite.kernelbench.plugin import KernelPlugin
from benchsuite.report.replay import replay, replayed_seconds

if TYPE_CHECKING:
    from benchsuite.kernelbench.timing import KernelBench
    from benchsuite.measure.results import Row

DEVICE_MARKERS = ("cuda", "mps", "gpu")
MARKERS = (
    "cuda: needs an NVIDIA GPU",
    "mps: needs an Apple GPU",
    "gpu: needs a GPU of either kind",
    "kernels: times the kernels and the key/value arena; run it alone, `-m kernels`",
    "museum: known bugs, each put into our code and found by the layer that is there for it",
    "gate(tolerance, level): the slowdown that --gate lets through here, a fraction; the only level it gates at",
    "slow: takes more than a few seconds on two cores, or needs the embedded model",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini twins."""
    options.add_options(parser)
    rules.add_gate_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_RUN] = _Run()
    config.pluginmanager.register(KernelPlugin(config), "specdec-kernels")
    try:
        given = rules.parse(config)
        if given and not hasattr(config, "workerinput"):
            from benchsuite.gate.plugin import GatePlugin

            run = config.stash[_RUN]
            run.pairs = given.pairs if given.save else 1
            gate = GatePlugin(config, given, lambda: run.bench, lambda name: bool(run.arms[name].peer))
            config.pluginmanager.register(gate, "specdec-gate")
    except GateError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """``--specdec-list``: say what there is, and run nothing."""
    if not config.option.specdec_list:
        return None
    from specdec.errors import SpecdecError
    from specdec.registry import Registry

    try:
        print(Registry().listing())
    except SpecdecError as error:
        raise pytest.UsageError(str(error)) from None
    return 0


class _Run:
    """What the plugin keeps between hooks."""

    def __init__(self) -> None:
        self.error: Exception | None = None  # a bad option, found where pytest would print a traceback
        self.arms: dict[str, Any] = {}
        self.bench: Any = None
        self.bar: Any = None
        self.kinds: list[str] = []  # the device markers that the user selected by
        self.pairs = 1  # that each row is timed in, at least
        self.wanted = 0  # our items that the selection was made from
        self.ran = 0
        self.outcome = ""  # where the results went


_RUN = pytest.StashKey[_Run]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that asks for ``specdec_row`` one item for each arm of the matrix."""
    if "specdec_row" not in metafunc.fixturenames:
        return
    run = metafunc.config.stash[_RUN]
    if not run.arms and run.error is None:
        _build_matrix(metafunc.config, run)
    cases = [pytest.param(name, marks=_marks(arm)) for name, arm in run.arms.items()]
    metafunc.parametrize("specdec_row", cases, indirect=True, ids=[*run.arms])


def _build_matrix(config: pytest.Config, run: _Run) -> None:
    from benchsuite.measure import matrix
    from specdec.errors import SpecdecError

    try:
        run.arms = {arm.id: arm for arm in matrix.build_matrix(config)}
    except SpecdecError as error:
        run.error = error


def _marks(arm: Any) -> list[pytest.MarkDecorator]:
    from specdec.devices import ORDER, why_absent

    name = arm.setting.device.partition(":")[0]
    kind = next(k for k in ORDER if why_absent(k) is None) if name == "auto" else name
    marks = [getattr(pytest.mark, kind), pytest.mark.gpu] if kind in ("cuda", "mps") else []
    return marks if arm.setting.target == "tiny" else [*marks, pytest.mark.slow]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark replayed benchmarks, and note which of our items a selection by device chooses from.

    A wrapper, so that it sees the items before ``-m`` and ``-k`` have taken theirs away.
    """
    run = config.stash[_RUN]
    for item in items:
        # A bad option leaves no arms; it is told in pytest_collection_finish, which is always called.
        if _is_measured(item) and run.error is None and config.pluginmanager.hasplugin("benchmark"):
            workload = run.arms[item.callspec.params["specdec_row"]].setting  # type: ignore[attr-defined]
            group = f"{workload.target} {workload.workload}"
            item.add_marker(pytest.mark.benchmark(timer=replayed_seconds, group=group))
    expression = config.option.markexpr or ""
    asked = re.findall(r"\w+", re.sub(r"not\s+\w+", "", expression))
    run.kinds = [marker for marker in DEVICE_MARKERS if marker in asked]
    run.wanted = sum(_is_ours(item) for item in items) if run.kinds else 0
    return (yield)


def _is_measured(item: pytest.Item) -> bool:
    return "specdec_row" in getattr(getattr(item, "callspec", None), "params", {})


def _is_ours(item: pytest.Item) -> bool:
    module = getattr(getattr(item, "module", None), "__name__", "")
    return _is_measured(item) or module.startswith("benchsuite.")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse what cannot be run before anything is: load, build, and print the card."""
    config = session.config
    run = config.stash[_RUN]
    if run.error is not None:
        raise pytest.UsageError(str(run.error))
    names = [i.callspec.params["specdec_row"] for i in session.items if _is_measured(i)]  # type: ignore[attr-defined]
    if not names or config.option.collectonly or getattr(config.option, "benchmark_skip", False):
        return
    from benchsuite.measure.session import Bench
    from specdec.devices import be_deterministic
    from specdec.errors import SpecdecError

    arms = [run.arms[name] for name in dict.fromkeys(names)]
    try:
        prompts = options.value(config, "prompts")
        if prompts and not (prompts.isdigit() and int(prompts)):
            raise SpecdecError(f"--specdec-prompts is {prompts!r}; expected a whole number, 1 or more")
        options.results_root(config)
        if config.option.specdec_deterministic or config.getini("specdec_deterministic"):
            be_deterministic(int(options.value(config, "seed")))
        run.bench = Bench(int(prompts) if prompts else None, run.pairs)
        with uncaptured(config):
            run.bench.prepare(arms)
        if config.option.gate_plant:
            run.bench.plant(config.option.gate_plant)
    except SpecdecError as error:
        raise pytest.UsageError(str(error)) from None
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.section("specdec-bench", sep="-")
        for line in run.bench.card:
            reporter.write_line(line)


@pytest.fixture
def specdec_row(request: pytest.FixtureRequest) -> Row:
    """The measured row of one arm: figures in ``info``, paired ``ratios``, and ``failure`` if it broke its contract.

    Tests that ask for it get one item for each arm of the ``--specdec-…`` matrix. All arms of a workload
    are measured together when its first row is asked for.
    """
    from specdec.errors import SpecdecError

    run = request.config.stash[_RUN]
    arm = run.arms[request.param]
    try:
        with uncaptured(request.config):
            row: Row = run.bench.row(arm, _progress(run))
    except SpecdecError as error:
        pytest.fail(f"{arm.id}: {error}", pytrace=False)
    return row


@pytest.fixture(scope="session")
def specdec_kernels(request: pytest.FixtureRequest) -> KernelBench:
    """The kernels of one target, ready to be timed: see ``benchsuite.kernelbench.timing.KernelBench``.

    Tests that ask for it get one item for each ``--specdec-target``.
    """
    plugin: Any = request.config.pluginmanager.get_plugin("specdec-kernels")
    bench: KernelBench = plugin.bench(request.param)
    return bench


@pytest.fixture
def specdec_benchmark(specdec_row: Row, benchmark: Any) -> Row:
    """``specdec_row``, with its times and figures handed to pytest-benchmark (``--benchmark-json``)."""
    # A row that broke its contract has no seconds: it shows no speed anywhere.
    replay(benchmark, specdec_row.seconds, specdec_row.info)
    return specdec_row


def _progress(run: _Run) -> Callable[[str], None]:
    from tqdm import tqdm

    if run.bar is None:
        # In a log file a bar is a line each time: every half minute is enough there.
        pause = 0.2 if sys.stderr.isatty() else 30.0
        run.bar = tqdm(
            total=run.bench.ticks, unit="run", file=sys.stderr, mininterval=pause, leave=False, dynamic_ncols=True
        )

    def tick(what: str) -> None:
        run.bar.set_description_str(what, refresh=False)
        run.bar.update()

    return tick


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip our items whose device is not here, saying which and why."""
    if not _is_ours(item):
        return
    marks = {mark.name for mark in item.iter_markers()} & set(DEVICE_MARKERS)
    if marks:
        from specdec.devices import why_absent

        kinds = sorted(marks - {"gpu"}) or ["cuda", "mps"]
        reasons = [why_absent(kind) for kind in kinds]
        if all(reasons):
            pytest.skip("; ".join(reason for reason in reasons if reason))


def pytest_runtest_call(item: pytest.Item) -> None:
    """Count our items that really ran."""
    if _is_ours(item):
        item.config.stash[_RUN].ran += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the results folder, and fail a selection by device that ran nothing of ours."""
    run = session.config.stash[_RUN]
    if run.bar is not None:
        run.bar.close()
    # The folder was made in pytest_collection_finish, or there is nothing to put into it.
    root = options.results_root(session.config) if run.bench is not None and run.bench.rows else None
    if root is not None:
        seed = int(options.value(session.config, "seed"))
        try:
            run.outcome = f"results: {run.bench.write(root, seed, complete=exitstatus == 0)}"
        except OSError as error:
            run.outcome = f"the results could not be written to {root}: {error}"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if run.wanted and not run.ran and not session.config.option.collectonly and exitstatus in (0, 5):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the tables, and say why a selection by device failed."""
    run = config.stash[_RUN]
    if run.bench is not None and run.bench.rows:
        from benchsuite.report import terminal

        terminal.show(terminalreporter, run.bench, run.outcome)
    if run.wanted and not run.ran and not config.option.collectonly:
        from specdec.devices import why_absent

        kinds = ("cuda", "mps") if "gpu" in run.kinds else run.kinds
        reasons = [reason for kind in kinds if (reason := why_absent(kind))]
        terminalreporter.section("specdec-bench", sep="-")
        terminalreporter.write_line(
            f"-m {config.option.markexpr!r} selected by device and none of specdec-bench's tests ran: "
            f"{'; '.join(reasons) or 'none of those collected carries the marker'}",
            red=True,
        )
