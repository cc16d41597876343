"""One address, several servers: each is started by its command when it is asked, and ended before another."""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest
import yaml

from benchsuite.benches.serving.restarts import FAREWELL_S, PATIENCE_S, ServersInTurn, read_commands
from benchsuite.tests.rig import Run
from specdec import SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import KEY, Endpoint

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

port, text = int(sys.argv[1]), sys.argv[2]

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.answer({"data": [{"id": "m"}]})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choice = {"text": text * asked["max_tokens"], "finish_reason": "length"}
        body = {"choices": [choice], "usage": {"completion_tokens": asked["max_tokens"]}}
        if not asked["stream"]:
            return self.answer(body)
        data = f"data: {json.dumps(body)}\\n\\ndata: [DONE]\\n\\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

print("listening", flush=True)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def started_by(tmp_path: Path, port: int) -> dict[str, str]:
    """A server that says a and one that says b, at one address."""
    script = tmp_path / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    return {
        name: shlex.join([sys.executable, str(script), str(port), text])
        for name, text in (("plain", "a"), ("spec", "b"))
    }


@pytest.fixture
def servers(started_by: dict[str, str]) -> Iterator[ServersInTurn]:
    found = ServersInTurn(started_by, patience_s=60)
    yield found
    found.close()


def said(servers: ServersInTurn, endpoint: Endpoint) -> str:
    opened = servers.connect(endpoint)

    async def run() -> str:
        async with opened as client:
            return (await client.complete(Ask("x", 3))).text

    return asyncio.run(run())


@pytest.mark.slow
def test_each_endpoint_is_answered_by_its_own_server(servers: ServersInTurn, port: int) -> None:
    plain, spec = (Endpoint(name, f"http://127.0.0.1:{port}") for name in ("plain", "spec"))
    assert [said(servers, one) for one in (plain, plain, spec, plain)] == ["aaa", "aaa", "bbb", "aaa"]
    assert servers.starts == {"plain": 2, "spec": 1}, "a server that runs is not started again"
    servers.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.slow
def test_a_server_that_ends_at_once_is_refused_with_its_last_words(port: int) -> None:
    command = shlex.join([sys.executable, "-c", "import sys; sys.exit('no such model')"])
    servers = ServersInTurn({"plain": command}, patience_s=60)
    with pytest.raises(SpecdecError, match=r"(?s)ended with 1 .*lines:.no such model"):
        servers.connect(Endpoint("plain", f"http://127.0.0.1:{port}"))


@pytest.mark.slow
def test_a_server_that_was_left_at_the_address_is_not_measured_as_another(servers: ServersInTurn, port: int) -> None:
    plain = Endpoint("plain", f"http://127.0.0.1:{port}")
    servers.connect(plain)
    other = ServersInTurn({"spec": "python -c 'import sys; sys.exit(1)'"}, patience_s=60)
    with pytest.raises(SpecdecError, match=r"answers at http\S+ already, before the server of spec .* it is ready"):
        other.connect(replace(plain, name="spec"))
    assert other.starts == {}


class StillLoading(BaseHTTPRequestHandler):
    """Says that its server is not there yet."""

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        """Whatever the path."""
        self.send_error(503)


def test_a_server_that_loads_at_the_address_is_in_the_way_as_well() -> None:
    with HTTPServer(("127.0.0.1", 0), StillLoading) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        said = refusal("false", server.server_port)
        server.shutdown()
    assert "before the server of plain is started" in said
    assert "(it says server_error: " in said
    assert "HTTP 503" in said


def refusal(command: str, port: int) -> str:
    """What is said of a command that starts no server."""
    with pytest.raises(SpecdecError) as error:
        ServersInTurn({"plain": command}, patience_s=60).connect(Endpoint("plain", f"http://127.0.0.1:{port}"))
    return str(error.value)


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("echo one; echo two >&2; exit 3", ["one", "two"]),
        ("seq 1 20; exit 3", [str(number) for number in range(9, 21)]),
        (r"printf 'a\377b'; exit 3", ["a\ufffdb"]),
        ("exit 3", [""]),
    ],
    ids=["both streams", "twelve of twenty", "no UTF-8", "nothing"],
)
def test_the_last_lines_of_a_server_are_shown_as_it_wrote_them(script: str, last: list[str], port: int) -> None:
    said = refusal(shlex.join(["sh", "-c", script]), port)
    assert "the server of plain ended with 3 after 0 s" in said
    assert said.partition("its last lines:\n")[2].split("\n") == last


def test_a_server_that_could_not_be_started_leaves_no_file_open(port: int) -> None:
    """Though the errors are kept, and with them all that was at hand when they were raised."""
    endpoint, errors = Endpoint("plain", f"http://127.0.0.1:{port}"), []
    for before in (0, psutil.Process().num_fds(), psutil.Process().num_fds()):
        for command in ("false", "no-such-program"):
            with pytest.raises(SpecdecError) as error:
                ServersInTurn({"plain": command}, patience_s=60).connect(endpoint)
            errors.append(error)
        assert not before or psutil.Process().num_fds() == before


LOADS = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

said = [503, 404, 429, 0, 200, 200]

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path == "/v1/models":  # asked for where a health check is not found
            return self.send_error(404)
        status = said.pop(0)
        if status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.slow
