"""Stand-ins for the packages of guests, with the interfaces of those that were met: arctic-inference 0.3.0,
draftretriever 0.1.1 and flashspec 0.3.1. ``recorded/guests`` has answers of the first.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

TokensGiven = Sequence[int] | np.ndarray[Any, Any]


class PassedNode:
    """A node of a suffix tree: how often it was passed, and its children, the most frequent first."""

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, PassedNode] = {}
        self.order: list[int] = []

    def passed(self, token: int) -> PassedNode:
        """The child of a token, passed once more; of equals the order is that of arctic-inference's lists."""
        child = self.children.setdefault(token, PassedNode())
        if child.count == 0:
            self.order.append(token)
        at = self.order.index(token)
        before = [self.children[other].count for other in self.order[:at]]
        if child.count and before and before[-1] <= child.count + 1:
            self.order.insert(before.index(before[-1]), self.order.pop(at))
        child.count += 1
        return child


class ArcticTree:
    """Suffixes of sequences up to a depth, as arctic-inference's ``SuffixTree`` counts them; chains only."""

    def __init__(self, depth: int) -> None:
        self.depth, self.root = depth, PassedNode()
        self.ends: dict[int, list[PassedNode]] = {}

    def extend(self, sequence: int, tokens: TokensGiven) -> None:
        """Append tokens to a sequence."""
        for token in tokens:
            self.root.count += 1
            ends = [*self.ends.get(sequence, []), self.root][-self.depth :]
            self.ends[sequence] = [node.passed(int(token)) for node in ends]

    def speculate(self, context: list[int], most: int, factor: float, offset: float, least: float) -> SimpleNamespace:
        """The best scored path after a suffix of the context."""
        best = SimpleNamespace(token_ids=[], parents=[], probs=[], score=np.float32(0), match_len=0)
        for length in range(1, len(context)):
            node: PassedNode | None = self.root
            for token in context[-length:]:
                node = node.children.get(token) if node else None
            if node is None:
                break
            limit = max(min(most, int(length * factor + offset + 1e-6)), 0)
            tokens, probs, share = list[int](), list[np.float32](), np.float32(1)
            while len(tokens) < limit and node.order:
                token, total = node.order[0], node.count
                node = node.children[token]
                share = share * (np.float32(node.count) / np.float32(total))
                if share < np.float32(least):
                    break
                tokens.append(token)
                probs.append(share)
            score = np.float32(0)
            for share in probs:
                score += share
            if score >= best.score:
                parents = list(range(-1, len(tokens) - 1))
                best = SimpleNamespace(token_ids=tokens, parents=parents, probs=probs, score=score, match_len=length)
        return best


class SuffixDecodingCache:
    """arctic-inference 0.3.0's class of this name, in Python; chains only."""

    def __init__(self, max_tree_depth: int = 64, max_cached_requests: int = -1) -> None:
        self._depth, self._most = max_tree_depth, max_cached_requests
        self._all = ArcticTree(max_tree_depth)
        self._own: dict[Hashable, ArcticTree] = {}
        self._numbers: dict[Hashable, int] = {}

    def start_request(self, req_id: Hashable, prompt_token_ids: TokensGiven) -> None:
        """A request begins with its prompt."""
        if req_id in self._own:
            raise ValueError(f"Request '{req_id}' is already active")
        self._own[req_id] = ArcticTree(self._depth)
        self._own[req_id].extend(0, _checked(prompt_token_ids))
        if self._most:
            self._numbers[req_id] = len(self._numbers)

    def stop_request(self, req_id: Hashable) -> None:
        """A request ends; what it answered stays in the common tree."""
        if req_id not in self._own:
            raise ValueError(f"Request '{req_id}' is not active")
        del self._own[req_id]

    def add_active_response(self, req_id: Hashable, token_ids: TokensGiven) -> None:
        """A request's answer goes on."""
        if req_id not in self._own:
            raise ValueError(f"Request '{req_id}' is not active")
        self._own[req_id].extend(0, _checked(token_ids))
        if req_id in self._numbers:
            self._all.extend(self._numbers[req_id], token_ids)

    def speculate(
        self,
        req_id: Hashable,
        context: TokensGiven,
        max_spec_tokens: int | None = None,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        use_tree_spec: bool = False,
    ) -> SimpleNamespace:
        """The better answer of the request's own tree and the common one."""
        if req_id not in self._own:
            raise ValueError(f"Request '{req_id}' is not active")
        assert max_spec_tokens is not None  # the package reads an attribute that it does not have
        text = [int(token) for token in _checked(context)][-self._depth :]
        asked = (text, max_spec_tokens, max_spec_factor, max_spec_offset, min_token_prob)
        own, common = self._own[req_id].speculate(*asked), self._all.speculate(*asked)
        return own if own.score >= common.score else common


def _checked(tokens: TokensGiven) -> TokensGiven:
    if isinstance(tokens, np.ndarray) and not (
        tokens.ndim == 1 and tokens.dtype == np.int32 and tokens.data.contiguous
    ):
        raise ValueError(f"ndarray input must be contiguous int32 of one dimension, got {tokens.dtype.name}")
    return tokens


