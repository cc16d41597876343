"""The rollback state machine: the arena compared with lists; its invariants are named in docs/arena.md.

Every slot writes a unique number as its key and value, so the numbers that a slot sees can be read back. They are
compared with the model, a list of numbers for each row, which says what the slot must see. A recurrence and a
convolution over the same numbers have states beside the arena; the model replays both from the row's first number.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchsuite.conformance.models.tiny import registry
from specdec.arena import Arena, LayerShape
from specdec.messages import Verdict, Window
from specdec.recurrent import ChunkStates, StateCache, WindowStates
from specdec.states import StateKey, StateShape

ROWS, LONGEST, WIDEST, SIZE = 3, 40, 6, 4
LAYERS = (
    *(LayerShape(1, SIZE, None), LayerShape(2, SIZE, 5), LayerShape(1, SIZE, 1), LayerShape(2, SIZE, 5)),
    *(LayerShape(1, SIZE, 5, chunked=True), LayerShape(1, SIZE, 3, chunked=True), LayerShape(1, SIZE + 2, None)),
)
"""A full layer, three rings, two of one shape with another between them, two layers of chunks, one of 5 tokens as the
rings look back, and a full layer of longer vectors."""

KERNEL, PRIME = 3, 1_000_003
STATES = {
    StateKey(0, "conv", 0): StateShape((1, KERNEL), torch.int64),
    StateKey(0, "recurrent", 0): StateShape((), torch.int64),
}
"""The states of a layer with a convolution and a recurrence."""

GARBAGE = 1e30
"""The largest fill value with which a float32 product with a query cannot overflow (I4)."""


def recurrent_layer(numbers: torch.Tensor, cache: StateCache) -> torch.Tensor:
    """The states after each of the numbers int64 [B, W]: the recurrence's and the convolution's, [B, W, 2].

    As transformers' layers do, a single number changes the recurrence's state in place, several replace it.
    """
    width, state = numbers.shape[1], cache.get_recurrent_state(0)
    now = torch.zeros_like(numbers[:, 0]) if state is None else state
    seen = cache.update_conv_state(numbers[:, None], 0, conv_kernel_size=KERNEL)[:, 0]
    seen = torch.nn.functional.pad(seen, (KERNEL + width - seen.shape[1], 0))
    after = []
    for slot in range(width):
        now = (now * 31 + numbers[:, slot]) % PRIME
        after.append(torch.stack([now, _mixed(seen[:, slot + 1 : slot + 1 + KERNEL])], dim=1))
    if state is not None and width == 1:
        state.copy_(now)
    else:
        cache.update_recurrent_state(now, 0)
    return torch.stack(after, dim=1)


def replayed_states(numbers: list[float]) -> list[int]:
    """What ``recurrent_layer`` gives for the last of a text's numbers, computed from the first one."""
    now = 0
    for number in numbers:
        now = (now * 31 + int(number)) % PRIME
    return [now, int(_mixed(torch.tensor([[0] * KERNEL + [int(n) for n in numbers]])[:, -KERNEL:]))]


def _mixed(last: torch.Tensor) -> torch.Tensor:
    return (last * torch.tensor([7, 11, 13])).sum(dim=1)


def first_seen(shape: LayerShape, position: int) -> int:
    """The first position that a token at ``position`` sees in a layer."""
    if shape.span is None:
        return 0
    return position - position % shape.span if shape.chunked else max(0, position - shape.span + 1)


def parents_of(width: int) -> st.SearchStrategy[list[int]]:
    """Draw the parents of one row's window: any tree in which parents precede children."""
    return st.tuples(*(st.integers(0, i - 1) for i in range(1, width))).map(lambda rest: [-1, *rest])


