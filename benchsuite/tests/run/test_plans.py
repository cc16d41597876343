"""What a run measures is what its options say, after all of them were read and before anything is timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.benches.serving.bench import ServingPlan, prompts_of
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Traffic
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.workloads import load_workload
from benchsuite.tests.our_server import OurServer
from benchsuite.tests.rig import Make, Run
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

SEEN = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    plugins = [session.config.pluginmanager.get_plugin(f"specdec-{name}") for name in ("comparison", "serving")]
    open("plan.txt", "w").write(repr(next(plugin.bench.plan for plugin in plugins if plugin.bench)))
    pytest.exit("seen", 3)
"""
"""A user's plugin that ends a run before its first test and keeps what would be measured."""


Planned = Callable[..., str]
"""The fixture ``plan_of``."""


@pytest.fixture
def plan_of(inside: Run, tmp_path: Path) -> Planned:
    """Run pytest with arguments up to its first test; returns the plan's text."""
    (tmp_path / "seen.py").write_text(SEEN)

    def call(*arguments: str) -> str:
        done = inside("-m", "pytest", "-p", "seen", "--pyargs", *arguments)
        assert done.returncode == 3, done.stdout + done.stderr
        return (tmp_path / "plan.txt").read_text()

    return call


FEW = ("benchsuite.test_speculation", "--specdec-target=tiny", "--specdec-workload=chat", "--specdec-peer=none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        (("--specdec-draft=garbage",), MeasuringPlan(timeout=600.0)),
        (
            (
                *("--specdec-arm=mine=garbage", "--specdec-prompts=2", "--specdec-pairs=3", "--specdec-timeout=90"),
                *("--specdec-baseline=mine", "--specdec-judge=tiny", "--specdec-debug", "--specdec-graphs=off"),
                *("--specdec-across=dtype,runtime", "--gate-save=new.json", "--gate-pairs=7"),
            ),
            MeasuringPlan(
                prompts=2,
                pairs=3,
                least=7,
                timeout=90.0,
                baseline="mine",
                judge="tiny",
                debug=True,
                graphs=False,
                across=("dtype", "runtime"),
            ),
        ),
        (
            (
                *("--specdec-draft=garbage", "--specdec-precision=2%", "--specdec-budget=5", "--specdec-dry-run"),
                "--specdec-timeout=0",
            ),
            MeasuringPlan(prompts=1, precision=0.02, budget=5.0, dry=True),
        ),
    ],
    ids=["nothing", "fixed", "chosen"],
)
def test_a_comparison_is_planned_as_its_options_say(
    arguments: tuple[str, ...], plan: MeasuringPlan, plan_of: Planned
) -> None:
    assert plan_of(*FEW, *arguments) == repr(plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        (("--specdec-prompts=2",), ServingPlan((), (), Ask("", 64, 0.0), 1, None, 0)),
        (
            (
                *("--specdec-prompts=1", "--specdec-pairs=3", "--specdec-seed=5", "--specdec-temperature=0.5"),
                *("--specdec-max-new-tokens=7", "--specdec-slo=ttft=2,e2e=9", "--specdec-timeout=30"),
            ),
            ServingPlan((), (), Ask("", 7, 0.5, seed=5), 3, Slo(ttft=2.0, e2e=9.0), 5),
        ),
        (
            ("--specdec-prompts=1", "--specdec-seed=5", "--specdec-endpoint-api=chat", "--specdec-timeout=0"),
            ServingPlan((), (), Ask("", 64, 0.0, chat=True), 1, None, 5),
        ),
    ],
    ids=["nothing", "sampled", "chat"],
)
def test_servers_are_asked_what_the_options_say(
    arguments: tuple[str, ...], plan: ServingPlan, plan_of: Planned, assemble: Make
) -> None:
    """Every endpoint gets the first prompts of each kind of text; no answer, and no silence, is longer than a run."""
    said = dict(argument.removeprefix("--specdec-").split("=", 1) for argument in arguments)
    with OurServer(assemble(max_length=512).engine(None, k=0)) as server:
        words = ("benchsuite.test_serving", "-m", "serving", "--specdec-workload=chat,reasoning", *arguments)
        found = plan_of(*words, f"--specdec-endpoint=near={server.url}#ours")
    usual = Endpoint("near", server.url, "ours")
    total = {"30": 30.0, "0": usual.total_s}.get(said.get("timeout", ""), 600.0)
    endpoint = Endpoint("near", server.url, "ours", total_s=total, read_s=min(usual.read_s, total))
    texts = prompts_of([load_workload(name).first(int(said["prompts"])) for name in ("chat", "reasoning")])
    new = found.rpartition("before_new='")[2].partition("'")[0]
    expected = ServingPlan((endpoint,), texts, plan.ask, plan.rounds, plan.slo, plan.seed, (Traffic(1),), new)
    assert new
    assert found == repr(expected)
