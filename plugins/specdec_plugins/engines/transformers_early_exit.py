"""transformers_early_exit: transformers' ``generate`` with proposals of the target's own first layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from transformers import GenerationConfig

from specdec import PeerEnv, Request, SpecdecError, hookimpl
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.transformers import Transformers


class TransformersEarlyExit(Transformers):
    """transformers' ``generate`` with ``assistant_early_exit``: the target's first ``layers`` layers, with its norm and
    its head, propose ``k`` tokens a step.

    Few of them are accepted unless the model was trained to be left early, as LayerSkip's are.

    Source: huggingface/transformers, generation/candidate_generator.py; LayerSkip, Elhoushi et al. 2404.16710.
    """

    reference = "transformers"
    _proposes = True

    def __init__(
        self,
        env: PeerEnv,
        layers: Annotated[int, "of the target's, that propose, assistant_early_exit"] = 4,
        k: Annotated[int, "proposals of a step, num_assistant_tokens"] = 4,
    ) -> None:
        self._layers, self._k = layers, k
        self._load(env, {"assistant_early_exit": layers})
        most = self._model.config.get_text_config(decoder=True).num_hidden_layers
        if layers >= most:
            self.close()
            raise SpecdecError(
                f"layers of the peer transformers_early_exit is {layers}, and the target {env.target!r} has {most}; "
                f"expected fewer, {most - 1} at most"
            )

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Whole numbers."""
        require_whole("transformers_early_exit", **options)

    def _generate(self, request: Request, **more: Any) -> Any:
        # The target is its own assistant, and other peers share it: its defaults are an assistant's for this call.
        self._opened().generation_config = GenerationConfig(
            num_assistant_tokens=self._k, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )
        try:
            return super()._generate(request, **more)
        finally:
            self._model.generation_config = GenerationConfig()

    def described(self) -> str:
        """As ``transformers``, with what is left early."""
        return f"{super().described()}; early exit after {self._layers} layers, k={self._k}"


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``transformers_early_exit``."""
    register("transformers_early_exit", TransformersEarlyExit)
