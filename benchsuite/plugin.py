"""The pytest plugin: options, markers, fixtures, and the objects that do the work. Imports no torch by itself."""

from __future__ import annotations

import difflib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite import options
from benchsuite.gate import rules
from benchsuite.gate.record import GateError
from benchsuite.report.replay import replay
from benchsuite.run.conversations import ConversationPlugin
from benchsuite.run.decoding import DecodingPlugin
from benchsuite.run.devices import DevicePlugin
from benchsuite.run.kernels import KernelPlugin
from benchsuite.run.load import LoadPlugin
from benchsuite.run.request import read_request
from benchsuite.run.serving import ServingPlugin
from benchsuite.run.shards import ShardPlugin
from benchsuite.run.skips import skip_lines
from benchsuite.run.speculation import ComparisonPlugin
from specdec.errors import folded
from specdec.unpackaged import add_plugin_source

if TYPE_CHECKING:
    from benchsuite.benches.conversations.bench import ConversationBench
    from benchsuite.benches.decoding.bench import DecodingBench
    from benchsuite.benches.kernels.timing import KernelBench
    from benchsuite.benches.load.bench import LoadBench
    from benchsuite.benches.serving.certificate import Certificate
    from benchsuite.benches.serving.figures import EndpointFigures
    from benchsuite.measure.rows import Row
    from benchsuite.run.judged import JudgedRun

MARKERS = (
    "cuda: needs an NVIDIA GPU",
    "mps: needs an Apple GPU",
    "gpu: needs a GPU of either kind",
    "kernels: times the kernels and the key/value arena; run it alone, `-m kernels`",
    "decoding: measures decoding as users run it: processors, queues, log-probabilities; run it alone, `-m decoding`",
    "load: measures strategies with many requests at once or at random times; run it alone, `-m load`",
    "conversations: asks the engine and servers turn by turn, or replays a trace; run it alone, `-m conversations`",
    "serving: measures the servers of --specdec-endpoint; run it alone, `-m serving`",
    "families: each type of causal model that transformers builds, tiny, over the arena (docs/families.md)",
    "museum: known bugs, each put into our code and found by the layer that is there for it",
    "gate(tolerance, level): the slowdown that --gate lets through here, a fraction; the only level it gates at",
    "fake_gpu: steps on tensors that say they are on a GPU and hold no numbers; kernels compiled for absent GPUs",
    "slow: takes more than a few seconds on two cores, or needs the embedded model",
)

COMPARISON, DEVICES, KERNELS, GATE = "specdec-comparison", "specdec-devices", "specdec-kernels", "specdec-gate"
SERVED_GATE = "specdec-gate-servers"
DECODING, LOAD, SERVING = "specdec-decoding", "specdec-load", "specdec-serving"
CONVERSATIONS = "specdec-conversations"
SHARDS, RANKS = "specdec-shards", "specdec-ranks"
"""The names under which the plugin's objects are registered."""

NEAR = 0.87
"""The least likeness of two names of options, which begin alike, for one to be a misspelling of the other."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini keys."""
    options.add_options(parser)
    rules.add_gate_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Refuse an option that begins like one of ours and is none, with the nearest name if one is near."""
    mine = [f"--specdec-{option.name}" for option in options.OPTIONS]
    mine += ["--specdec-list", "--specdec-deep", "--gate", *(f"--gate-{option.name}" for option in rules.OPTIONS)]
    for word in parser.parse_known_and_unknown_args(args)[1]:
        name = word.partition("=")[0]
        if name.startswith(("--specdec", "--gate")):
            close = difflib.get_close_matches(name, mine, 1, NEAR)
            near = f"; the nearest is {close[0]}" if close else ""
            raise _folded_usage(pytest.UsageError(f"there is no option {name}{near} (pytest --help lists all)"))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers and register the plugin's objects; the gate only if an option requests it."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.add_cleanup(add_plugin_source(lambda: _unpackaged(config.pluginmanager)))
    register = config.pluginmanager.register
    request = read_request(config)
    try:
        comparison = ComparisonPlugin(config, request)
        # pytest prints summaries in reverse order of registration.
        register(ShardPlugin(config, request.shard, comparison.cell_of), SHARDS)
        register(DevicePlugin(config), DEVICES)
        register(comparison.ranks_plugin, RANKS)
        register(comparison, COMPARISON)
        register(KernelPlugin(config, request), KERNELS)
        register(DecodingPlugin(config, request), DECODING)
        register(LoadPlugin(config, request), LOAD)
        register(ConversationPlugin(config, request), CONVERSATIONS)
        serving = ServingPlugin(config, request)
        register(serving, SERVING)
        if request.gate:  # which refuses pytest-xdist before a worker begins
            from benchsuite.run.gate import GatePlugin
            from benchsuite.run.served_baseline import is_of_servers
            from benchsuite.run.served_gate import ServedGatePlugin

            gate: JudgedRun
            if request.gate.endpoint or is_of_servers(request.gate.file):
                gate = ServedGatePlugin(config, request.gate, serving)
            else:
                if request.gate.save and not request.gate.gating:  # of whichever rows there are
                    register(ServedGatePlugin(config, request.gate, serving), SERVED_GATE)
                gate = GatePlugin(config, request.gate, lambda: comparison.bench, lambda name: comparison.arms[name])
            register(gate, GATE)
    except GateError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(specname="pytest_cmdline_main", wrapper=True)
def pytest_cmdline_main_folded() -> Generator[None, int | None, int | None]:
    """Give a refusal lines of the terminal's width. pytest sees no hook whose name begins otherwise."""
    try:
        return (yield)
    except pytest.UsageError as error:
        raise _folded_usage(error) from None


