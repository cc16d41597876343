"""What a running server answers to the questions that this project reads, kept as files.

Requests and files have one name. Each server is asked everything, also in words of others: what it refuses is
kept too.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchsuite.machine import provenance
from benchsuite.machine.files import strict_json, write_file
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.client import NEUTRAL
from specdec_plugins.endpoints.named import Endpoint

INDEX = "recording.json"

LARGE = 8_000
"""Bytes of an answer from which on its file is compressed."""

PAGES = ("/health", "/version", "/v1/models", "/props", "/slots", "/server_info")
"""Pages of settings; a server has some of them."""

REPEATED = "red green blue one two three four five six seven eight nine ten eleven twelve, and again:\n" * 4
"""A prompt that every lookup proposes for, also one that needs 24 equal tokens."""

ENDS = "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n"
"""A prompt after which the embedded model ends by itself."""

GREEDY: Mapping[str, Any] = MappingProxyType({"temperature": 0.0, **NEUTRAL})

STREAMED: Mapping[str, Any] = MappingProxyType(
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
)


@dataclass(frozen=True)
class RecordedRequest:
    """A request: its name, its path, its body (None: a page is asked for)."""

    name: str
    path: str
    body: Mapping[str, Any] | None = None


def recorded_requests(model: str) -> Iterator[RecordedRequest]:
    """Every request of a recording, in its order: pages of counters stand before and after all others."""
    yield from (RecordedRequest(page.strip("/").replace("/", "-"), page) for page in PAGES)
    yield RecordedRequest("metrics-before", "/metrics")
    for kind, asked in _bodies().items():
        for how, more in _asked_as(kind).items():
            path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
            yield RecordedRequest(f"{kind}-{how}", path, {"model": model, **asked, **more})
    yield RecordedRequest("metrics-after", "/metrics")


def _bodies() -> dict[str, dict[str, Any]]:
    text = {"prompt": REPEATED, "max_tokens": 32, **GREEDY}
    chat = {"messages": [{"role": "user", "content": REPEATED}], "max_tokens": 32, **GREEDY}
    sampled = text | {"temperature": 1.0, "seed": 7}
    return {"text": text, "chat": chat, "ends": text | {"prompt": ENDS}, "sampled": sampled, "echo": text}


def _asked_as(kind: str) -> dict[str, dict[str, Any]]:
    """The ways in which a body is asked for."""
    named = {"logprobs": True, "top_logprobs": 3} if kind == "chat" else {"logprobs": 3}
    ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    if kind == "echo":
        return {"whole": {"echo": True, **named, "max_tokens": 1}}
    whole = {"whole": {}, "logprobs": named, "token-ids": named | ids, "stream": dict(STREAMED)}
    ways = {**whole, "stream-logprobs": {**STREAMED, **named}}
    if kind in ("text", "chat"):
        return ways | {"timings": {"timings_per_token": True, "n_probs": 3}}
    return {name: ways[name] for name in ("whole", "logprobs", "stream-logprobs")} | {"token-ids": ways["token-ids"]}


def record_server(endpoint: Endpoint, folder: Path, notes: Mapping[str, str]) -> Path:
    """Ask a server everything and keep its answers in ``folder``, which is made; return its index.

    ``notes`` go into the index: the command that started the server, the versions of its environment. Paths of this
    machine and the API key are left out of all files. SpecdecError for a folder that exists, and where no server
    answers.
    """
    import httpx

    if folder.exists() and any(folder.iterdir()):
        raise SpecdecError(f"{folder} holds something already; a recording has a folder of its own: name a new one")
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    limits = httpx.Timeout(endpoint.total_s, connect=endpoint.connect_s)
    kept: dict[str, Any] = {}
    with httpx.Client(base_url=endpoint.url, headers=headers, timeout=limits, trust_env=False) as client:
        try:
            model = endpoint.model or client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
            folder.mkdir(parents=True, exist_ok=True)
            for question in recorded_requests(str(model)):
                answer = client.request("GET" if question.body is None else "POST", question.path, json=question.body)
                text = endpoint.hidden(without_paths(answer.text))
                kept[question.name] = {
                    "path": question.path,
                    "body": question.body,
                    "status": answer.status_code,
                    "type": answer.headers.get("content-type", ""),
                    "file": _keep(folder, question.name, text),
                }
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise SpecdecError(
                f"{endpoint.url} cannot be recorded: {type(error).__name__}: {error}; expected an OpenAI-compatible "
                "server that runs, whose /v1/models names a model"
            ) from None
    found = {**provenance.origin(provenance.own_commit()), "command": None, **notes, "asked": kept}
    write_file(folder / INDEX, without_paths(strict_json(found)).encode())
    return folder / INDEX


def _keep(folder: Path, name: str, text: str) -> str:
    """Write an answer; the name of its file."""
    file = f"{name}.{'json' if text.startswith(('{', '[')) else 'txt'}"
    content = text.encode()
    if len(content) > LARGE:
        file, content = f"{file}.gz", gzip.compress(content, mtime=0)
    write_file(folder / file, content)
    return file


def read_recorded(folder: Path, name: str) -> str:
    """The text of one answer of a recording.

    Example: ``json.loads(read_recorded(Path("vllm-ngram"), "text-whole"))``
    """
    file = folder / json.loads((folder / INDEX).read_text(encoding="utf-8"))["asked"][name]["file"]
    content = file.read_bytes()
    return (gzip.decompress(content) if file.suffix == ".gz" else content).decode()


def without_paths(text: str) -> str:
    """The text with the last part alone of each path of this machine, which names its user and folders.

    A path is taken for one of this machine if it, or a folder of it, exists here; an address of a server stays.
    """

    def shortened(found: re.Match[str]) -> str:
        path = Path(found[0])
        here = any(one.exists() for one in (path, *path.parents) if len(one.parts) > 2)
        return f"…/{path.name}" if here else found[0]

    return re.sub(r"(?<![\w.:/…])(?:/[\w.+@-]+){2,}", shortened, text)
