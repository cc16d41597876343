"""transformers_prompt_lookup: transformers' ``generate`` with proposals looked up in the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from specdec import PeerEnv, hookimpl
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.transformers import Transformers


class TransformersPromptLookup(Transformers):
    """transformers' ``generate`` with prompt lookup, whose cache is always dynamic. The defaults are transformers'.

    Source: huggingface/transformers, generation/candidate_generator.py; github.com/apoorvumang/prompt-lookup-decoding.
    """

    reference = "transformers"
    _proposes = True

    def __init__(
        self,
        env: PeerEnv,
        k: Annotated[int, "proposals of a step, prompt_lookup_num_tokens"] = 10,
        ngram: Annotated[int, "longest run of tokens that is looked up, max_matching_ngram_size"] = 2,
    ) -> None:
        self._k, self._ngram = k, ngram
        self._load(env, {"prompt_lookup_num_tokens": k, "max_matching_ngram_size": ngram})

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Whole numbers: ``generate`` reads ngram=0 as 2, and meets a wrong k only after its model is loaded."""
        require_whole("transformers_prompt_lookup", **options)

    def described(self) -> str:
        """As ``transformers``, with the lookup's options."""
        return f"{super().described()}; prompt lookup k={self._k}, ngram={self._ngram}"


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``transformers_prompt_lookup``."""
    register("transformers_prompt_lookup", TransformersPromptLookup)
