"""llama_cpp_prompt_lookup: llama.cpp with proposals looked up in the text."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated

from specdec import PeerEnv, hookimpl
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.llama_cpp import LlamaCpp, Threads


class LlamaCppPromptLookup(LlamaCpp):
    """llama.cpp with llama-cpp-python's prompt lookup. The defaults of ``k`` and ``ngram`` are llama-cpp-python's.

    Source: github.com/abetlen/llama-cpp-python, llama_cpp/llama_speculative.py.
    """

    reference = "llama_cpp"

    def __init__(
        self,
        env: PeerEnv,
        k: Annotated[int, "proposals of a step, num_pred_tokens"] = 10,
        ngram: Annotated[int, "longest run of tokens that is looked up, max_ngram_size"] = 2,
        threads: Threads = None,
    ) -> None:
        lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
        self._k, self._ngram = k, ngram
        # Without logits_all llama-cpp-python has room for the logits of one batch, and writes those of the whole text.
        self._load(env, threads, k + 1, draft_model=lookup(max_ngram_size=ngram, num_pred_tokens=k), logits_all=True)

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Whole numbers of at least 1."""
        require_whole("llama_cpp_prompt_lookup", k=options["k"], ngram=options["ngram"])
        super().check_options(threads=options["threads"])

    def described(self) -> str:
        """As ``llama_cpp``, with the lookup's options."""
        return f"{super().described()}; prompt lookup k={self._k}, ngram={self._ngram}"


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``llama_cpp_prompt_lookup``."""
    register("llama_cpp_prompt_lookup", LlamaCppPromptLookup)
