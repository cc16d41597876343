"""The command that starts each engine's server on this machine: settings for its cores, and words of speculation."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specdec import smollm2
from specdec.errors import SpecdecError, unknown
from specdec.lists import split_list

EMBEDDED = "smollm2-135m"

OURS = "specdec:"
"""Begins a speculation of vLLM that is a draft of ours: ``specdec:suffix(min_match=3)``."""

OUR_CLASS = "specdec_plugins.for_vllm.SpecdecProposer"

VLLM_METHODS: Mapping[str, bool] = MappingProxyType(
    {
        "ngram": False,
        "suffix": False,
        "mtp": False,
        "draft_model": True,
        "eagle": True,
        "eagle3": True,
        "medusa": True,
        "dflash": True,
    }
)
"""vLLM's methods that one word names, and whether each needs ``--draft-model``; any other is JSON."""

LLAMA_TYPES: Mapping[str, bool] = MappingProxyType(
    {
        "draft-simple": True,
        "draft-eagle3": True,
        "draft-mtp": False,
        "draft-dflash": True,
        "draft-dspark": True,
        "ngram-simple": False,
        "ngram-map-k": False,
        "ngram-map-k4v": False,
        "ngram-mod": False,
        "ngram-cache": False,
    }
)
"""llama.cpp's types, and whether each needs ``--draft-model``."""

LLAMA_K: Mapping[str, str] = MappingProxyType(
    {
        "ngram-simple": "speculative.ngram_simple.size_m",
        "ngram-map-k": "speculative.ngram_map_k.size_m",
        "ngram-map-k4v": "speculative.ngram_map_k4v.size_m",
        "ngram-mod": "speculative.ngram_mod.n_max",
    }
)
"""llama.cpp's parameter of most proposals of a step, by type; of all others ``speculative.draft.n_max``."""

K = 4
"""Proposals of a step where ``--k`` does not say, for vLLM, which has no number of its own."""

NGRAM = (2, 4)
"""Least and most tokens of a lookup of vLLM's ngram: without the least it takes the most for it."""


@dataclass(frozen=True)
class WantedServer:
    """A server that is to be started, in the words of ``engines serve``.

    ``model``: ``smollm2-135m``, a folder or a file as the engine reads it. ``speculation``: the engine's word, several
    for llama.cpp, or JSON for vLLM; empty: none. ``k``: proposals of a step. ``draft_model``: as ``model``. ``threads``
    of the engine; ``max_length``: tokens of a request; ``rows``: requests at once. ``more``: settings in
    the engine's own words, ``name=value``.
    """

    model: str
    port: int
    speculation: str = ""
    k: int | None = None
    draft_model: str | None = None
    threads: int = 1
    max_length: int = 2048
    rows: int = 4
    more: tuple[str, ...] = ()


