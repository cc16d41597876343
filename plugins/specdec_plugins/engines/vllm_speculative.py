"""vllm_speculative: vLLM offline with its own speculative decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from specdec import PeerEnv, SpecdecError, hookimpl
from specdec.errors import unknown
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.vllm import Eager, Memory, Vllm

METHODS = {
    "ngram": False,
    "suffix": False,
    "mtp": False,
    "draft_model": True,
    "eagle": True,
    "eagle3": True,
    "medusa": True,
}
"""vLLM's methods, and whether each needs the files of a second model."""


class VllmSpeculative(Vllm):
    """vLLM with ``speculative_config``: its own n-gram lookup, draft models and heads.

    Source: vllm-project/vllm, docs/features/speculative_decoding/README.md.
    """

    reference = "vllm"

    def __init__(
        self,
        env: PeerEnv,
        method: Annotated[str, "ngram, suffix, mtp, draft_model, eagle, eagle3 or medusa"] = "ngram",
        k: Annotated[int, "proposals of a step, num_speculative_tokens"] = 4,
        ngram: Annotated[int, "longest run of tokens that ngram looks up, prompt_lookup_max"] = 4,
        model: Annotated[str | None, "folder or hub id of the draft model or head; none for ngram, suffix, mtp"] = None,
        memory: Memory = 0.9,
        eager: Eager = False,
    ) -> None:
        self._config: dict[str, Any] = {"method": method, "num_speculative_tokens": k}
        self._config |= {"prompt_lookup_max": ngram} if method == "ngram" else {}
        self._config |= {"model": model} if model else {}
        self._load(env, memory, eager, self._config)

    @classmethod
    def check_options(cls, **options: object) -> None:
        """A method that vLLM has, a model where it needs one, whole numbers."""
        method, model = options["method"], options["model"]
        if method not in METHODS:
            raise unknown("method of the peer vllm_speculative", str(method), METHODS)
        if METHODS[str(method)] != (model is not None):
            expected = "the files of one" if METHODS[str(method)] else "none"
            raise SpecdecError(f"model of the peer vllm_speculative is {model!r}; {method} takes {expected}")
        require_whole("vllm_speculative", k=options["k"], ngram=options["ngram"])
        super().check_options(memory=options["memory"], eager=options["eager"])

    def described(self) -> str:
        """As ``vllm``, with what speculates."""
        return f"{super().described()}; " + ", ".join(f"{name} {value}" for name, value in self._config.items())


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``vllm_speculative``."""
    register("vllm_speculative", VllmSpeculative)
