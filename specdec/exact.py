"""Exactness: a target whose windows of every width give the same bits, refused by name or proved when it is built.

What a backend says of its ops (``Backend.row_invariant``) is not enough, because a model also has parts that no op
computes. So the target runs over arenas of its own, and the bits of its logits and hidden states are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from specdec.errors import SpecdecError
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ops import Ops

WIDTHS = (1, 2, 5, 16)
"""The widths that every proof tries, in slots."""

PREFIX, LENGTH = 12, 20
"""Tokens that are read before the first window, and the least number of tokens that go through windows."""

ELSE = "or leave out exact (--specdec-exact)"


@torch.inference_mode()
def require_exact(target: ArenaModel, rows: int = 1, width: int = max(WIDTHS)) -> None:
    """Run some 40 forwards: single tokens, then windows of ``WIDTHS`` and of ``width`` slots in ``rows`` rows at once.

    The windows are chains. Nothing of it is seen later. Raises SpecdecError, by name, for a part of the model that is
    multiplied by torch, for an op that ran on a backend which does not call it row invariant, and for other bits.

    Example: ``require_exact(ArenaModel(model, Registry().backend("cpu")))``
    """
    if not isinstance(target.ops, Ops):
        raise SpecdecError(
            f"exact asks which backend ran each op, which {type(target.ops).__name__} alone does not count; give the "
            f"target specdec.ops.Ops, as Registry().backend does, {ELSE}"
        )
    length = max(LENGTH, width + 1)
    tokens = (torch.arange(PREFIX + length, device=target.device) * 7919 % target.vocabulary)[None]
    forwards, before = target.forwards, target.ops.ran()
    apart: str | None = None
    with _multiplied_by_torch(target.model) as matrices:
        single = torch.cat([part for _, part in _windows(target, tokens, 1, 1)], dim=1)
        for slots in sorted({*WIDTHS, width}):
            for first, part in _windows(target, tokens, rows, slots):
                for row, start in enumerate(first):
                    expected = single[0, start : start + part.shape[1]]
                    if apart is None and not torch.equal(part[row], expected):
                        far = float((part[row] - expected).abs().max())
                        apart = f"a window of {slots} in {rows} rows differs from its tokens one by one by {far:.1e}"
    target.forwards = forwards
    _refuse_unsaid(target.ops, sorted(target.ops.ran() - before), matrices)
    if apart:
        raise SpecdecError(
            f"a {target.model.config.model_type} model on {_names(target.ops)} is not exact: {apart}, although every "
            f"op says that it is row invariant; name another --specdec-backend, {ELSE}"
        )


def _refuse_unsaid(ops: Ops, ran: list[tuple[str, str]], matrices: list[str]) -> None:
    said = {(op, backend.name) for backend in ops.chain for op in backend.row_invariant}
    unsaid = [f"the op {op} on the backend {name}" for op, name in ran if (op, name) not in said]
    unsaid += [f"torch's own product in {name}" for name in matrices]
    if unsaid:
        more = f" and {len(unsaid) - 4} more" if len(unsaid) > 4 else ""
        raise SpecdecError(
            f"the result of {', '.join(unsaid[:4])}{more} may depend on the width of a window; exact needs ops that "
            "their backend calls row invariant: those of cpu are, with packed weights in float32, bfloat16, int8 or "
            "int4, for models of Llama's kind, and those of triton(exact=True) on CUDA; name such a --specdec-backend "
            f"and --specdec-dtype, {ELSE}"
        )


def _names(ops: Ops) -> str:
    return ", ".join(backend.name for backend in ops.chain)


def _windows(target: ArenaModel, tokens: Tensor, rows: int, width: int) -> Iterator[tuple[list[int], Tensor]]:
    """Send tokens [1, N] through windows of ``width``; every second row is one token ahead.

    Yields the places, past ``PREFIX``, of each row's first token, and logits beside hidden states [rows, W, V + H].
    """
    length = tokens.shape[1]
    arena = target.arena(rows, length, width)
    for row in range(rows):
        target.extend(arena, tokens[:, :PREFIX], row, 0)
    for row in range(1, rows, 2):
        target.extend(arena, tokens[:, PREFIX : PREFIX + 1], row, PREFIX)
    ahead = torch.arange(rows, device=tokens.device) % 2
    most = length - PREFIX - min(rows - 1, 1)
    for start in range(0, most, width):
        places = PREFIX + start + ahead[:, None] + torch.arange(min(width, most - start), device=tokens.device)
        own = tokens[0][places]
        window = Window.chain(own[:, 0], own[:, 1:], torch.full_like(own[:, 0], own.shape[1] - 1))
        logits, hidden = target.forward(arena, window, slice(0, rows), PREFIX + start + min(rows - 1, 1))
        arena.committed += own.shape[1]
        yield [start + row % 2 for row in range(rows)], torch.cat([logits, hidden.to(logits.dtype)], dim=-1)


@contextmanager
def _multiplied_by_torch(model: nn.Module) -> Iterator[list[str]]:
    """Collects the names of called modules that have a matrix and their own forward; embeddings only look up rows."""
    names: list[str] = []
    handles = []
    for name, module in model.named_modules():
        matrix = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
        if matrix and not isinstance(module, nn.Embedding):

            def note(module: nn.Module, _: object, name: str = name) -> None:
                if "forward" not in module.__dict__ and name not in names:
                    names.append(name)

            handles.append(module.register_forward_pre_hook(note))
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()
