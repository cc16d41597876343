"""The names in a request, checked against what there is before torch is imported, which takes seconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from benchsuite.measure.conditions import known_conditions
from benchsuite.measure.workloads import workload_names
from benchsuite.measure.workloads.depths import depth_name, split_depth
from benchsuite.run.request import RunRequest
from specdec.choices import check_device, check_dtype, check_model
from specdec.errors import SpecdecError, unknown
from specdec.installed import how_found, registered_names
from specdec.lists import split_list

EXTRA = {"backend": ("auto",), "peer": ("auto", "none")}
"""Of each kind, the names that no plugin registers."""


def refuse_unknown_names(request: RunRequest) -> None:
    """Raise SpecdecError, with the choices, for a name in a request that stands for nothing.

    Options of strategies are not read, and names of a plugin whose source does not tell them are not known: what is
    not refused here is refused by the registry.
    """
    known = registered_names()
    for check, names in ((check_model, request.target), (check_device, request.device), (check_dtype, request.dtype)):
        _refuse_if_all_are(check, names)
    _refuse_if_all_are(lambda name: _refuse_unregistered(known, "backend", [name]), request.backend)
    if request.judge:
        check_model(request.judge)
    named_workloads(request)
    known_conditions(request.across)
    strategies = [parts for _, parts in split_arms(request.arm)]
    for kind, texts in {
        "draft": request.draft if not strategies else [parts[0] for parts in strategies],
        "policy": request.policy if not strategies else [parts[1] for parts in strategies if len(parts) > 1],
        "controller": request.controller if not strategies else [parts[2] for parts in strategies if len(parts) > 2],
        "peer": request.peer,
    }.items():
        _refuse_unregistered(known, kind, texts)


def named_workloads(request: RunRequest) -> list[str]:
    """Return the workloads of a request, each at every depth, by their names. SpecdecError for one that cannot be read,
    and for a depth in a name beside those of --specdec-depth."""
    found = [name for text in request.workload for name in workload_names(text)]
    deep = [name for name in found if split_depth(name)[1]]
    if deep and request.depth != (0,):
        raise SpecdecError(f"{deep[0]} has a depth of its own: leave it out of the name, or leave out --specdec-depth")
    return [depth_name(name, depth) if depth else name for name in found for depth in request.depth]


def _refuse_if_all_are(check: Callable[[str], object], names: Iterable[str]) -> None:
    """Raise the first error if every name has one: one that can be measured is measured, whatever the others are."""
    errors = list[SpecdecError]()
    for name in names:
        try:
            check(name)
        except SpecdecError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _refuse_unregistered(known: Mapping[str, Collection[str] | None], kind: str, texts: Iterable[str]) -> None:
    names = known[kind]
    if names is None:
        return
    choices = {*names, *EXTRA.get(kind, ())}
    for text in texts:
        found = re.match(r"\s*(\w+)\s*(\(|$)", text)
        if found and found[1] not in choices:
            raise unknown(kind, found[1], choices, how_found())


def split_arms(text: str) -> list[tuple[str | None, list[str]]]:
    """Return the strategies of a text as --specdec-arm has it: of each its short name, if it has one, and its parts.

    Raises SpecdecError for more than four parts, and for an empty one.

    Example: ``split_arms("ngram/match, mine=suffix")`` is ``[(None, ["ngram", "match"]), ("mine", ["suffix"])]``.
    """
    strategies = []
    for written in split_list(text):
        # An equals sign or a slash inside brackets belongs to an option: draft_model(model=path/to/draft).
        named = re.fullmatch(r"([^(/=]+)=(.*)", written)
        parts = [part.strip() for part in re.split(r"/(?![^(]*\))", named[2] if named else written)]
        if not 1 <= len(parts) <= 4 or not all(parts):
            raise SpecdecError(
                f"cannot read the arm {written!r}; expected draft, draft/policy, … or draft/policy/controller/K"
            )
        strategies.append((named[1].strip() if named else None, parts))
    return strategies
