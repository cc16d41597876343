"""Servers by the width of their window: a command for each K, and a planted server that is wrong from nine slots on."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.widths import started_endpoints
from benchsuite.report.document import Lines, Table
from benchsuite.report.serving import served_widths
from benchsuite.tests.made_up_servers import MadeUpServer, MadeUpServers
from benchsuite.tests.planted_servers import HonestServer, WrongFromNine
from specdec import SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

PAIR = (Endpoint("plain", "http://one"), Endpoint("spec", "http://one", "m"))
ASKED_OF_EACH = tuple(("chat", f"question {n} of w{n * 3} w{n * 3 + 1} w{n * 3 + 2}") for n in range(18))
SPEC = """serve m --config '{"n":{k}}'"""


def start_file(folder: Path, **commands: str) -> Path:
    """The file of these commands."""
    file = folder / "servers.yaml"
    file.write_text("".join(f"{name}: {text}\n" for name, text in commands.items()))
    return file


def test_a_command_with_k_is_an_endpoint_for_each_width(tmp_path: Path) -> None:
    file = start_file(tmp_path, plain="serve m", spec=SPEC)
    found = started_endpoints(PAIR, file, (1, 2, 9))
    assert [one.name for one in found.endpoints] == ["plain", "spec-w2", "spec-w9"]
    assert {(one.url, one.model) for one in found.endpoints[1:]} == {("http://one", "m")}
    assert found.commands == {
        "plain": "serve m",
        "spec-w2": """serve m --config '{"n":1}'""",
        "spec-w9": """serve m --config '{"n":8}'""",
    }
    assert found.widths == {"spec-w2": 2, "spec-w9": 9}


def test_without_widths_endpoints_are_as_they_were(tmp_path: Path) -> None:
    assert started_endpoints(PAIR[:1], None, None).endpoints == PAIR[:1]
    file = start_file(tmp_path, plain="serve m", spec="serve m --k 4")
    found = started_endpoints(PAIR, file, None)
    assert (found.endpoints, found.commands, found.widths) == (
        PAIR,
        {"plain": "serve m", "spec": "serve m --k 4"},
        {},
    )


def test_widths_and_a_command_with_k_need_each_other(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="there is no --specdec-endpoint-start; write spec: vllm serve"):
        started_endpoints(PAIR, None, (2,))
    with pytest.raises(SpecdecError, match="no command in .*servers.yaml has it; write"):
        started_endpoints(PAIR, start_file(tmp_path, plain="serve m", spec="serve m"), (2,))
    with pytest.raises(SpecdecError, match="the command of spec in .* has {k}: say which widths"):
        started_endpoints(PAIR, start_file(tmp_path, plain="serve m", spec=SPEC), None)


@pytest.mark.slow
def test_a_server_that_is_wrong_from_width_nine_on_is_named_at_nine(tmp_path: Path) -> None:
    started = started_endpoints(PAIR, start_file(tmp_path, plain="serve m", spec=SPEC), range(1, 12))
    servers: dict[str, MadeUpServer] = {"plain": HonestServer(1, rounding=1e-4)}
    servers |= {name: WrongFromNine(width, rounding=1e-4, k=width - 1) for name, width in started.widths.items()}
    load = Traffic(concurrency=1)
    plan = ServingPlan(started.endpoints, ASKED_OF_EACH, Ask("", 64, 0.0), loads=(load,), widths=started.widths)
    bench = ServingBench(plan, servers=MadeUpServers(servers))
    bench.measure(load)
    bench.certify("unknown")
    table, lines = served_widths(bench)
    assert isinstance(table, Table)
    assert isinstance(lines, Lines)
    assert lines.lines == ["window widths: certified at 2-8; bug at 9-11, the first at 9"]
    assert [row[0].text for row in table.cells] == [str(width) for width in range(2, 12)]
    assert [row[2].text for row in table.cells] == ["certified"] * 7 + ["bug"] * 3
    assert all(row[3].text.endswith("x") for row in table.cells)