class StoreWriter:
    """draftretriever 0.1.1's ``Writer``; its file is JSON here."""

    def __init__(self, file_path: str, vocab_size: int | None = None) -> None:
        self._file, self._after = Path(file_path), defaultdict[str, Counter[int]](Counter)

    def add_entry(self, py_text: list[int]) -> None:
        """Count what follows each pair of tokens."""
        for one, two, after in zip(py_text, py_text[1:], py_text[2:], strict=False):
            self._after[f"{one} {two}"][after] += 1

    def finalize(self) -> None:
        """Write the file."""
        self._file.write_text(json.dumps(self._after))


class StoreReader:
    """draftretriever 0.1.1's ``Reader``, where the likeliest path is drawn. It ends the process by an abort
    where this raises SystemExit."""

    def __init__(self, index_file_path: str) -> None:
        self._after: dict[str, dict[str, int]] = json.loads(Path(index_file_path).read_text())

    def search(
        self, py_substring: list[int], k: int | None = None, choices: int | None = None, long: int | None = None
    ) -> tuple[list[list[int]], ...]:
        """The paths of a tree, filled up with -2, and four lists that a step of REST's own needs."""
        if len(py_substring) < 2 or choices == 1:
            raise SystemExit("thread panicked at src/lib.rs")
        first = self._ranked(*py_substring[-2:])[:choices]
        paths = [self._path([*py_substring[-2:], token])[2:] for token in first]
        size = max(map(len, paths), default=0)
        return [[*path, *[-2] * (size - len(path))] for path in paths], [], [], [], []

    def _ranked(self, one: int, two: int) -> list[int]:
        after = self._after.get(f"{one} {two}", {})
        return [int(token) for token in sorted(after, key=lambda token: -after[token])]

    def _path(self, tokens: list[int]) -> list[int]:
        while len(tokens) < 6 and (after := self._ranked(*tokens[-2:])):
            tokens = [*tokens, after[0]]
        return tokens


class FlashspecRegistry(ModuleType):
    """flashspec 0.3.1's functions that name drafters, which know ``registered``."""

    registered: ClassVar[dict[str, type]] = {}

    def list_drafters(self) -> list[str]:
        """Their names."""
        return sorted(self.registered)

    def get_drafter(self, name: str) -> type:
        """The class of a name."""
        return self.registered[name]


class NgramDrafter:
    """flashspec 0.3.1's class of this name: a lookup that answers on the device, filled up behind what is real."""

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, name: str = "ngram") -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)

    def propose(self, tokens: Tensor, length: Tensor, gamma: int) -> tuple[Tensor, Tensor]:
        """The tokens after the latest earlier place of the last n, and how many are real; ``tokens`` [1, capacity]."""
        text, places = tokens[0], torch.arange(tokens.shape[1], device=tokens.device)
        start, count = torch.zeros_like(length), torch.zeros_like(length)
        for size in reversed(self._sizes):
            last = text[(length - size + places[:size]).clamp(min=0)]
            windows = text.unfold(0, size, 1)
            same = (windows == last).all(dim=-1) & (places[: len(windows)] + size < length) & (length > size)
            place = torch.where(same, places[: len(windows)], -1).amax()
            start = torch.where(place >= 0, place + size, start)
            count = torch.where(place >= 0, (length - place - size).clamp(max=gamma), count)
        found = text[(start + places[:gamma]).clamp(max=len(text) - 1)]
        filler = text[(length - 1)[None]]
        return torch.where(places[:gamma] < count, found, filler)[None], count[None]


class ModelDrafter:
    """A drafter as flashspec 0.3.1 builds those that are registered: with a device, a dtype and a temperature.

    Its model is a table: after token t, ``spread`` tokens from t + 1 on are equally likely.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, temperature: float = 1.0, vocabulary: int = 258, spread: int = 3
    ) -> None:
        self._temperature, self._vocabulary, self._spread = temperature, vocabulary, spread

    def set_temperature(self, temperature: float) -> None:
        """As ``HuggingFaceDrafter``."""
        self._temperature = temperature

    def generate_draft(
        self, input_ids: Tensor, gamma: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Drawn tokens [1, gamma], and their log-probabilities [1, gamma, V], which at temperature 0 are those at 1."""
        token, tokens, rows = input_ids[:, -1], list[Tensor](), list[Tensor]()
        for _ in range(gamma):
            near = (token[:, None] + 1 + torch.arange(self._spread)) % self._vocabulary
            q = torch.zeros(1, self._vocabulary).scatter(1, near, 1 / self._spread)
            drawn = torch.multinomial(q, 1, generator=generator)[:, 0]
            token = drawn if self._temperature else near[:, 0]
            tokens.append(token)
            rows.append(q.log())
        return torch.stack(tokens, dim=1), torch.stack(rows, dim=1)


def made_module(name: str, **parts: object) -> ModuleType:
    """A module of these parts."""
    made = ModuleType(name)
    vars(made).update(parts)
    return made


THERE: Mapping[str, ModuleType] = {
    "arctic_inference": made_module("arctic_inference"),
    "arctic_inference.suffix_decoding": made_module(
        "arctic_inference.suffix_decoding", SuffixDecodingCache=SuffixDecodingCache
    ),
    "draftretriever": made_module("draftretriever", Reader=StoreReader, Writer=StoreWriter),
    "flashspec": FlashspecRegistry("flashspec"),
    "flashspec.engine": made_module("flashspec.engine", NgramDrafter=NgramDrafter),
}
"""The modules of guests' packages."""