@st.composite
def windows(draw: st.DrawFn, rows: int) -> tuple[list[list[int]], list[int]]:
    """Draw parents and widths of a window over ``rows`` rows: ragged, chain or tree."""
    size = draw(st.integers(1, WIDEST))
    if draw(st.booleans()):
        parents = [list(range(-1, size - 1))] * rows
    else:
        parents = [draw(parents_of(size)) for _ in range(rows)]
    return parents, [draw(st.integers(1, size)) for _ in range(rows)]


class Rollback(RuleBasedStateMachine):
    """Rows of an arena with a full layer, rings and chunks, and a list of written numbers for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = registry().backend("reference")
        self.arena = Arena(
            LAYERS,
            rows=ROWS,
            max_length=LONGEST,
            max_window=WIDEST,
            dtype=torch.float32,
            device=torch.device("cpu"),
            states=STATES,
            kept_window=WIDEST,
        )
        self.tensors = (*self.arena.keys, *self.arena.values, *self.arena.states.rings.values())
        self.pointers = [tensor.data_ptr() for tensor in self.tensors]
        self.model: list[list[float]] = []
        self.next = 1.0
        self.steps: list[str] = []
        self.saved: tuple[list[torch.Tensor], list[list[float]]] | None = None

    @initialize()
    def enter_first(self) -> None:
        """Start with one row, so that every step has some work."""
        self.model.append([])

    @rule(length=st.integers(0, WIDEST), chunks=st.booleans())
    @precondition(lambda self: len(self.model) < ROWS)
    def enter(self, length: int, chunks: bool) -> None:
        """Give a request the first free row and prefill this row alone, on a view: in one chunk or in two."""
        row = len(self.model)
        self.model.append([])
        self.arena.reset(row)
        self.steps.append(f"enter with {length}, in chunks {chunks}")
        for size in filter(None, (length // 2, length - length // 2) if chunks else (length,)):
            self.forward(slice(row, row + 1), [list(range(-1, size - 1))], [size], [list(range(size))], prefill=True)

    @rule(row=st.integers(0, ROWS - 1), other=st.integers(0, ROWS - 1))
    def keep(self, row: int, other: int) -> None:
        """Copy out a row's text and restore it in the same row or another."""
        row, other = row % len(self.model), other % len(self.model)
        length = len(self.model[row])
        kept = self.arena.keep(row, length, WIDEST)
        assert self.arena.restore(other, kept, length) == kept.nbytes
        assert kept.wrapped, "states are restored at the full length only"
        self.model[other] = list(self.model[row])
        self.steps.append(f"keep {row}, restore in {other}")

    @rule(data=st.data())
    def verify(self, data: st.DataObject) -> None:
        """Verify a window over all rows; every row keeps some path of it, from the root alone to a leaf."""
        parents, widths = data.draw(windows(len(self.model)))
        paths = []
        for row, width in enumerate(widths):
            path = [0]
            for node in range(1, width):
                if parents[row][node] == path[-1] and data.draw(st.booleans(), label=f"keep {node}"):
                    path.append(node)
            paths.append(path)
        self.steps.append(f"verify {parents} {widths}, keep {paths}")
        self.forward(slice(0, len(self.model)), parents, widths, paths)

    @rule(row=st.integers(0, ROWS - 1))
    @precondition(lambda self: len(self.model) > 1)
    def leave(self, row: int) -> None:
        """Remove a row and move the last row into its place."""
        row %= len(self.model)
        last = len(self.model) - 1
        if row < last:
            moved = self.arena.move(last, row)
            assert moved == sum(tensor[0].nbytes for tensor in self.tensors) == self.arena.row_bytes
            self.model[row] = self.model[last]
        self.model.pop()
        self.steps.append(f"leave {row}")

    @rule(row=st.integers(0, ROWS - 1))
    def reset(self, row: int) -> None:
        """Reset a row; the old contents stay in its cells."""
        row %= len(self.model)
        self.arena.reset(row)
        self.model[row] = []
        self.steps.append(f"reset {row}")

    @rule()
    def save(self) -> None:
        """Copy the whole state of the arena, which is its tensors."""
        tensors = (*self.tensors, self.arena.committed)
        self.saved = [tensor.clone() for tensor in tensors], [list(row) for row in self.model]
        self.steps.append("save")

    @rule()
    @precondition(lambda self: self.saved is not None)
    def load(self) -> None:
        """Restore the copy into the same storage; later steps must leave no effect."""
        assert self.saved is not None
        for tensor, copy in zip((*self.tensors, self.arena.committed), self.saved[0], strict=True):
            tensor.copy_(copy)
        self.model = [list(row) for row in self.saved[1]]
        self.steps.append("load")

    def forward(
        self,
        rows: slice,
        parents: list[list[int]],
        widths: list[int],
        paths: list[list[int]],
        prefill: bool = False,
    ) -> None:
        """Write a window into every layer, check the visible cells, commit the paths. Resets rows without room.

        ``prefill``: a chunk of a prompt, of which only the last state is kept; otherwise a window.
        """
        committed = self.model[rows]
        longest = max(map(len, committed))
        if longest + WIDEST > LONGEST:
            for row in range(rows.start, rows.stop):
                self.arena.reset(row)
                self.model[row] = []
            committed, longest = self.model[rows], 0
        count, size = len(committed), len(parents[0])
        marks = torch.arange(count * size, dtype=torch.float32).view(count, size) + self.next
        self.next += count * size
        window = Window(torch.zeros(count, size, dtype=torch.int64), torch.tensor(parents), torch.tensor(widths))
        plan = self.arena.plan(window, self.ops, rows, longest)
        self.positions_follow_depth_and_cells_follow_slots(plan, committed, parents)
        before = [tensor.clone() for tensor in self.tensors]
        self.a_state_is_of_what_its_slot_sees(plan, committed, marks, parents, prefill)
        for layer, shape in enumerate(LAYERS):
            self.nothing_visible_is_overwritten(plan, layer, committed)
            fresh = marks[:, None, :, None].expand(count, shape.heads, size, shape.head_dim).contiguous()
            query = torch.full(fresh.shape, 1e-3)
            out = plan.attend(layer, query, fresh, fresh, 1.0, None)
            self.a_slot_sees_its_past_and_its_ancestors_only(plan, layer, committed, marks, parents)
            self.nothing_else_changes_a_bit(plan, layer, query, fresh, out)
        chain = all(p == list(range(-1, size - 1)) for p in parents)
        written = [tensor.clone() for tensor in self.tensors]
        depth = max(map(len, paths))
        padded = torch.tensor([path + [-1] * (depth - len(path)) for path in paths])
        accepted = torch.tensor([len(path) - 1 for path in paths])
        self.arena.commit(Verdict(padded, accepted, accepted), rows, self.ops, compact=not chain)
        if chain:
            for now, then in zip(self.tensors, written, strict=True):
                assert torch.equal(now, then), f"I2: committing a chain moved bytes\n{self.steps}"
        for offset, path in enumerate(paths):
            self.model[rows.start + offset] = committed[offset] + [float(marks[offset, node]) for node in path]
        for now, then in zip(self.tensors, before, strict=True):
            others = [r for r in range(ROWS) if not rows.start <= r < rows.stop]
            assert torch.equal(now[others], then[others]), f"I7: a row that took no part changed\n{self.steps}"

    def positions_follow_depth_and_cells_follow_slots(
        self, plan: Any, committed: list[list[float]], parents: list[list[int]]
    ) -> None:
        """I5: a position is the length plus the depth; a cell is the length plus the slot, modulo the capacity."""
        for row, numbers in enumerate(committed):
            for slot in range(len(parents[row])):
                depth, node = 0, slot
                while (node := parents[row][node]) >= 0:
                    depth += 1
                assert int(plan.position[row, slot]) == len(numbers) + depth, self.steps
                for span, capacity in self.arena.capacity.items():
                    assert int(plan.cells[span][row, slot]) == (len(numbers) + slot) % capacity, self.steps

    def nothing_visible_is_overwritten(self, plan: Any, layer: int, committed: list[list[float]]) -> None:
        """I6: the cells to be written contain nothing that a query of this forward may see."""
        shape = LAYERS[layer]
        capacity = self.arena.capacity[shape.span]
        for row, numbers in enumerate(committed):
            first = first_seen(shape, len(numbers))
            visible = {position % capacity for position in range(first, len(numbers))}
            writes = set(plan.cells[shape.span][row].tolist())
            assert not visible & writes, f"I6: cells {visible & writes} of layer {layer}\n{self.steps}"

    def a_slot_sees_its_past_and_its_ancestors_only(
        self, plan: Any, layer: int, committed: list[list[float]], marks: torch.Tensor, parents: list[list[int]]
    ) -> None:
        """I3: a slot sees its past and its ancestors only, within the span or its chunk; padding slots too."""
        mask = plan.at(layer).mask
        for row, numbers in enumerate(committed):
            cells = self.arena.keys[layer][plan.rows][row, 0, :, 0]
            for slot in range(len(parents[row])):
                lineage, node = [], slot
                while node >= 0:
                    lineage.append(float(marks[row, node]))
                    node = parents[row][node]
                past = numbers + lineage[::-1]
                expected = past[first_seen(LAYERS[layer], len(past) - 1) :]
                seen = cells[: mask.shape[-1]][mask[row, 0, slot] == 0].tolist()
                assert sorted(seen) == expected, f"I3: layer {layer}, row {row}, slot {slot}\n{self.steps}"

    def a_state_is_of_what_its_slot_sees(
        self,
        plan: Any,
        committed: list[list[float]],
        marks: torch.Tensor,
        parents: list[list[int]],
        prefill: bool,
    ) -> None:
        """I8: a slot's states are those of the committed text and its own lineage, replayed from the start."""
        counts = self.arena.committed[plan.rows]
        cache = (
            ChunkStates(self.arena.states, plan.rows, counts, marks.shape[1], not committed[0])
            if prefill
            else WindowStates(self.arena.states, plan.rows, counts, torch.tensor(parents))
        )
        got = cache.run(recurrent_layer, (marks.long(),), {"cache": cache})
        for row, numbers in enumerate(committed):
            for slot in range(len(parents[row])):
                lineage, node = list[float](), slot
                while node >= 0:
                    lineage.insert(0, float(marks[row, node]))
                    node = parents[row][node]
                expected = replayed_states(numbers + lineage)
                assert got[row, slot].tolist() == expected, f"I8: row {row}, slot {slot}\n{self.steps}"

    def nothing_else_changes_a_bit(
        self, plan: Any, layer: int, query: torch.Tensor, fresh: torch.Tensor, out: torch.Tensor
    ) -> None:
        """I4, and I7 within a batch: garbage in the cells that no slot of a row sees does not change the output."""
        unseen = (plan.at(layer).mask != 0).all(dim=2)[:, 0]
        capacity = self.arena.capacity[LAYERS[layer].span]
        hidden = torch.ones(len(unseen), capacity, dtype=torch.bool)
        hidden[:, : unseen.shape[1]] = unseen
        for tensor in (self.arena.keys[layer], self.arena.values[layer]):
            view = tensor[plan.rows]
            view[hidden[:, None, :, None].expand_as(view)] = GARBAGE
        again = plan.attend(layer, query, fresh, fresh, 1.0, None)
        assert torch.equal(out, again), f"I4: garbage changed layer {layer}\n{self.steps}"

    @invariant()
    def storage_never_moves(self) -> None:
        """I1: keys, values and states keep their storage."""
        assert [tensor.data_ptr() for tensor in self.tensors] == self.pointers, self.steps

    @invariant()
    def committed_counts_what_was_kept(self) -> None:
        """The arena's lengths equal the model's."""
        assert self.arena.committed[: len(self.model)].tolist() == [len(row) for row in self.model], self.steps
