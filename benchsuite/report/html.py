"""Templates of pages and pictures, filled in."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def template(name: str, **values: Any) -> str:
    """Return a template of ``benchsuite/report/templates`` with ``values`` filled in and escaped."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("benchsuite.report"), autoescape=True)
