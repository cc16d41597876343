"""What Python hands to C++: structs have the members of the sources, in their order and of their kinds."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from specdec_kernels import build, cpu

KINDS = {"long": ctypes.c_int64, "float": ctypes.c_float, "Matrix": cpu.Matrix}


def members(name: str) -> list[tuple[str, type[Any], int]]:
    """Name, type and count of each member of a struct in the sources."""
    sources = "\n".join(path.read_text() for path in sorted(build.SOURCES.iterdir()) if path.suffix in (".h", ".cpp"))
    [body] = re.findall(rf"^struct {name} {{(.*?)^}};", sources, re.MULTILINE | re.DOTALL)
    found: list[tuple[str, type[Any], int]] = []
    for declared in re.sub(r"//[^\n]*", "", body).split(";"):
        kind, *_ = declared.replace("const ", "").split() or [""]
        for star, member, count in re.findall(r"(\*?)\s*(\w+)(?:\[(\d+)\])?\s*(?=,|$)", declared.strip()):
            pointer = bool(star) or kind.endswith("*")
            found.append((member, ctypes.c_void_p if pointer else KINDS[kind], int(count or 1)))
    return found


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (cpu.Matrix, "Matrix"),
        (cpu.Layer, "Layer"),
        (cpu.ArenaCells, "Cells"),
        (cpu.Turn, "Turn"),
        (cpu.Processors, "Processors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_struct_has_the_members_of_the_sources(mine: type[ctypes.Structure], theirs: str) -> None:
    found = []
    for name, kind, *_ in mine._fields_:
        count = getattr(kind, "_length_", 1)
        found.append((name, getattr(kind, "_type_", kind) if count > 1 else kind, count))
    assert found == members(theirs)
