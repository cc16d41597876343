"""transformers_assisted: transformers' ``generate`` with proposals of a smaller model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from transformers import GenerationConfig

from specdec import PeerEnv, SpecdecError, catalog, hookimpl
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.transformers import Transformers


class TransformersAssisted(Transformers):
    """transformers' assisted generation: a smaller model with the target's token ids proposes ``k`` tokens a step.

    The number of proposals does not change from step to step, and the assistant ends none early for want of confidence,
    as both would by transformers' defaults: K is K here, as in our ``draft_model``.

    Source: huggingface/transformers, generation/candidate_generator.py; Leviathan et al. 2211.17192.
    """

    reference = "transformers"
    _proposes = True

    def __init__(
        self,
        env: PeerEnv,
        model: Annotated[str | None, "the assistant: name, folder, GGUF file or hub id; must be given"] = None,
        k: Annotated[int, "proposals of a step, num_assistant_tokens"] = 4,
    ) -> None:
        assert model is not None  # check_options
        loaded = catalog.load(model, env.device, env.dtype)
        if loaded.tokenizer.get_vocab() != env.tokenizer.get_vocab():
            raise SpecdecError(
                f"the assistant {model!r} has another tokenizer than the target {env.target!r}; give one with the same "
                "token ids, or use transformers without an assistant"
            )
        assistant: Any = loaded.model
        assistant.generation_config = GenerationConfig(
            num_assistant_tokens=k, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )
        self._name, self._k = model, k
        self._load(env, {"assistant_model": assistant})

    @classmethod
    def check_options(cls, **options: object) -> None:
        """An assistant is named; K is a whole number."""
        if not isinstance(options["model"], str):
            raise SpecdecError(
                f"model of the peer transformers_assisted is {options['model']!r}; expected the assistant's name: "
                "transformers_assisted(model=path/to/folder)"
            )
        require_whole("transformers_assisted", k=options["k"])

    def described(self) -> str:
        """As ``transformers``, with the assistant."""
        return f"{super().described()}; assistant {self._name}, k={self._k}"

    def close(self) -> None:
        """Let go of both models."""
        super().close()
        self._own = {}


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``transformers_assisted``."""
    register("transformers_assisted", TransformersAssisted)
