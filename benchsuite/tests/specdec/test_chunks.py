"""Layers whose text is cut into chunks: on every backend a token attends to the tokens of its own chunk alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import INTERPRETED, INTERPRETS
from specdec import Verdict, Window
from specdec.arena import Arena, LayerShape, Plan
from specdec.ops import Ops

SIZE = 16
REFERENCE = registry().backend("reference")


class ChunkedTexts:
    """Two rows over a layer of chunks and one that slides over as many tokens; a text is the list of its values."""

    def __init__(self, ops: Ops, chunk: int, widest: int) -> None:
        self.ops, self.chunk = ops, chunk
        self.draw = torch.Generator().manual_seed(chunk)
        self.texts: list[list[Tensor]] = [[], []]
        self.arena = Arena(
            [LayerShape(1, SIZE, chunk, chunked=True), LayerShape(1, SIZE, chunk)],
            rows=2,
            max_length=3 * chunk + widest,
            max_window=widest,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )

    def enter(self, row: int, count: int) -> None:
        """Write so many tokens into a row, by the reference; they attend to nothing."""
        rows, parents = slice(row, row + 1), [list(range(-1, count - 1))]
        plan, values = self._planned(REFERENCE, rows, parents)
        for layer in range(2):
            at = plan.at(layer)
            REFERENCE.kv_append(at.keys, at.values, values, values, at.cells)
        self._commit(rows, parents, values, [list(range(count))])

    def verify(self, parents: list[list[int]], paths: list[list[int]]) -> None:
        """Each slot of a window attends with equal weights to what it must see; then each row keeps its path."""
        plan, values = self._planned(self.ops, slice(0, 2), parents)
        query = torch.randn(2, 2, len(parents[0]), SIZE, generator=self.draw)
        for layer, shape in enumerate(self.arena.layers):
            out = plan.attend(layer, query, values, values, 0.0, None)
            for row, text in enumerate(self.texts):
                for slot in range(len(parents[row])):
                    seen = text + [values[row, 0, node] for node in _lineage(parents[row], slot)]
                    last = len(seen) - 1
                    first = last - last % self.chunk if shape.chunked else max(0, last - self.chunk + 1)
                    mean = torch.stack(seen[first:]).double().mean(dim=0).float().expand(2, SIZE)
                    close = torch.allclose(out[row, slot], mean, rtol=1e-5, atol=1e-5)
                    assert close, f"{shape}, row {row} of {len(text)} tokens, slot {slot}"
        self._commit(slice(0, 2), parents, values, paths)

    def _planned(self, ops: Ops, rows: slice, parents: list[list[int]]) -> tuple[Plan, Tensor]:
        count, width = len(parents), len(parents[0])
        zeros = torch.zeros(count, width, dtype=torch.int64)
        window = Window(zeros, torch.tensor(parents), torch.full((count,), width))
        plan = self.arena.plan(window, ops, rows, max(map(len, self.texts[rows])))
        return plan, torch.randn(count, 1, width, SIZE, generator=self.draw)

    def _commit(self, rows: slice, parents: list[list[int]], values: Tensor, paths: list[list[int]]) -> None:
        longest = max(map(len, paths))
        path = torch.tensor([one + [-1] * (longest - len(one)) for one in paths])
        accepted = torch.tensor([len(one) - 1 for one in paths])
        chain = all(one == list(range(-1, len(one) - 1)) for one in parents)
        self.arena.commit(Verdict(path, accepted, accepted), rows, self.ops, compact=not chain)
        for text, own, kept in zip(self.texts[rows], values, paths, strict=True):
            text += [own[0, slot] for slot in kept]


def _lineage(parents: list[int], slot: int) -> list[int]:
    nodes = [slot]
    while parents[nodes[0]] >= 0:
        nodes.insert(0, parents[nodes[0]])
    return nodes


CHAIN, TREE = [-1, 0, 1, 2], [-1, 0, 0, 2]


@pytest.mark.parametrize("backend", ["reference", "cpu", pytest.param("triton", marks=INTERPRETS)])
def test_a_token_attends_to_its_own_chunk_alone(backend: str) -> None:
    """Chunks of five tokens, and two rows at other places of theirs: windows end before, at and behind a border."""
    texts = ChunkedTexts(registry().backend(backend), 5, 4)
    texts.enter(1, 3)
    texts.verify([CHAIN, CHAIN], [[0, 1], [0]])  # of 0 and 3 tokens
    texts.verify([CHAIN, TREE], [[0, 1, 2], [0, 2]])  # of 2 and 4
    texts.verify([TREE, CHAIN], [[0, 2, 3], [0, 1, 2, 3]])  # of 5 and 6
    texts.verify([[-1, 0], [-1, 0]], [[0], [0, 1]])  # of 8 and 10
    texts.verify([TREE, TREE], [[0, 1], [0, 2, 3]])  # of 9 and 12
    assert [len(text) for text in texts.texts] == [11, 15]


@pytest.mark.parametrize("backend", ["reference", "cpu", pytest.param("triton", marks=INTERPRETED)])
def test_the_chunks_before_a_token_s_own_may_fill_whole_parts_of_what_a_kernel_shares(backend: str) -> None:
    """Chunks of 300 tokens; the parts of C++ and Triton have 256 cells. Of three of them one or two are hidden."""
    texts = ChunkedTexts(registry().backend(backend), 300, 300)
    for row, count in enumerate((299, 258)):
        texts.enter(row, 300)
        texts.enter(row, count)
    texts.verify([CHAIN, CHAIN], [[0], [0, 1, 2]])
    texts.verify([TREE, CHAIN], [[0, 2], [0]])
