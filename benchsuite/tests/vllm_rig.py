"""vLLM's side of a custom proposer: how its runner keeps a batch and calls ``propose``; proposers written for it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

LEFT_OVER = 7
"""What vLLM's buffer holds behind a row's text: drafts of earlier steps and texts of earlier rows. Nobody reads it."""


def vllm_config(k: int, rows: int, length: int, vocabulary: int, additional: Mapping[str, object]) -> Any:
    """The parts of vLLM's ``VllmConfig`` that a proposer on the host reads, as vLLM fills them."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(method="custom_class", num_speculative_tokens=k),
        model_config=SimpleNamespace(max_model_len=length, get_vocab_size=lambda: vocabulary),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        additional_config=dict(additional),
    )


class VllmRunner:
    """A batch as vLLM's ``InputBatch`` keeps it, and a step's call of ``propose`` as its runner makes it.

    Source: ``_bookkeeping_sync`` and ``propose_draft_token_ids`` in vLLM's vllm/v1/worker/gpu_model_runner.py
    (000fc94b), and ``InputBatch.condense``: the last row takes the place of one that left.
    """

    def __init__(self, proposer: Any, rows: int, length: int) -> None:
        self.proposer, self.names = proposer, list[int]()
        self.token_ids_cpu = np.full((rows, length), LEFT_OVER, dtype=np.int32)
        self.num_tokens_no_spec = np.zeros(rows, dtype=np.int32)
        if hasattr(proposer, "load_model"):
            proposer.load_model(object())

    def add(self, name: int, tokens: Sequence[int]) -> None:
        """A request enters, new or back from preemption, with its tokens so far."""
        row = len(self.names)
        self.names.append(name)
        self.token_ids_cpu[row, : len(tokens)] = tokens
        self.num_tokens_no_spec[row] = len(tokens)

    def remove(self, name: int) -> None:
        """A request leaves; the last row takes its place."""
        row, last = self.names.index(name), len(self.names) - 1
        self.swap(row, last)
        self.names.pop()

    def swap(self, one: int, other: int) -> None:
        """Two rows change places, as an attention backend may ask."""
        self.names[one], self.names[other] = self.names[other], self.names[one]
        for array in (self.token_ids_cpu, self.num_tokens_no_spec):
            array[[one, other]] = array[[other, one]]

    def step(self, sampled: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """Book each request's sampled tokens, none while its prompt is read, and ask for proposals, by request."""
        tokens = [list(sampled.get(name, ())) for name in self.names]
        for row, new in enumerate(tokens):
            start = self.num_tokens_no_spec[row]
            self.token_ids_cpu[row, start : start + len(new)] = new
            self.num_tokens_no_spec[row] = start + len(new)
        proposed = self.proposer.propose(tokens, self.num_tokens_no_spec, self.token_ids_cpu, slot_mappings=None)
        assert isinstance(proposed, list)
        assert all(type(token) is int for ids in proposed for token in ids)
        for row, ids in enumerate(proposed):
            start = self.num_tokens_no_spec[row]
            self.token_ids_cpu[row, start : start + len(ids)] = ids
        return dict(zip(self.names, proposed, strict=True))


class TheirLookup:
    """A third party's proposer: what followed the latest earlier occurrence of a text's last token."""

    def __init__(self, vllm_config: Any) -> None:
        self.k = vllm_config.speculative_config.num_speculative_tokens
        self.longest = vllm_config.model_config.max_model_len

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """vLLM's interface."""
        return [
            self._after(token_ids_cpu[row, : num_tokens_no_spec[row]].tolist()) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def _after(self, text: list[int]) -> list[int]:
        earlier = [place for place, token in enumerate(text[:-1]) if token == text[-1]]
        return text[earlier[-1] + 1 :][: min(self.k, self.longest - len(text))] if earlier else []


class TheirMemory(TheirLookup):
    """A proposer that learns: what last followed a token, in any text that it was shown."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.followers: dict[int, int] = {}

    def _after(self, text: list[int]) -> list[int]:
        self.followers.update(itertools.pairwise(text))
        ids, token = list[int](), text[-1]
        while len(ids) < self.k and token in self.followers:
            token = self.followers[token]
            ids.append(token)
        return ids


class Witness(TheirLookup):
    """Notes each call, and proposes as ``TheirLookup``."""

    calls: ClassVar[list[list[tuple[list[int], list[int]]]]] = []
    """For each call and row what was sampled, and the whole text."""
    arrays: ClassVar[list[Any]] = []

    def propose(
        self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = 0
    ) -> Any:
        """vLLM's interface."""
        assert slot_mappings is None
        texts = [token_ids_cpu[row, :length].tolist() for row, length in enumerate(num_tokens_no_spec)]
        self.calls.append(list(zip(sampled_token_ids, texts, strict=False)))
        self.arrays.append((num_tokens_no_spec, token_ids_cpu))
        return super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings)


class NoPropose:
    """Lacks the one method that is needed."""

    def __init__(self, vllm_config: Any) -> None: ...


class Breaks(TheirLookup):
    """Raises where it proposes."""

    def propose(self, *arguments: Any, **named: Any) -> Any:
        """vLLM's interface."""
        raise KeyError("lost")


class Writes(TheirLookup):
    """Writes into the buffer that vLLM lends it."""

    def propose(
        self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = 0
    ) -> Any:
        """vLLM's interface."""
        token_ids_cpu[0, 0] = 1


class ReadsTheDraftModel(TheirLookup):
    """Needs a model that a proposer on the host does not have."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.hidden = vllm_config.speculative_config.draft_model_config.get_hidden_size()


class ReadsTheTarget(TheirLookup):
    """Needs the target's weights."""

    def load_model(self, model: Any) -> None:
        """vLLM's interface."""
        self.embedding = model.get_input_embeddings()


class Copes(TheirLookup):
    """Asks whether an attribute is there, as code for several versions of vLLM does."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        assert not hasattr(vllm_config, "cache_config")
        assert getattr(vllm_config.speculative_config, "disable_by_batch_size", 8) == 8
        assert vllm_config.model_config.get_vocab_size() > 0
        self.own = vllm_config.additional_config["mine"]
        self.least = vllm_config.speculative_config.prompt_lookup_min


class Answers(TheirLookup):
    """Returns what a test tells it to, in place of a list for each row."""

    answer: ClassVar[Any] = None

    def propose(self, *arguments: Any, **named: Any) -> Any:
        """vLLM's interface."""
        return self.answer


not_a_class = 3