def _folded_usage(error: pytest.UsageError) -> pytest.UsageError:
    begins = "ERROR: "  # which pytest prints before it
    return pytest.UsageError(*(folded(f"{begins}{text}").removeprefix(begins) for text in error.args))


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """``--specdec-list``: print what is registered, and run nothing."""
    if not config.option.specdec_list:
        return None
    from specdec.errors import SpecdecError
    from specdec.registry import Registry

    end = add_plugin_source(lambda: _unpackaged(config.pluginmanager))
    try:
        print(Registry().listing())
    except SpecdecError as error:
        raise pytest.UsageError(str(error)) from None
    finally:
        end()
    return 0


def _unpackaged(manager: pytest.PytestPluginManager) -> list[tuple[str, object]]:
    """The plugins of pytest that no entry point has loaded (conftest.py files, modules of -p), each with its file."""
    packaged = [plugin for plugin, _ in manager.list_plugin_distinfo()]
    return [
        (getattr(plugin, "__file__", None) or f"pytest's plugin {name!r}", plugin)
        for name, plugin in manager.list_name_plugin()
        if plugin is not None and all(plugin is not one for one in packaged)
    ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print why the suite skipped tests, unless pytest itself does (``-rs``)."""
    if not {"s", "a", "A"} & {*config.option.reportchars}:
        for line in skip_lines(terminalreporter.getreports("skipped")):
            terminalreporter.write_line(folded(line))


@pytest.fixture
def specdec_row(request: pytest.FixtureRequest) -> Row:
    """The measured row of one arm: figures in ``info``, ``ratios`` of pairs, ``failure`` if it broke its contract.

    A test that requests it gets one item for each arm of the ``--specdec-…`` matrix. All arms of a workload
    are measured together when its first row is requested.
    """
    plugin: Any = request.config.pluginmanager.get_plugin(COMPARISON)
    row: Row = plugin.row(request.param)
    return row


@pytest.fixture(scope="session")
def specdec_kernels(request: pytest.FixtureRequest) -> KernelBench:
    """The kernels of one target, ready for timing: see ``benchsuite.benches.kernels.timing.KernelBench``.

    A test that requests it gets one item for each ``--specdec-target``.
    """
    plugin: Any = request.config.pluginmanager.get_plugin(KERNELS)
    bench: KernelBench = plugin.bench(request.param)
    return bench


@pytest.fixture(scope="session")
def specdec_decoding(request: pytest.FixtureRequest) -> DecodingBench:
    """Decoding as users run it on one target: see ``benchsuite.benches.decoding.bench.DecodingBench``.

    A test that requests it gets one item for each ``--specdec-target``.
    """
    plugin: Any = request.config.pluginmanager.get_plugin(DECODING)
    bench: DecodingBench = plugin.bench(request.param)
    return bench


@pytest.fixture(scope="session")
def specdec_load(request: pytest.FixtureRequest) -> LoadBench:
    """Strategies under load on one target: see ``benchsuite.benches.load.bench.LoadBench``.

    A test that requests it gets one item for each ``--specdec-target`` and, as ``load``, for each load of
    ``--specdec-batch`` and ``--specdec-rate``.
    """
    plugin: Any = request.config.pluginmanager.get_plugin(LOAD)
    bench: LoadBench = plugin.bench(request.param)
    return bench


@pytest.fixture(scope="session")
def specdec_conversations(request: pytest.FixtureRequest) -> ConversationBench:
    """Conversations over one target and servers: see ``benchsuite.benches.conversations.bench.ConversationBench``.

    A test that requests it gets one item for each ``--specdec-target``, or one for servers alone.
    """
    plugin: Any = request.config.pluginmanager.get_plugin(CONVERSATIONS)
    bench: ConversationBench = plugin.bench(request.param)
    return bench


@pytest.fixture
def specdec_served(request: pytest.FixtureRequest) -> list[EndpointFigures]:
    """The figures of every server of ``--specdec-endpoint`` under one load, the first endpoint's first.

    A test that requests it gets one item for each load of ``--specdec-concurrency`` and ``--specdec-rate``.
    """
    plugin: Any = request.config.pluginmanager.get_plugin(SERVING)
    rows: list[EndpointFigures] = plugin.figures(request.param)
    return rows


@pytest.fixture
def specdec_certificates(request: pytest.FixtureRequest) -> list[Certificate]:
    """What can be said of the outputs of every server of ``--specdec-endpoint`` beside the first one's."""
    plugin: Any = request.config.pluginmanager.get_plugin(SERVING)
    found: list[Certificate] = plugin.certificates()
    return found


@pytest.fixture
def specdec_benchmark(specdec_row: Row, benchmark: Any) -> Row:
    """``specdec_row``; pytest-benchmark gets its figures, and seconds per token for each pass over the prompts."""
    # A row that broke its contract has no rounds, so no speed is reported for it.
    replay(benchmark, specdec_row.rounds, specdec_row.info)
    return specdec_row
