"""JSON with fields removed, nulled, retyped, doubled and reordered, for what reads what others have written."""

from __future__ import annotations

import copy
import math
from typing import Any

from hypothesis import strategies as st

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 3, 2.0, 1.5, 1e400, -math.inf, math.nan, 10**30),
    *("", "a", "stop", "\ud83d", [], [None], ["a"], [[]], {}, {"a": 1}, {"type": "text", "text": "z"}),
    [{"type": "text", "text": "z"}],
)
"""What a field may be in place of what it should be."""


@st.composite
def changed_json(draw: st.DrawFn, found: Any, most: int = 3) -> Any:
    """A copy with up to ``most`` changes anywhere in it.

    Example: ``draw(changed_json({"choices": [{"text": "a"}]}))``
    """
    found = copy.deepcopy(found)
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(["remove", "retype", "double", "reorder"]))
        places = _places(found)
        if not places:
            break
        place = draw(st.sampled_from(places))
        holder: Any = found
        for key in place[:-1]:
            holder = holder[key]
        key = place[-1]
        if kind == "remove":
            del holder[key]
        elif kind == "retype":
            holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif kind == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == "double":
            holder[f"{key}_2"] = copy.deepcopy(holder[key])
        elif isinstance(holder, list):
            holder.insert(0, holder.pop(key))
    return found


def _places(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything within objects and lists."""
    keys = range(len(found)) if isinstance(found, list) else found if isinstance(found, dict) else ()
    return [one for key in keys for one in [(*path, key), *_places(found[key], (*path, key))]]
