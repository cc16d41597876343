"""openvino: OpenVINO GenAI on the target's weights, in float32."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import count
from typing import Annotated, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec import DraftCounts, Generation, Peer, PeerEnv, Request, SamplingParams, SpecdecError, hookimpl
from specdec.devices import Stopwatch
from specdec.peer import PeerFactory, absent, refuse_params, require_whole
from specdec_plugins.converted import converted_model
from specdec_plugins.openvino_ir import save_ir

Threads = Annotated[int | None, "threads of the host; none: as many as our engine"]


class OpenVino(Peer):
    """OpenVINO GenAI's ``ContinuousBatchingPipeline``, which is stepped here, so that tokens are timed as they arrive.

    It computes in float32 on the host, cache included, with weights as they are: no activation is quantised, as it
    would be by default. The model is converted once for each target (``openvino_ir``). Prefix caching is off. It gives
    no logits, so that its tokens are compared with plain's and not judged.

    Source: openvinotoolkit/openvino.genai, src/python/py_continuous_batching_pipeline.cpp.
    """

    batches = own_arithmetic = True

    def __init__(self, env: PeerEnv, threads: Threads = None) -> None:
        self._load(env, threads)

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Threads are a whole number, or left to our engine's."""
        if options["threads"] is not None:
            require_whole("openvino", threads=options["threads"])

    @classmethod
    def missing(cls) -> str | None:
        """Whether openvino-genai is installed."""
        return absent("openvino_genai", "openvino")

    def check_params(self, params: SamplingParams) -> None:
        """Refuse what OpenVINO lacks, or does in another order than our engine."""
        refuse_params("openvino", params, ("temperature", "top_k", "top_p"))
        if params.temperature > 0 and params.top_k and params.top_p < 1:
            raise SpecdecError(
                "OpenVINO GenAI applies top_p before top_k, our engine after: with both they draw from different "
                "distributions. Leave out one of them, or the peer (--specdec-peer)"
            )

    def _load(
        self,
        env: PeerEnv,
        threads: int | None,
        given: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        draft: PreTrainedModel | None = None,
    ) -> None:
        """Load the model; ``given``: more of the pipeline's properties; ``config``: of every generation's config."""
        self._genai: Any = import_module("openvino_genai")
        self._openvino: Any = import_module("openvino")
        self._config, self._threads = dict(config or {}), threads or env.threads
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = env.max_rows
        scheduler.max_num_batched_tokens = env.max_rows * env.max_length  # every prompt is read in one forward
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "INFERENCE_NUM_THREADS": self._threads,
            "ENABLE_CPU_PINNING": False,  # pinned threads would wait for a processor beside other rows
        }
        tool = f"openvino-{self._openvino.__version__.partition('-')[0]}"
        start = time.perf_counter()
        folders = [
            str(converted_model(one, tool, lambda model, folder: save_ir(model, env.tokenizer, folder)))
            for one in (env.model(), draft)
            if one is not None
        ]
        converted = time.perf_counter()
        more = dict(given or {})
        if draft is not None:
            more["draft_model"] = self._genai.draft_model(folders[1], "CPU", **properties)
        self._pipeline: Any = self._genai.ContinuousBatchingPipeline(
            folders[0], scheduler, "CPU", {**properties, **more}
        )
        self.set_up_seconds = {"convert": converted - start, "load": time.perf_counter() - converted}
        self._names = count()

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode all requests at once, step by step; the tokens of one step are one emission of their request."""
        if self._pipeline is None:
            raise SpecdecError("this peer of OpenVINO is closed; build another")
        watch, tensor = Stopwatch(torch.device("cpu")), self._openvino.Tensor  # a step returns tokens on the host
        prompts = [np.array([request.prompt], dtype=np.int64) for request in requests]
        configs = [self._params(request) for request in requests]
        start = watch.mark()
        handles = [
            self._pipeline.add_request(next(self._names), tensor(prompt), config)
            for prompt, config in zip(prompts, configs, strict=True)
        ]
        steps: list[list[tuple[int, list[int]]]] = [[] for _ in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            mark = watch.mark()
            for handle, found in zip(handles, steps, strict=True):
                new: list[int] = []
                while handle.can_read():
                    new += [token for output in handle.read().values() for token in output.generated_ids]
                if new:
                    found.append((mark, new))
        return [
            self._made(request, [(watch.seconds(start, mark), new) for mark, new in found])
            for request, found in zip(requests, steps, strict=True)
        ]

    def _made(self, request: Request, steps: Sequence[tuple[float, list[int]]]) -> Generation:
        """The generation of a request, of whose tokens each step gave some."""
        tokens = tuple(token for _, new in steps for token in new)
        emissions = tuple((at, len(new)) for at, new in steps)
        seconds = steps[-1][0] if steps else 0.0
        counts = self._counts(request, [len(new) for _, new in steps])
        return Generation(tokens, emissions, seconds, max(len(steps) - 1, 0), counts=counts)

    def _counts(self, request: Request, emitted: Sequence[int]) -> DraftCounts | None:
        """What follows of proposals from the numbers of tokens that the steps of a request emitted; None: nothing."""
        return None

    def _params(self, request: Request) -> Any:
        params, config = request.params, self._genai.GenerationConfig()
        config.max_new_tokens = params.max_new_tokens
        config.ignore_eos = not params.eos  # only the request ends an output, not the model's config
        if params.eos:  # with ignore_eos stop_token_ids would be ignored too
            config.eos_token_id, config.stop_token_ids = params.eos[0], set(params.eos)
        config.do_sample = params.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p = params.temperature, params.top_p
            config.rng_seed = params.seed + request.id
            if params.top_k:
                config.top_k = params.top_k
        for name, value in self._config.items():
            setattr(config, name, value)
        return config

    def conditions(self) -> dict[str, str]:
        """float32 whatever the run's dtype; as ``compile``, that OpenVINO compiles the whole model."""
        return {"dtype": "float32", "compile": "by OpenVINO"}

    def described(self) -> str:
        """Version, dtype, threads."""
        return (
            f"OpenVINO GenAI {self._genai.__version__}: float32, cache in float32, {self._threads} threads, no prefix "
            "caching"
        )

    def close(self) -> None:
        """Let go of the pipeline and collect it."""
        self._pipeline = None
        gc.collect()


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``openvino``."""
    register("openvino", OpenVino)
