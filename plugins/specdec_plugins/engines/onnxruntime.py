"""onnxruntime: ONNX Runtime GenAI on the target's weights, in float32."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec import DraftCounts, Generation, Peer, PeerEnv, Request, SamplingParams, SpecdecError, hookimpl
from specdec.devices import Stopwatch
from specdec.layers import layer_shapes
from specdec.peer import PeerFactory, absent, refuse_params, require_whole
from specdec_plugins.converted import converted_model

Threads = Annotated[int | None, "threads of the host; none: as many as our engine"]


class OnnxRuntime(Peer):
    """ONNX Runtime GenAI's ``Generator``, which gives one token a call; those of one forward are one emission.

    It computes in float32 on the host. Its own builder converts the model, once for each target. Threads wait for work
    asleep, not in a loop (``allow_spinning``), since they would be busy beside other rows. ``top_k`` is the whole
    vocabulary where a request has none: with 0, version 0.18 draws from beyond top_p.

    Source: microsoft/onnxruntime-genai, docs/SpeculativeDecoding.md (counters), src/python/python.cpp.
    """

    _genai: Any
    _model: Any

    def __init__(self, env: PeerEnv, threads: Threads = None) -> None:
        self._load(env, threads, self._converted(env, env.model()))

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Threads are a whole number, or left to our engine's."""
        if options["threads"] is not None:
            require_whole("onnxruntime", threads=options["threads"])

    @classmethod
    def missing(cls) -> str | None:
        """Whether onnxruntime-genai is installed, and what its builder needs."""
        return absent("onnxruntime_genai", "onnxruntime") or absent("onnx_ir", "onnxruntime")

    def check_params(self, params: SamplingParams) -> None:
        """Refuse what ONNX Runtime lacks."""
        refuse_params("onnxruntime", params, ("temperature", "top_k", "top_p"))

    def _converted(self, env: PeerEnv, model: PreTrainedModel) -> Path:
        """The folder of the model in ONNX; the seconds that it took are booked."""
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # a benchmark reports to nobody
        self._genai = import_module("onnxruntime_genai")
        start = time.perf_counter()
        tool = f"onnxruntime-{self._genai.__version__}"
        folder = converted_model(model, tool, lambda one, made: save_onnx(one, env.tokenizer, made))
        self.set_up_seconds = {"convert": time.perf_counter() - start}
        return folder

    def _load(
        self, env: PeerEnv, threads: int | None, folder: Path, speculative: Mapping[str, int | bool] | None = None
    ) -> None:
        """Load the model; ``speculative``: the options of every generator's speculation, None for plain decoding."""
        self._threads, self._speculative = threads or env.threads, speculative
        self.own_arithmetic = env.dtype != torch.float32  # else differences from plain are judged by logits
        session = {
            "intra_op_num_threads": self._threads,
            "inter_op_num_threads": 1,
            "session.intra_op.allow_spinning": "0",
        }
        start, config = time.perf_counter(), self._genai.Config(str(folder))
        said = json.loads((folder / "genai_config.json").read_text())["model"]
        parts = {part: {"session_options": session} for part in ("decoder", "draft") if part in said}
        # Only the request ends an output, not the model's config.
        config.overlay(json.dumps({"model": {"eos_token_id": [], **parts}}))
        self._vocabulary, self._model = int(said["vocab_size"]), self._genai.Model(config)
        self.set_up_seconds = {**self.set_up_seconds, "load": time.perf_counter() - start}

    def _generator(self, prompt: Sequence[int], params: SamplingParams, seed: int, speculates: bool) -> Any:
        """A generator that has read ``prompt``."""
        if self._model is None:
            raise SpecdecError("this peer of ONNX Runtime is closed; build another")
        options = self._genai.GeneratorParams(self._model)
        found: dict[str, Any] = {"max_length": len(prompt) + params.max_new_tokens, "do_sample": params.temperature > 0}
        if params.temperature > 0:
            found |= {"temperature": float(params.temperature), "top_p": float(params.top_p), "random_seed": seed}
            found["top_k"] = params.top_k or self._vocabulary
        options.set_search_options(**found)
        if speculates and self._speculative is not None:
            options.set_speculative_options(**self._speculative)
        generator = self._genai.Generator(self._model, options)
        generator.append_tokens(np.array([prompt], dtype=np.int32))
        return generator

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one request; its tokens are timed as they are returned."""
        return [self._timed(request) for request in requests]

    def _timed(self, request: Request) -> Generation:
        params, end, watch = request.params, set(request.params.eos), Stopwatch(torch.device("cpu"))
        start = watch.mark()
        generator = self._generator(request.prompt, params, params.seed + request.id, speculates=True)
        tokens: list[int] = []
        arrived: list[tuple[int, int]] = []  # a forward's tokens arrive with it; it keeps all but one for later calls
        work = [(0, 0, 0)]
        while len(tokens) < params.max_new_tokens and (not tokens or tokens[-1] not in end):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            done = self._work(generator, len(tokens))
            if done[0] == work[-1][0] and arrived:
                arrived[-1] = arrived[-1][0], arrived[-1][1] + 1
            else:
                arrived.append((watch.mark(), 1))
                work.append(done)
        seconds = watch.seconds(start, watch.mark())
        emissions = tuple((watch.seconds(start, mark), new) for mark, new in arrived)
        counts = None
        if self._speculative is not None:
            counts = DraftCounts.of_steps(
                (after[1] - before[1], after[2] - before[2]) for before, after in pairwise(work)
            )
        return Generation(tuple(tokens), emissions, seconds, work[-1][0] - work[1][0], counts=counts)

    def _work(self, generator: Any, tokens: int) -> tuple[int, int, int]:
        """Forwards of the target, tokens that were proposed and that were accepted, of a generator so far."""
        if self._speculative is None:
            return tokens, 0, 0  # one forward a token
        said = generator.get_speculative_stats()
        forwards = said["target_forward_passes"] + said["standard_fallback_steps"]
        return forwards, said["draft_tokens_proposed"], said["draft_tokens_accepted"]

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        """Decode again, and read the text up to output token ``index`` in one forward, whose last logits are taken."""
        output = self._timed(request).tokens
        if index >= len(output):
            return None
        read = self._generator((*request.prompt, *output[:index]), SamplingParams(max_new_tokens=1), 0, False)
        return torch.from_numpy(np.array(read.get_logits()[0, -1], dtype=np.float32))

    def conditions(self) -> dict[str, str]:
        """float32 whatever the run's dtype; nothing is compiled."""
        return {"dtype": "float32", "compile": "no"}

    def described(self) -> str:
        """Version, dtype, threads."""
        return f"ONNX Runtime GenAI {self._genai.__version__}: float32, {self._threads} threads that wait asleep"

    def close(self) -> None:
        """Let go of the model and collect it."""
        self._model = None
        gc.collect()


def save_onnx(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model in float32 on the CPU to a folder that ``onnxruntime_genai`` loads, by its own model builder.

    Raises SpecdecError for heads that ONNX Runtime's attention does not take, and with the builder's last words for
    what it refuses.

    Source: microsoft/onnxruntime-genai, src/python/py/models/builder.py.
    """
    sizes = {shape.head_dim for shape in layer_shapes(model.config) if shape.head_dim % 16}
    if sizes:
        raise SpecdecError(
            f"the heads of {type(model).__name__} have {max(sizes)} numbers; ONNX Runtime's attention takes multiples "
            "of 16. Leave out the peers of ONNX Runtime (--specdec-peer)"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="source-") as source:
        model.save_pretrained(source)
        tokenizer.save_pretrained(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", str(folder)]
        done = subprocess.run(
            [*command, "-p", "fp32", "-e", "cpu", "-c", f"{source}/cache"],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SpecdecError(
            f"onnxruntime-genai's builder could not convert {type(model).__name__}: {last}. Leave out the peers of "
            "ONNX Runtime (--specdec-peer)"
        )


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``onnxruntime``."""
    register("onnxruntime", OnnxRuntime)
