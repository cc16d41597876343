"""transformers_candidates: a candidate generator of transformers proposes here."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window, catalog, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.guests import count_of, window_of_tensors

HOME, LOOKUP = "transformers.generation.candidate_generator", "PromptLookupCandidateGenerator"


class TransformersCandidates(Draft):
    """Runs a ``CandidateGenerator`` of transformers, one for each request: prompt lookup, an assistant, or your own.

    ``settings`` are arguments of its constructor and fields of its ``GenerationConfig``. By default it proposes K
    tokens a step, and ends none early. It is asked for one row at a time, as transformers asks it; where it was not
    asked in a step, it is built anew. Its logits of candidates are not used: they are certain (q is None). The
    ``scores`` that ``update_candidate_strategy`` gets have no vocabulary. One that needs the target's outputs
    (``requires_model_outputs``) is refused.

    Source: huggingface/transformers, generation/candidate_generator.py and _assisted_decoding in generation/utils.py.

    Example: ``transformers_candidates(AssistedCandidateGenerator, model=path/to/draft)``
    """

    def __init__(
        self,
        env: Env,
        generator: Annotated[
            str, "a class of transformers, or package.module:Class"
        ] = "PromptLookupCandidateGenerator",
        model: Annotated[str | None, "the assistant: name, folder, GGUF file or hub id"] = None,
        settings: Annotated[str, "JSON: the constructor's arguments, fields of GenerationConfig"] = "{}",
    ) -> None:
        module, _, name = generator.rpartition(":")
        self._class: Any = getattr(import_module(module or HOME), name, None)
        if self._class is None or getattr(self._class, "requires_model_outputs", True):
            raise SpecdecError(
                f"transformers_candidates was given generator={generator!r}; expected a CandidateGenerator of "
                f"{module or HOME} that does not need the target's outputs, which only transformers' own loop has"
            )
        self._takes = inspect.signature(self._class).parameters
        own = json.loads(settings)
        k, fields = env.max_window - 1, {key: value for key, value in own.items() if key not in self._takes}
        config = GenerationConfig(
            **{
                "max_length": env.max_length,
                "min_length": 0,
                "num_assistant_tokens": k,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
                **fields,
            }
        )
        self._given: dict[str, Any] = {
            "generation_config": config,
            "max_length": env.max_length,
            "num_output_tokens": max(k, 1),
            "target_tokenizer": env.tokenizer,
            **{key: value for key, value in own.items() if key in self._takes},
        }
        if model is not None:
            loaded = catalog.load(model, env.target.device, env.target.dtype)
            loaded.model.generation_config = config
            self._given |= {"assistant_model": loaded.model, "assistant_tokenizer": loaded.tokenizer}
            self.weight_bytes = sum(weight.nbytes for weight in loaded.model.parameters())
        self.small_ops, self._forwards, self._steps = model is None, 0, 0
        self._rows: dict[int, tuple[Any, int, int, int]] = {}  # generator, length, candidates and step when asked
        self._require(generator)

    def _require(self, generator: str) -> None:
        of_request = {"input_ids", "inputs_tensor", "model_kwargs"}
        lacks = [
            name
            for name, one in self._takes.items()
            if one.default is one.empty and name not in self._given and name not in of_request
        ]
        if lacks:
            raise SpecdecError(
                f"transformers_candidates cannot build {generator}: nothing is known of {', '.join(lacks)}; "
                "an assistant is given as model=…, other arguments in settings='{…}'"
            )

    def _made(self, text: Tensor) -> Any:
        of_request = {
            "input_ids": text,
            "inputs_tensor": text,
            "model_kwargs": {"attention_mask": torch.ones_like(text)},
        }
        given = self._given | of_request
        return self._class(**{name: given[name] for name in self._takes if name in given})

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """The generator is built when it is first asked."""
        self._rows.pop(row, None)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """Let go of the row's generator."""
        self._rows.pop(row, None)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """The generator goes with its request."""
        if source in self._rows:
            self._rows[row] = self._rows.pop(source)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """A step has passed."""
        self._steps += 1

    def info(self) -> Mapping[str, int]:
        """A forward of the assistant for each candidate."""
        return {"draft_forwards": self._forwards} if self.weight_bytes else {}

    def propose(self, context: Context) -> Window:
        """Each row's candidates, cut to its room."""
        found = [self._candidates(context, row) for row in range(context.rows)]
        return window_of_tensors(context, found, [count_of(tokens) for tokens in found])

    def _candidates(self, context: Context, row: int) -> Tensor:
        length, room = int(context.length_host[row]), max(int(context.max_proposals_host[row]), 0)
        text = context.tokens[row : row + 1, :length].clone()
        if room == 0:
            return text[0, length:]
        generator, before, candidates, step = self._rows.get(row, (None, 0, 0, -2))
        if generator is None or step != self._steps - 1:
            generator = self._made(text)
        else:
            matches = min(length - before - 1, candidates)
            generator.update_candidate_strategy(text, torch.empty(1, candidates + 1, 0), matches)
        found: Tensor = generator.get_candidates(text)[0].to(text.device)[0, length:]
        self._rows[row] = generator, length, len(found), self._steps
        self._forwards += len(found)
        return found[:room]


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``transformers_candidates``."""
    register("transformers_candidates", TransformersCandidates)