def own_cores() -> int:
    """The cores that this process may use, which are an engine's threads."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def server_command(engine: str, folder: Path, wanted: WantedServer) -> str:
    """The command of a server in the environment ``folder``, variables included, as a shell would read it.

    SpecdecError for what the engine does not take, with its choices.
    """
    try:
        build = LAUNCHES[engine]
    except KeyError:
        raise unknown("engine with a server", engine, LAUNCHES, "Others run as peers: --specdec-peer.") from None
    variables, command = build(folder, wanted)
    return shlex.join(["env", *(f"{name}={value}" for name, value in variables.items()), *command])


def _vllm(folder: Path, wanted: WantedServer) -> tuple[dict[str, str], list[str]]:
    speculation, draft = _vllm_speculation(wanted)
    model = _folder_of(wanted.model)
    command = [str(folder / "bin" / "vllm"), "serve", model, "--served-model-name", Path(wanted.model).name]
    command += ["--host", "127.0.0.1", "--port", str(wanted.port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(wanted.max_length), "--max-num-seqs", str(wanted.rows)]
    command += ["--enable-prompt-tokens-details"]
    if speculation:
        command += ["--speculative-config", json.dumps(speculation), "--per-request-spec-decode-metrics", "detailed"]
    if draft:
        command += ["--additional-config", json.dumps({"specdec_draft": draft})]
    variables = {
        "OMP_NUM_THREADS": str(wanted.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads of two servers share one core
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
    }
    if openmp := sorted(folder.glob("lib/**/libiomp5.so")):
        variables["LD_PRELOAD"] = str(openmp[0])  # with libgomp a step that may speculate takes ten times as long
    for text in wanted.more:
        name, _, value = text.partition("=")
        command += [f"--{name}", *([value] if value else [])]  # a switch has no value
    return variables, command


def _vllm_speculation(wanted: WantedServer) -> tuple[dict[str, Any] | None, str]:
    """``speculative_config``, and the draft of ours in it."""
    text, model = wanted.speculation, wanted.draft_model
    if text.startswith("{"):
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise SpecdecError(f"--speculation {text!r} is no JSON ({error})") from None
        if wanted.k is not None or model is not None:
            raise SpecdecError("--speculation is JSON: write --k and --draft-model into it")
        return found, ""
    if not text:
        if wanted.k is not None or model is not None:
            raise SpecdecError("--k and --draft-model are of --speculation, which is not given")
        return None, ""
    ours = text.startswith(OURS)
    if not ours and text not in VLLM_METHODS:
        hint = f"A draft of ours is {OURS}suffix; anything else is the JSON of vLLM's speculative_config."
        raise unknown("speculation of vllm", text, VLLM_METHODS, hint)
    if (not ours and VLLM_METHODS[text]) != (model is not None):
        expected = "takes none" if model else "needs one"
        raise SpecdecError(f"--draft-model is {model!r}, and --speculation {text} of vllm {expected}")
    found = {"method": "custom_class" if ours else text, "num_speculative_tokens": wanted.k or K}
    if text == "ngram":
        found |= {"prompt_lookup_min": NGRAM[0], "prompt_lookup_max": NGRAM[1]}
    if ours:
        return found | {"model": OUR_CLASS}, text.removeprefix(OURS)
    return found | ({"model": _folder_of(model)} if model else {}), ""


def _folder_of(model: str) -> str:
    return str(smollm2.folder()) if model == EMBEDDED else model


def _gguf_of(model: str) -> str:
    return str(smollm2.gguf()) if model == EMBEDDED else model


def _llama(folder: Path, wanted: WantedServer) -> tuple[dict[str, str], list[str]]:
    settings = {
        "model.path": _gguf_of(wanted.model),
        "model_alias": [Path(wanted.model).stem],
        "hostnames": ["127.0.0.1"],
        "port": wanted.port,
        "n_ctx": wanted.max_length * wanted.rows,  # of all slots together
        "n_parallel": wanted.rows,
        "endpoint_metrics": True,
        "cpuparams.n_threads": wanted.threads,
        "cpuparams_batch.n_threads": wanted.threads,
        **_llama_speculation(wanted),
    }
    for text in wanted.more:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecdecError(f"--set {text!r} has no value; write NAME=VALUE, as in speculative.draft.n_max=8")
        settings[name] = _json_or_text(value)
    # -P: the room in which the file lies is not on its path.
    command = [
        str(folder / "bin" / "python"),
        "-P",
        str(Path(__file__).with_name("llama_server.py")),
        json.dumps(settings),
    ]
    return {}, command


def _llama_speculation(wanted: WantedServer) -> dict[str, Any]:
    types = split_list(wanted.speculation)
    for text in types:
        if text not in LLAMA_TYPES:
            hint = "Several, separated by commas, are asked in llama.cpp's own order until one proposes."
            raise unknown("speculation of llama_cpp", text, LLAMA_TYPES, hint)
    if any(LLAMA_TYPES[text] for text in types) != (wanted.draft_model is not None):
        expected = "takes none" if wanted.draft_model else "needs one"
        raise SpecdecError(
            f"--draft-model is {wanted.draft_model!r}, and --speculation {wanted.speculation!r} of llama_cpp {expected}"
        )
    found: dict[str, Any] = {"speculative.types": types} if types else {}
    if wanted.draft_model is not None:
        found["speculative.draft.mparams.path"] = _gguf_of(wanted.draft_model)
        found["speculative.draft.cpuparams.n_threads"] = wanted.threads
        found["speculative.draft.cpuparams_batch.n_threads"] = wanted.threads
    if wanted.k is not None:
        if not types:
            raise SpecdecError("--k is of --speculation, which is not given")
        found |= {LLAMA_K.get(text, "speculative.draft.n_max"): wanted.k for text in types}
    return found


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


Launch = Callable[[Path, WantedServer], tuple[dict[str, str], Sequence[str]]]

LAUNCHES: Mapping[str, Launch] = MappingProxyType({"vllm": _vllm, "llama_cpp": _llama})
"""The engines that have a server: its variables, and its command."""
