"""openvino_draft: OpenVINO GenAI with proposals of a smaller model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from specdec import DraftCounts, PeerEnv, Request, SamplingParams, SpecdecError, catalog, hookimpl
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.openvino import OpenVino, Threads


class OpenVinoDraft(OpenVino):
    """OpenVINO GenAI with ``draft_model``: a smaller model with the target's token ids proposes ``k`` tokens a step.

    Source: openvinotoolkit/openvino.genai, src/cpp/src/speculative_decoding; Leviathan et al. 2211.17192.
    """

    reference = "openvino"

    def __init__(
        self,
        env: PeerEnv,
        model: Annotated[str | None, "the draft model: name, folder, GGUF file or hub id; must be given"] = None,
        k: Annotated[int, "proposals of a step, num_assistant_tokens"] = 4,
        threads: Threads = None,
    ) -> None:
        assert model is not None  # check_options
        loaded = catalog.load(model, env.device, env.dtype)
        if loaded.tokenizer.get_vocab() != env.tokenizer.get_vocab():
            raise SpecdecError(
                f"the draft model {model!r} has another tokenizer than the target {env.target!r}; give one with the "
                "same token ids, or use openvino_prompt_lookup, which needs no model"
            )
        self._name, self._k = model, k
        self._load(env, threads, config={"num_assistant_tokens": k}, draft=loaded.model)

    @classmethod
    def check_options(cls, **options: object) -> None:
        """A draft model is named; K is a whole number."""
        if not isinstance(options["model"], str):
            raise SpecdecError(
                f"model of the peer openvino_draft is {options['model']!r}; expected the draft model's name: "
                "openvino_draft(model=path/to/folder)"
            )
        require_whole("openvino_draft", k=options["k"])
        super().check_options(threads=options["threads"])

    def check_params(self, params: SamplingParams) -> None:
        """As ``openvino``; temperatures above 0 are refused: OpenVINO 2026.4 draws others with the same seed."""
        super().check_params(params)
        if params.temperature > 0:
            raise SpecdecError(
                "OpenVINO GenAI with a draft model draws other tokens each time, whatever the seed; decode at "
                "temperature 0, or leave out the peer openvino_draft (--specdec-peer)"
            )

    def _counts(self, request: Request, emitted: Sequence[int]) -> DraftCounts | None:
        """A step emits what was accepted and one more; it has no proposals where one token is left, and in prefill."""
        left, steps = request.params.max_new_tokens, list[int]()
        for new in emitted:
            if left > 1:
                steps.append(new - 1)
            left -= new
        return DraftCounts.of_histogram([steps[1:].count(length) for length in range(self._k + 1)])

    def described(self) -> str:
        """As ``openvino``, with the draft model."""
        return f"{super().described()}; draft model {self._name}, k={self._k}"


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``openvino_draft``."""
    register("openvino_draft", OpenVinoDraft)
