"""Servers that accept as they are told to, and as they are not: each fault is a class, named after what it does."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from benchsuite.judge.acceptance_check import off_by, planted_schedules
from specdec.draft_counts import DraftCounts
from specdec_plugins.endpoints.server_metrics import Speculation, write_body, write_page
from specdec_plugins.schedule import Schedule


class SyntheticServer:
    """Accepts by a schedule, and counts as vLLM does.

    ``words``: how it counts: ``positions`` and ``total`` on its page, ``steps`` in each answer. A step that the end of
    the text leaves less room than K has fewer proposals where ``cut``, as our engine's; vLLM's have all of them.
    """

    def __init__(self, asked: Schedule, seed: int = 0, words: str = "positions", cut: bool = False) -> None:
        self.asked, self.words, self.cut = asked, words, cut
        self.dice = random.Random(seed)
        self.steps: list[tuple[int, int]] = []
        self._reached = self.schedule.reached

    @property
    def schedule(self) -> Schedule:
        """What it does. Faults are here."""
        return self.asked

    def accepted(self) -> int:
        """Proposals that a step accepts."""
        draw = self.dice.random()
        return sum(draw < reached for reached in self._reached)

    def take(self, steps: int) -> DraftCounts:
        """The counts of so many steps, without an end of a text."""
        k = len(self.asked.rates)
        counts = DraftCounts.of_steps((k, self.accepted()) for _ in range(steps))
        return counts if self.words != "total" else DraftCounts(counts.drafts, counts.proposed, counts.accepted)

    def answer(self, tokens: int) -> list[tuple[int, int]]:
        """The proposals and accepted proposals of each step of an answer, which are counted."""
        found, emitted, k = list[tuple[int, int]](), 1, len(self.asked.rates)
        while emitted < tokens:
            room = min(k, tokens - emitted - 1) if self.cut else k
            found.append((room, min(room, self.accepted())))
            emitted += 1 + found[-1][1]
        self.steps += found
        return found

    def page(self) -> str:
        """``/metrics``."""
        counts = DraftCounts.of_steps(self.steps)
        places = counts.accepted_by_position if self.words == "positions" else ()
        said = Speculation("vllm page", "since start", counts.drafts, counts.proposed, counts.accepted, places)
        return write_page(said)

    def body(self, steps: list[tuple[int, int]]) -> dict[str, Any]:
        """What an answer says of its own steps."""
        counts = DraftCounts.of_steps(steps)
        proposed, accepted = (tuple(step[which] for step in steps if step[0]) for which in (0, 1))
        said = Speculation(
            "vllm body",
            "request",
            counts.drafts,
            counts.proposed,
            counts.accepted,
            proposed_by_step=proposed,
            accepted_by_step=accepted,
        )
        return write_body(said) if self.words == "steps" else {}


class APositionLate(SyntheticServer):
    """Reads the rate of a position one place before it."""

    @property
    def schedule(self) -> Schedule:
        """See the class."""
        return planted_schedules(self.asked)["a position too late"]


class APositionEarly(SyntheticServer):
    """Reads the rate of a position one place behind it."""

    @property
    def schedule(self) -> Schedule:
        """See the class."""
        return planted_schedules(self.asked)["a position too early"]


class LongerMean(SyntheticServer):
    """Emits 4 % more tokens a step."""

    share = 0.04

    @property
    def schedule(self) -> Schedule:
        """See the class."""
        found = off_by(self.asked, self.share)
        assert found is not None
        return found


class ShorterMean(LongerMean):
    """Emits 4 % fewer tokens a step."""

    share = -0.04


class IndependentDraws(SyntheticServer):
    """Draws each position with one rate, so that the mean is right and its variance is not the least."""

    @property
    def schedule(self) -> Schedule:
        """See the class."""
        return planted_schedules(self.asked)["independent draws of this mean"]


class _SyntheticPages(BaseHTTPRequestHandler):
    server_of: SyntheticServer

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        """Pages."""
        self._send(self.server_of.page() if self.path == "/metrics" else json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self) -> None:
        """Answers."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = asked["max_tokens"]
        steps = self.server_of.answer(tokens)
        choice = {"index": 0, "text": " a" * tokens, "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
        self._send(json.dumps({"choices": [choice], "usage": usage, **self.server_of.body(steps)}))

    def _send(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def synthetic_url(server: SyntheticServer) -> Iterator[str]:
    """The address at which a server answers while this is open."""
    handler = type("Pages", (_SyntheticPages,), {"server_of": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
