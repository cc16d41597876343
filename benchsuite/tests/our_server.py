"""A small OpenAI-compatible server over our own engine, with planted bugs on request: what tests ask over HTTP.

One request is decoded at a time. Tokens have the names of the tokenizer's vocabulary, each one of its own.

Example::

    with OurServer(assembly(max_rows=1).engine("ngram", k=4)) as server:
        reply = asyncio.run(one(parse_endpoints(f"spec={server.url}")[0], Ask("Once", 16, logprobs=5)))

From a shell, over SmolLM2: ``python -m benchsuite.tests.our_server --target smollm2-135m --draft ngram --port 8001``
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import torch

from benchsuite.benches.conversations.over_queue import ChatRendering
from specdec.assembly import Assembly
from specdec.catalog import end_tokens
from specdec.engine import Engine
from specdec.errors import SpecdecError
from specdec.logprobs import TokenLogprobs
from specdec.request import Request, SamplingParams

MODEL = "ours"
KEPT = 16
"""Texts whose keys and values a cache of prefixes has, at most."""


@dataclass
class Bugs:
    """Planted bugs.

    ``change``: one token in so many, at places drawn with ``dice``, is sent as the second likeliest one; ``heat``: a
    factor of the temperature; ``no_end``: no finish_reason is sent; ``usage``: tokens added to ``completion_tokens``;
    ``one_chunk``: a stream comes in one piece; ``no_logprobs``: none are sent; ``no_usage``: none in a stream;
    ``strict``: a request to count the tokens of each piece is refused.
    """

    change: int = 0
    heat: float = 1.0
    no_end: bool = False
    usage: int = 0
    one_chunk: bool = False
    no_logprobs: bool = False
    no_usage: bool = False
    strict: bool = False
    dice: random.Random = field(default_factory=lambda: random.Random(0))


class OurServer:
    """Serves ``engine`` at ``url`` while it is open; ``asked`` counts completions. ``engine`` has a tokenizer.

    ``prefix_cache``: the keys and values of earlier texts are kept, and ``usage`` says how many tokens were there.
    """

    def __init__(
        self,
        engine: Engine,
        bugs: Bugs | None = None,
        eos: tuple[int, ...] = (),
        port: int = 0,
        prefix_cache: bool = False,
    ) -> None:
        self.engine, self.bugs, self.eos, self.prefix_cache = engine, bugs or Bugs(), eos, prefix_cache
        self.asked = 0
        self._lock = threading.Lock()
        self._twin: Any = None
        handler = type("Handler", (_Handler,), {"ours": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        """Serve until the process is interrupted."""
        self._server.serve_forever()

    def answer(self, asked: dict[str, Any], chat: bool) -> Iterator[dict[str, Any]]:
        """The objects of an answer, token by token; the last one has the usage."""
        tokenizer: Any = self.engine.tokenizer
        if chat:
            ids = [*ChatRendering(tokenizer).ids(asked["messages"], asked.get("tools") or ())]
        else:
            given = asked["prompt"]
            ids = given if isinstance(given, list) else tokenizer(given)["input_ids"]
        wanted = asked.get("top_logprobs") if chat else asked.get("logprobs")
        wanted = None if wanted is None or self.bugs.no_logprobs else int(wanted)
        most, count = int(asked.get("max_tokens", 16)), 0
        with self._lock:
            self.asked += 1
            cached, before = self._cached(ids)
            if asked.get("echo"):
                yield self._object(chat, "".join(map(tokenizer.decode, ids)), self._echoed(ids, wanted or 0))
            if most:
                for text, content, reason in self._decoded(ids, asked, most, wanted, before):
                    count += 1
                    one = self._object(chat, text, content, None if self.bugs.no_end else reason)
                    so_far = {"prompt_tokens": len(ids), "completion_tokens": count}
                    yield one | ({"usage": so_far} if _each_piece(asked) and not self.bugs.no_usage else {})
            else:
                yield self._object(chat, "", [], "length")
        used: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": count + self.bugs.usage}
        if self.prefix_cache:
            used["prompt_tokens_details"] = {"cached_tokens": cached}
        yield {"object": "text_completion", "model": MODEL, "choices": [], "usage": used}

    def _cached(self, ids: list[int]) -> tuple[int, int | None]:
        """How many tokens of a prompt the text that has most of it left, and which request's it is.

        A text is gone when another one goes on from it, which must have half of it.
        """
        kept, hidden = self.engine.kept, bool(self.engine.queue.taps)
        self.engine.drop([*kept][:-KEPT])
        shared = {number: one.usable(tuple(ids), hidden) for number, one in kept.items()}
        before = max((n for n in kept if 2 * shared[n] >= len(kept[n].tokens)), key=lambda n: shared[n], default=None)
        return (0, None) if before is None else (shared[before], before)

    def _decoded(
        self, ids: list[int], asked: dict[str, Any], most: int, wanted: int | None, before: int | None
    ) -> Iterator[tuple[str, list[dict[str, Any]], str | None]]:
        heat = float(asked.get("temperature", 1.0)) * self.bugs.heat
        params = SamplingParams(
            temperature=heat,
            top_p=float(asked.get("top_p", 1.0)),
            seed=int(asked.get("seed") or 0),
            max_new_tokens=most,
            eos=self.eos,
            stop=tuple(asked.get("stop") or ()),
            logprobs=None if wanted is None else max(wanted, 2),
        )
        tokenizer: Any = self.engine.tokenizer
        number = self.asked  # noise is keyed by it: the same request sampled again is another sample
        request = Request(number, tuple(ids), params, keep=self.prefix_cache, continues=before)
        for place, streamed in enumerate(self.engine.stream([request])):
            # An ended request has left its row by the time its last tokens are read.
            source = self.engine.finished.get(number) or self.engine.rows.live[0]
            chances = source.logprobs[place] if wanted is not None else None
            token, text = streamed.token, streamed.text
            if self.bugs.change and self.bugs.dice.random() < 1 / self.bugs.change:
                # Without log-probabilities there is no second likeliest token to be had: the next id stands in.
                ranked = [one for one, _ in chances.top_raw if one != token] if chances else []
                token = ranked[0] if ranked else token + 1
                text = tokenizer.decode([token])
            ended = {None: None, "eos": "stop", "stop": "stop"}.get(streamed.finish_reason, "length")
            yield text, self._content(token, chances, wanted), ended

    def _content(self, token: int, chances: TokenLogprobs | None, wanted: int | None) -> list[dict[str, Any]]:
        if chances is None or wanted is None:
            return []
        own = dict(chances.top_raw)
        logprob = own.get(token, chances.raw)
        return [self._named(token, logprob, chances.top_raw[:wanted])]

    def _named(self, token: int, logprob: float | None, top: Any) -> dict[str, Any]:
        names: Any = self.engine.tokenizer
        return {
            "token": names.convert_ids_to_tokens(token),
            "id": token,
            "logprob": logprob,
            "top_logprobs": [{"token": names.convert_ids_to_tokens(t), "logprob": v} for t, v in top],
        }

    @torch.inference_mode()
    def _echoed(self, ids: list[int], wanted: int) -> list[dict[str, Any]]:
        """The prompt's tokens with their log-probabilities under the target; the first has none."""
        self._twin = self._twin or self.engine.target.twin()
        chances = self._twin(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        found = [self._named(ids[0], None, ())]
        for place, token in enumerate(ids[1:]):
            top = chances[place].topk(max(wanted, 1))
            ranked = [*zip(top.indices.tolist(), top.values.tolist(), strict=True)][:wanted]
            found.append(self._named(token, float(chances[place, token]), ranked))
        return found

    def _object(
        self, chat: bool, text: str, content: list[dict[str, Any]], reason: str | None = None
    ) -> dict[str, Any]:
        part = {"delta": {"content": text}} if chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": {"content": content} if content else None, "finish_reason": reason}
        return {"object": "text_completion", "model": MODEL, "choices": [choice]}


class _Handler(BaseHTTPRequestHandler):
    ours: OurServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """``/health``, ``/v1/models`` and ``/metrics``, the last as vLLM names its counters."""
        if self.path == "/health":
            self._send(200, b"{}")
        elif self.path == "/v1/models":
            self._send(200, json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode())
        elif self.path == "/metrics":
            counts = self.ours.engine.stats.counts
            names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
            lines = [f'vllm:spec_decode_{name}_total{{model_name="{MODEL}"}} {counts[name]}' for name in names]
            self._send(200, ("\n".join(lines) + "\n").encode(), "text/plain")
        else:
            self._send(404, b'{"error": {"message": "no such path"}}')

    def do_POST(self) -> None:
        """Completions and chat completions."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self._send(404, b'{"error": {"message": "no such path"}}')
            return
        if asked.get("model") != MODEL:
            said = {"error": {"message": f"the model {asked.get('model')!r} does not exist"}}
            self._send(404, json.dumps(said).encode())
            return
        if self.ours.bugs.strict and _each_piece(asked):
            self._send(400, b'{"error": {"message": "unknown field continuous_usage_stats"}}')
            return
        objects = self.ours.answer(asked, self.path.startswith("/v1/chat"))
        try:
            objects = itertools.chain([next(objects)], objects)
        except SpecdecError as error:
            self._send(400, json.dumps({"error": {"message": str(error)}}).encode())
            return
        if not asked.get("stream"):
            self._send(200, json.dumps(_joined(list(objects))).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        parts: Iterator[dict[str, Any]] = objects
        if self.ours.bugs.one_chunk:
            parts = iter([_joined(list(objects))])
        if self.ours.bugs.no_usage:
            parts = (one for one in parts if one["choices"])
        for one in parts:
            self.wfile.write(f"data: {json.dumps(one, ensure_ascii=False)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _each_piece(asked: dict[str, Any]) -> bool:
    """Whether each piece of a stream is to say how many tokens there are so far."""
    return bool(asked.get("stream") and (asked.get("stream_options") or {}).get("continuous_usage_stats"))


def _joined(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The objects of a stream as one answer."""
    choices = [one["choices"][0] for one in objects if one["choices"]]
    text = "".join(one.get("text") or one.get("delta", {}).get("content", "") for one in choices)
    part = {"message": {"content": text}} if "delta" in choices[0] else {"text": text}
    content = [token for one in choices for token in (one["logprobs"] or {"content": []})["content"]]
    reason = choices[-1]["finish_reason"]
    choice = {"index": 0, **part, "logprobs": {"content": content} if content else None, "finish_reason": reason}
    return {**objects[0], "choices": [choice], "usage": objects[-1]["usage"]}


def our_server_main(arguments: list[str] | None = None) -> None:
    """Serve a target of the catalog until the process is interrupted."""
    from specdec import Registry, catalog, devices
    from specdec.choices import BITS
    from specdec.model import ArenaModel

    parser = argparse.ArgumentParser(description="an OpenAI-compatible server over specdec")
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--draft")
    parser.add_argument("--controller", default="fixed")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--prefix-cache", action="store_true")
    given = parser.parse_args(arguments)
    device = devices.pick_device("cpu")
    loaded = catalog.load(
        given.target, device, devices.pick_dtype(given.dtype, device), rows=1, max_length=1024, seed=0
    )
    registry = Registry()
    bits = BITS.get(given.dtype)
    target = ArenaModel(loaded.model, registry.backend("auto"), bits)
    assembly = Assembly(registry, target, loaded.tokenizer, max_rows=1, max_length=1024)
    engine = assembly.engine(given.draft, controller=given.controller, k=given.k if given.draft else 0)
    server = OurServer(engine, eos=end_tokens(loaded.model), port=given.port, prefix_cache=given.prefix_cache)
    print(f"serving {given.target} at {server.url}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    our_server_main()
