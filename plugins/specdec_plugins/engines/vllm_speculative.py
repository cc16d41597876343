"""vllm_speculative: vLLM offline with its own speculative decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, cast

from specdec import PeerEnv, SpecdecError, hookimpl
from specdec.errors import unknown
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.vllm import Eager, Memory, Vllm
from specdec_plugins.for_vllm import FORGETS, KEY

METHODS = {
    "ngram": False,
    "suffix": False,
    "mtp": False,
    "custom_class": False,
    "draft_model": True,
    "eagle": True,
    "eagle3": True,
    "medusa": True,
}
"""vLLM's methods, and whether each needs the files of a second model."""

OURS = "specdec_plugins.for_vllm.SpecdecProposer"
"""The class by which drafts of ours run in vLLM."""


class VllmSpeculative(Vllm):
    """vLLM with ``speculative_config``: its own lookups, draft models and heads, and drafts of ours (``custom_class``).

    What would learn from earlier requests does not: vLLM's suffix caches none, and a draft of ours forgets them.

    Source: vllm-project/vllm, docs/features/speculative_decoding/README.md.
    """

    reference = "vllm"

    def __init__(
        self,
        env: PeerEnv,
        method: Annotated[str, "ngram, suffix, mtp, custom_class, draft_model, eagle, eagle3, medusa"] = "ngram",
        k: Annotated[int, "proposals of a step, num_speculative_tokens"] = 4,
        ngram: Annotated[int, "longest run of tokens that ngram looks up, prompt_lookup_max"] = 4,
        shortest: Annotated[int, "shortest run that ngram looks up, prompt_lookup_min"] = 2,
        model: Annotated[str | None, "folder or hub id of the draft model or head, where the method has one"] = None,
        draft: Annotated[str | None, "of custom_class: a draft of specdec that looks up, suffix(min_match=3)"] = None,
        memory: Memory = None,
        eager: Eager = False,
    ) -> None:
        self._config: dict[str, Any] = {"method": method, "num_speculative_tokens": k}
        self._config |= {"prompt_lookup_max": ngram, "prompt_lookup_min": shortest} if method == "ngram" else {}
        self._config |= {"suffix_decoding_max_cached_requests": 0} if method == "suffix" else {}
        self._config |= {"model": OURS if draft else model} if draft or model else {}
        self._draft = draft
        # The steps of every request with its last token: counts of the whole engine could not be told apart.
        more: dict[str, Any] = {"speculative_config": dict(self._config), "per_request_spec_decode_metrics": "detailed"}
        self._load(env, memory, eager, **more, **({"additional_config": {KEY: draft, FORGETS: True}} if draft else {}))

    @classmethod
    def check_options(cls, **options: object) -> None:
        """A method that vLLM has, a model or a draft where it needs one, whole numbers."""
        method, model, draft = (options[name] for name in ("method", "model", "draft"))
        if method not in METHODS:
            raise unknown("method of the peer vllm_speculative", str(method), METHODS)
        if method == "custom_class":
            if (model is None) == (draft is None):
                raise SpecdecError(
                    f"draft of the peer vllm_speculative is {draft!r} and model {model!r}; custom_class takes one of "
                    "them: a draft of specdec, or a class as package.module.Class"
                )
        elif draft is not None:
            raise SpecdecError(f"draft of the peer vllm_speculative is {draft!r}; only method=custom_class takes one")
        elif METHODS[str(method)] != (model is not None):
            expected = "the files of one" if METHODS[str(method)] else "none"
            raise SpecdecError(f"model of the peer vllm_speculative is {model!r}; {method} takes {expected}")
        ngram, shortest = options["ngram"], options["shortest"]
        require_whole("vllm_speculative", k=options["k"], ngram=ngram, shortest=shortest)
        if cast(int, shortest) > cast(int, ngram):
            raise SpecdecError(
                f"shortest of the peer vllm_speculative is {shortest} and ngram {ngram}; expected shortest <= ngram"
            )
        super().check_options(memory=options["memory"], eager=options["eager"])

    def described(self) -> str:
        """As ``vllm``, with what speculates."""
        shown = {**self._config, "draft": self._draft} if self._draft else self._config
        return f"{super().described()}; " + ", ".join(f"{name} {value}" for name, value in shown.items())


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``vllm_speculative``."""
    register("vllm_speculative", VllmSpeculative)