def test_a_server_is_waited_for_while_it_loads_and_ends_with_what_it_started(port: int, tmp_path: Path) -> None:
    """It answers, in turn, that it is not there yet, that it has no such path, that it is busy, and nothing at all."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"sleep 1000 > {pipe} & exec {shlex.join([sys.executable, '-c', LOADS, str(port)])}"
    servers = ServersInTurn({"spec": shlex.join(["sh", "-c", script])}, patience_s=60)
    spec = Endpoint("spec", f"http://127.0.0.1:{port}", "m")
    servers.connect(spec)
    servers.connect(spec)
    assert servers.starts == {"spec": 1}
    with pipe.open("rb", buffering=0) as output:
        servers.close()
        servers.close()
        assert select.select([output], [], [], 60)[0], "a process that lives holds the other side"
        assert output.read() == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_page_says_how_long_a_server_may_take_to_begin_and_to_end() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8").split())
    assert f"(SIGTERM, after {FAREWELL_S:g} seconds SIGKILL, with all that it has started)" in page
    assert f"has passed, within {PATIENCE_S / 60:g} minutes," in page
    assert ServersInTurn({}).patience_s == PATIENCE_S


def test_an_endpoint_without_a_command_is_taken_to_run(port: int) -> None:
    servers = ServersInTurn({"spec": "false"})
    endpoint = Endpoint("plain", f"http://127.0.0.1:{port}")
    assert servers.connect(endpoint).endpoint == endpoint
    assert servers.starts == {}


STATUS = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_error(int(sys.argv[2]))

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("status", "patience"), [(401, 1e6), (403, 1e6), (307, 1e6), (422, 1e6), (503, 1), (404, 1)])
def test_a_server_that_will_never_be_ready_is_refused_at_once_with_its_reason(
    status: int, patience: float, port: int
) -> None:
    """One that is loading is waited for; the reason is said then as well."""
    command = shlex.join([sys.executable, "-c", STATUS, str(port), str(status)])
    servers = ServersInTurn({"spec": command}, patience_s=patience)
    with pytest.raises(SpecdecError, match=rf"spec does not answer \(.*HTTP {status}"):
        servers.connect(Endpoint("spec", f"http://127.0.0.1:{port}", "m"))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_command_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(SpecdecError, match="cannot be run: No such file"):
        ServersInTurn({"plain": "no-such-program"}).connect(Endpoint("plain", f"http://127.0.0.1:{port}"))


ONE = "http://localhost:1"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("- a", "holds a list; expected a mapping"),
        ("plain: [x]", "expected one command for each name"),
        ("plain: [", "expected lines like plain"),
        ("plain: x\nother: y", "unknown endpoint 'other'"),
        ("plain: x", "no command for spec"),
        ("plain: x\nspec: y --key sk-secret-1", "has the API key in it"),
    ],
)
def test_a_wrong_file_of_commands_is_refused(
    text: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-secret-1")
    path = tmp_path / "servers.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecdecError, match=wrong) as error:
        read_commands(path, [Endpoint("plain", ONE), Endpoint("spec", ONE)])
    assert "sk-secret-1" not in str(error.value)


def test_a_file_has_a_command_for_each_name_that_shares_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint with an address of its own may have one or none; a key that is not in its command refuses nothing."""
    path = tmp_path / "servers.yaml"
    path.write_text("plain: serve one\nspec: serve two --key sk-other", encoding="utf-8")
    endpoints = [Endpoint("plain", ONE), Endpoint("spec", ONE), Endpoint("third", "http://localhost:2")]
    expected = {"plain": "serve one", "spec": "serve two --key sk-other"}
    assert read_commands(path, endpoints) == expected
    monkeypatch.setenv(KEY, "sk-secret-1")
    assert read_commands(path, endpoints) == expected
    path.write_text("spec: ' '", encoding="utf-8")
    with pytest.raises(SpecdecError, match="expected one command for each name"):
        read_commands(path, endpoints[1:])
    path.write_text("third: serve", encoding="utf-8")
    assert read_commands(path, endpoints[1:]) == {"third": "serve"}
    with pytest.raises(SpecdecError, match="the endpoints plain, spec have one address, .* no command for plain"):
        read_commands(path, endpoints)


@pytest.mark.slow
def test_two_servers_of_one_address_are_measured_and_compared(
    started_by: dict[str, str], port: int, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "servers.yaml").write_text(yaml.safe_dump(started_by), encoding="utf-8")
    address = f"http://127.0.0.1:{port}"
    few: tuple[str, ...] = (
        "-m",
        "pytest",
        "--pyargs",
        "benchsuite.test_serving",
        "-m",
        "serving",
        "--specdec-max-new-tokens",
        "4",
    )
    few += (
        "--specdec-prompts",
        "2",
        "--specdec-workload",
        "chat",
        "--specdec-endpoint",
        f"plain={address},spec={address}",
    )
    done = run(*few, "--specdec-endpoint-start", str(tmp_path / "servers.yaml"))
    assert "spec: differs, not judged: 4 differences not judged; 0 of 4 texts are plain's" in done.stdout
    assert "\nthe texts of prompts 0, 1, 2, 3 are not plain's\n" in done.stdout
    assert done.returncode == 0, done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("spec  ") and "2/2" in line]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    refused = run(*few)
    assert refused.returncode == 4
    assert "two endpoints have the address" in refused.stderr
