"""llama_cpp: llama.cpp through llama-cpp-python, on the target's GGUF file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import torch

from specdec import Generation, Peer, PeerEnv, Request, SamplingParams, SpecdecError, hookimpl
from specdec.devices import Stopwatch
from specdec.peer import PeerFactory, absent, refuse_params, require_whole

Threads = Annotated[int | None, "threads of the host; none: as many as our engine"]


class LlamaCpp(Peer):
    """llama.cpp decodes from the GGUF file that the target was read from, one token a forward.

    Its kernels multiply by the quantised weights as they are in the file, so that its arithmetic is its own. On a GPU
    all layers are on it, if llama-cpp-python was built for it. Nothing is kept between prompts: the state is reset
    before each.

    Source: github.com/ggml-org/llama.cpp; github.com/abetlen/llama-cpp-python, llama_cpp/llama.py.
    """

    needs_gguf = own_arithmetic = True

    def __init__(self, env: PeerEnv, threads: Threads = None) -> None:
        self._load(env, threads, 0)

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Threads are a whole number, or left to our engine's."""
        if options["threads"] is not None:
            require_whole("llama_cpp", threads=options["threads"])

    @classmethod
    def missing(cls) -> str | None:
        """Whether llama-cpp-python is installed."""
        return absent("llama_cpp", "llama-cpp")

    def check_params(self, params: SamplingParams) -> None:
        """Refuse what llama.cpp lacks, or does in another order than transformers and our engine."""
        refuse_params("llama_cpp", params, ("temperature", "top_k", "top_p", "min_p"))
        if params.temperature not in (0, 1) and (params.top_p != 1 or params.min_p):
            raise SpecdecError(
                f"llama.cpp applies the temperature after top_p and min_p, our engine before: with temperature "
                f"{params.temperature} they draw from different distributions. Leave out top_p and min_p, or the peer"
            )

    def _load(self, env: PeerEnv, threads: int | None, room: int, **more: Any) -> None:
        """Load the model; ``room``: tokens of context beyond the longest request; ``more``: arguments of ``Llama``."""
        self._module: Any = import_module("llama_cpp")
        self._file, self._threads = env.gguf(), threads or env.threads
        start = time.perf_counter()
        self._llama: Any = self._module.Llama(
            model_path=str(self._file),
            n_ctx=env.max_length + room,
            n_threads=self._threads,
            n_threads_batch=self._threads,
            n_gpu_layers=-1 if env.device.type == "cuda" else 0,
            verbose=False,
            **more,
        )
        self.set_up_seconds = {"load": time.perf_counter() - start}
        self._forwards, forward = 0, self._llama.eval

        def counted(tokens: Sequence[int]) -> None:
            self._forwards += 1
            forward(tokens)

        self._llama.eval = counted  # each yields the tokens of one emission, which have no other mark

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one request; the tokens of one forward are one emission."""
        return [self._timed(request) for request in requests]

    def _timed(self, request: Request) -> Generation:
        llama, params, end = self._open(), request.params, set(request.params.eos)
        watch = Stopwatch(torch.device("cpu"))  # a token is on the host when it is yielded
        start = watch.mark()
        llama.reset()
        llama.set_seed(params.seed + request.id)
        tokens: list[int] = []
        arrived: list[tuple[int, int]] = []
        self._forwards = counted = 0
        for token in llama.generate(
            list(request.prompt),
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            temp=params.temperature,
        ):
            tokens.append(int(token))
            together = arrived.pop()[1] if self._forwards == counted else 0
            arrived.append((watch.mark(), together + 1))
            counted = self._forwards
            if token in end or len(tokens) == params.max_new_tokens:
                break
        seconds = watch.seconds(start, watch.mark())
        emissions = tuple((watch.seconds(start, mark), count) for mark, count in arrived)
        return Generation(tuple(tokens), emissions, seconds, counted - 1)

    def _open(self) -> Any:
        if self._llama is None:
            raise SpecdecError("this peer of llama.cpp is closed; build another")
        return self._llama

    def conditions(self) -> dict[str, str]:
        """The format of the weights in the file; nothing is compiled."""
        return {"dtype": f"{self._format()} of llama.cpp", "compile": "no"}

    def _format(self) -> str:
        """The file's format of most weights: ``Q4_1``."""
        import gguf

        said = self._open().metadata.get("general.file_type")
        known = {str(int(kind)): kind.name for kind in gguf.LlamaFileType}
        return known.get(str(said), "unknown format").removeprefix("MOSTLY_").removeprefix("ALL_")

    def described(self) -> str:
        """Version, format, file, threads."""
        return (
            f"llama-cpp-python {self._module.__version__}: {self._format()} weights of {self._file.name}, "
            f"{self._threads} threads"
        )

    def close(self) -> None:
        """Free the model and its context."""
        if self._llama is not None:
            del self._llama.eval  # it refers to this object
            self._llama.close()
        self._llama = None


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``llama_cpp``."""
    register("llama_cpp", LlamaCpp)
