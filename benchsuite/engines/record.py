"""What a running server answers to all that this project reads of servers, kept as one file.

Every server gets every request, also those in words of others: a refusal is an answer too.
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
    if kind == "echo":
        return {"whole": {"echo": True, **named, "max_tokens": 1}}
    ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    ways = {"whole": {}, "logprobs": named, "token-ids": named | ids, "stream-logprobs": {**STREAMED, **named}}
    if kind in ("text", "chat"):
        ways |= {"stream": dict(STREAMED), "timings": {"timings_per_token": True, "n_probs": 3}}
    return ways


def record_server(endpoint: Endpoint, file: Path, notes: Mapping[str, str]) -> None:
    """Ask a server everything and write its answers to ``file``, compressed if its name ends in ``.gz``.

    ``notes`` stand beside the answers: the command that started the server, the versions of its environment. Paths of
    this machine and the API key are left out. SpecdecError for a file that exists, and where no server answers.
    """
    import httpx

    if file.exists():
        raise SpecdecError(f"{file} exists; name a new file for a recording")
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    limits = httpx.Timeout(endpoint.total_s, connect=endpoint.connect_s)
    answers: dict[str, Any] = {}
    with httpx.Client(base_url=endpoint.url, headers=headers, timeout=limits, trust_env=False) as client:
        try:
            model = endpoint.model or client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
            for asked in recorded_requests(str(model)):
                got = client.request("GET" if asked.body is None else "POST", asked.path, json=asked.body)
                answers[asked.name] = {
                    "path": asked.path,
                    "body": asked.body,
                    "status": got.status_code,
                    "type": got.headers.get("content-type", ""),
                    "text": without_paths(endpoint.hidden(got.text)),
                }
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise SpecdecError(
                f"{endpoint.url} cannot be recorded: {type(error).__name__}: {error}; expected an OpenAI-compatible "
                "server that runs, whose /v1/models names a model"
            ) from None
    origin = provenance.origin(None)
    said = {name: without_paths(text) for name, text in notes.items()}
    made = {name: origin[name] for name in ("time", "versions")} | said | {"answers": answers}
    content = strict_json(made).encode()
    write_file(file, gzip.compress(content, mtime=0) if file.suffix == ".gz" else content)


def read_recorded(file: Path) -> dict[str, Any]:
    """A recording. Its ``answers`` have the text of each answer by the name of its request.

    Example: ``read_recorded(Path("vllm-ngram.json.gz"))["answers"]["text-whole"]["text"]``
    """
    content = file.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
    return found


def without_paths(text: str) -> str:
    """The text with the last part alone of each path of this machine, which names its user and folders.

    A path is taken for one of this machine if it, or a folder of it, exists here; an address of a server stays.
    """

    def shortened(found: re.Match[str]) -> str:
        path = Path(found[0])
        here = any(one.exists() for one in (path, *path.parents) if len(one.parts) > 2)
        return f"…/{path.name}" if here else found[0]

    return re.sub(r"(?<![\w.:/…])(?:/[\w.+@-]+){2,}", shortened, text)
