"""A proxy that puts a fault before a server that has none: ``python -m benchsuite.tests.faulty_proxy``.

``changed``: one token in a hundred of an answer is another, whenever its prompt is asked for. ``hotter``: requests
that sample have 1.2 times their temperature. ``nucleus``: they have ``top_p`` 0.95. ``slower``: an answer takes
three times as long.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVERY = 100
"""One token in so many is changed."""

INSTEAD = " the"

SLOWER = 3
"""An answer takes so many times as long."""

FAULTS = ("none", "changed", "hotter", "nucleus", "slower")


class FaultyProxy(ThreadingHTTPServer):
    """Answers as the server at ``url`` does, but for one of ``FAULTS``.

    Example: ``with FaultyProxy(server.url, "hotter") as proxy: ask(proxy.address)``
    """

    daemon_threads = True

    def __init__(self, url: str, fault: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url, self.fault = url.rstrip("/"), fault
        self.changed = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def hold(self, began: float, came: float) -> None:
        """Wait until what ``came`` of a request that ``began`` may be passed on."""
        if self.fault == "slower":
            time.sleep(max(0.0, began + SLOWER * (came - began) - time.monotonic()))

    def asked(self, content: bytes) -> bytes:
        """The request as the server gets it."""
        request: dict[str, Any] = json.loads(content)
        if request.get("temperature"):
            request |= {"temperature": 1.2 * request["temperature"]} if self.fault == "hotter" else {}
            request |= {"top_p": 0.95} if self.fault == "nucleus" else {}
        return json.dumps(request).encode()

    def wrong(self, content: bytes) -> Callable[[int], bool]:
        """Whether the token at a place of the answer to a request is changed."""
        request = json.loads(content)
        prompt = json.dumps(request.get("prompt") or request.get("messages"))
        first = int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % EVERY
        return lambda place: self.fault == "changed" and place % EVERY == first % EVERY


class _Handler(BaseHTTPRequestHandler):
    server: FaultyProxy

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Pass it on."""
        self._answer(urllib.request.Request(self.server.url + self.path), None)

    def do_POST(self) -> None:
        """Pass it on, and its answer, with the fault."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.server.url + self.path, self.server.asked(content), kind)
        self._answer(request, self.server.wrong(content))

    def _answer(self, request: urllib.request.Request, wrong: Callable[[int], bool] | None) -> None:
        began = time.monotonic()
        try:
            found = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            found = error
        with found:
            self.send_response(found.status)
            kind = found.headers.get("Content-Type", "application/json")
            self.send_header("Content-Type", kind)
            if "event-stream" in kind and wrong is not None:
                self.end_headers()
                lines = ((time.monotonic(), line) for line in found)
                # A server that is waited for writes on, so that all of its times are known only at its end.
                for came, line in self._events([*lines] if self.server.fault == "slower" else lines, wrong):
                    self.server.hold(began, came)
                    self.wfile.write(line)
                    self.wfile.flush()
                return
            content = found.read()
            if wrong is not None:
                self.server.hold(began, time.monotonic())
            if wrong is not None and found.status == 200:
                content = json.dumps(self._whole(json.loads(content), wrong)).encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _events(
        self, lines: Iterable[tuple[float, bytes]], wrong: Callable[[int], bool]
    ) -> Iterator[tuple[float, bytes]]:
        """The lines of a stream, and when each came; a piece of text is a token, or the last of several that were
        accepted together."""
        place = 0
        for came, line in lines:
            if not line.startswith(b"data: {"):
                yield came, line
                continue
            event = json.loads(line.removeprefix(b"data: "))
            for choice in event.get("choices") or ():
                holder, key = _text_of(choice)
                if holder.get(key):
                    if wrong(place):
                        holder[key] = INSTEAD
                        self.server.changed += 1
                    place += 1
            yield came, b"data: " + json.dumps(event).encode() + b"\n"

    def _whole(self, body: dict[str, Any], wrong: Callable[[int], bool]) -> dict[str, Any]:
        """An answer in one piece: tokens are those of its log-probabilities, else words."""
        for choice in body.get("choices") or ():
            holder, key = _text_of(choice)
            listed = choice.get("logprobs") or {}
            named = listed.get("content") or ()
            tokens = listed.get("tokens") or [one["token"] for one in named]
            if not tokens or "".join(tokens) != holder.get(key):
                continue
            for place in filter(wrong, range(len(tokens))):
                tokens[place] = INSTEAD
                self.server.changed += 1
                choice.pop("token_ids", None)
                if named:
                    named[place].pop("id", None)  # of the token that was there: llama.cpp's, and vLLM's below
                    named[place] |= {"token": INSTEAD, "bytes": [*INSTEAD.encode()], "logprob": -5.0}
                else:
                    listed["tokens"][place], listed["token_logprobs"][place] = INSTEAD, -5.0
            holder[key] = "".join(tokens)
        return body


def _text_of(choice: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What holds a choice's text, and under which key: of completions, of chat, and of a piece of chat."""
    for name in ("message", "delta"):
        if isinstance(choice.get(name), dict):
            return choice[name], "content"
    return choice, "text"


def faulty_proxy_main() -> None:
    """Put a fault before a server until the process is interrupted."""
    parser = argparse.ArgumentParser(description="a fault before a server")
    parser.add_argument("url")
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    proxy = FaultyProxy(given.url, given.fault, given.port)
    print(f"{given.fault} before {given.url} at {proxy.address}", flush=True)
    proxy.serve_forever()


if __name__ == "__main__":
    faulty_proxy_main()
