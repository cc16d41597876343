"""openvino_prompt_lookup: OpenVINO GenAI with proposals looked up in the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from specdec import PeerEnv, hookimpl
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.openvino import OpenVino, Threads


class OpenVinoPromptLookup(OpenVino):
    """OpenVINO GenAI with ``prompt_lookup``. Its forwards have K proposals always: what is not found is padded.

    Source: openvinotoolkit/openvino.genai, src/cpp/src/prompt_lookup; ``ngram`` 3 and ``k`` 5 are its example's.
    """

    reference = "openvino"

    def __init__(
        self,
        env: PeerEnv,
        k: Annotated[int, "proposals of a step, num_assistant_tokens"] = 5,
        ngram: Annotated[int, "longest run of tokens that is looked up, max_ngram_size"] = 3,
        threads: Threads = None,
    ) -> None:
        self._k, self._ngram = k, ngram
        self._load(env, threads, {"prompt_lookup": True}, {"num_assistant_tokens": k, "max_ngram_size": ngram})

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Whole numbers of at least 1."""
        require_whole("openvino_prompt_lookup", k=options["k"], ngram=options["ngram"])
        super().check_options(threads=options["threads"])

    def described(self) -> str:
        """As ``openvino``, with the lookup's options."""
        return f"{super().described()}; prompt lookup k={self._k}, ngram={self._ngram}"


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``openvino_prompt_lookup``."""
    register("openvino_prompt_lookup", OpenVinoPromptLookup)
