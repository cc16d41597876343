"""The matrices of a head in 8 or 4 bits, as an option of a draft names them."""

from __future__ import annotations

from torch import Tensor, nn

from specdec import SpecdecError
from specdec.choices import BITS
from specdec.interfaces import Backend
from specdec.packed import Weight
from specdec.quantised import Quantised


def bits_named(text: str) -> int | None:
    """The bits of ``int8`` and ``int4``; None of ``float``. SpecdecError for anything else.

    Example: ``bits_named("int8")`` is 8.
    """
    if text != "float" and text not in BITS:
        raise SpecdecError(f"weights is {text!r}; expected float, {' or '.join(BITS)}")
    return BITS.get(text)


def matrix_for(ops: Backend, matrix: Tensor, bits: int | None) -> Weight:
    """A matrix as ``ops`` reads it fastest, rounded to codes of ``bits`` (8 or 4) unless that is None."""
    return ops.pack(matrix if bits is None else Quantised.of(matrix, bits))


def stored_bytes(module: nn.Module, bits: int | None) -> int:
    """Bytes of a module's parameters, its matrices as codes of ``bits`` with their scales unless that is None."""
    parts = (p if bits is None or p.dim() != 2 else Quantised.of(p, bits) for p in module.parameters())
    return sum(part.nbytes for part in parts)
