"""Guards of the target: which of a draft's own calls run it, and where somebody listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specdec import Draft, Engine
from specdec.model import ArenaModel

CALLS = ("admit", "release", "move", "keep", "resume", "prefilled", "propose", "observe", "look_up", "forget")
"""Methods of a draft that an engine calls."""


@contextmanager
def within_target(engine: Engine) -> Iterator[list[str]]:
    """Yields the names of its draft's methods, one for each forward of the target in them.

    Example: ``with within_target(engine) as names: engine.run(requests)``
    """
    draft, target, inside, found = engine.draft, engine.target, list[str](), list[str]()
    assert isinstance(draft, Draft)

    def entered(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            inside.append(name)
            try:
                return method(*given, **named)
            finally:
                inside.pop()

        return call

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found.extend(inside[:1])
            return method(*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(draft, name, entered(name, getattr(draft, name)))
        for name in ("forward", "extend"):
            patch.setattr(target, name, counted(getattr(target, name)))
        yield found


def hooked_modules(target: ArenaModel) -> list[str]:
    """Names of the modules of a target's model that have hooks of a forward."""
    modules = target.model.named_modules()
    return [name for name, module in modules if module._forward_hooks or module._forward_pre_hooks]
