"""``engines record``: answers are kept as they came, without paths of this machine and without a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchsuite.__main__ import benchsuite_main
from benchsuite.engines.record import read_recorded, recorded_requests, without_paths
from specdec_plugins.endpoints.named import KEY

pytestmark = pytest.mark.usefixtures("endless_line")

LONG = "é" * 9_000


class KnowsSomePages(BaseHTTPRequestHandler):
    """Knows some pages, refuses chat, and shows its model's path and what authorised a request."""

    asked: list[tuple[str, Any]]

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        """Pages."""
        self.asked.append((self.path, None))
        counted = f"requests_total {len(self.asked)}"
        pages = {"/v1/models": json.dumps({"data": [{"id": "m"}]}), "/metrics": counted, "/health": ""}
        pages["/props"] = json.dumps({"model_path": __file__, "authorisation": self.headers["Authorization"]})
        self._send(200 if self.path in pages else 404, pages.get(self.path, "no such page"))

    def do_POST(self) -> None:
        """Requests."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body))
        chat = "chat" in self.path
        self._send(400 if chat else 200, "no template" if chat else LONG if body.get("stream") else json.dumps(body))

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    asked: list[tuple[str, Any]] = []
    handler = type("Handler", (KnowsSomePages,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}", asked
        found.shutdown()


@pytest.mark.parametrize("name", ["kept.json", "kept.json.gz"])
def test_every_answer_is_kept_as_it_came(
    name: str, server: tuple[str, list[tuple[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = server
    monkeypatch.setenv(KEY, "a-secret-key")
    file = tmp_path / name
    note = f"server=vllm serve {tmp_path} --port 8000"
    assert benchsuite_main(["engines", "record", url, "--into", str(file), "--note", note]) == 0
    recorded = read_recorded(file)
    answers = recorded["answers"]
    assert asked == [("/v1/models", None), *((one.path, one.body) for one in recorded_requests("m"))]
    assert list(answers) == [one.name for one in recorded_requests("m")]
    for request in recorded_requests("m"):
        kept = answers[request.name]
        assert kept["body"] == request.body
        if request.body is None:
            assert kept["status"] == (200 if request.path in ("/v1/models", "/metrics", "/health", "/props") else 404)
        elif "chat" in request.path:
            assert (kept["status"], kept["text"]) == (400, "no template")
        else:
            assert kept["text"] == (LONG if request.body.get("stream") else json.dumps(request.body))
    before, after = (answers[f"metrics-{when}"]["text"].split()[1] for when in ("before", "after"))
    assert int(after) - int(before) == len([one for one in recorded_requests("m") if one.body]) + 1
    assert json.loads(answers["props"]["text"]) == {
        "model_path": f"…/{Path(__file__).name}",
        "authorisation": "Bearer [key]",
    }
    assert recorded["server"] == f"vllm serve …/{tmp_path.name} --port 8000"
    assert str(tmp_path) not in json.dumps(recorded)


def test_an_unused_file_and_a_server_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "used").touch()
    url = "http://127.0.0.1:9"
    assert benchsuite_main(["engines", "record", url, "--into", str(tmp_path / "used")]) == 2
    assert "used exists; name a new file" in capsys.readouterr().err
    assert benchsuite_main(["engines", "record", url, "--into", str(tmp_path / "new"), "--note", "plain"]) == 2
    assert "--note 'plain' has no text; write NAME=TEXT" in capsys.readouterr().err
    assert benchsuite_main(["engines", "record", url, "--into", str(tmp_path / "new")]) == 2
    assert f"{url} cannot be recorded: ConnectError" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["/v1/completions", "http://127.0.0.1:8000/v1/models", "1/2/3", 'handler="/health"'])
def test_an_address_is_no_path(text: str) -> None:
    assert without_paths(text) == text


def test_what_is_below_a_folder_of_this_machine_is_a_path(tmp_path: Path) -> None:
    assert without_paths(f'{{"a":"{tmp_path}/gone/model.gguf"}}') == '{"a":"…/model.gguf"}'
