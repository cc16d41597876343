"""Options from elsewhere than the command line: a YAML file, the environment, the manifest of an earlier run.

The command line wins; then these three, which must not contradict each other; then the ini file. Imports no torch.
"""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from benchsuite.machine.files import MANIFEST, runs
from benchsuite.machine.user_files import UserFileError, user_yaml
from benchsuite.options import VARIABLES, Option, Texts

Known = Mapping[str, tuple[str, Option]]
"""Options as a configuration file names them, ``target`` and ``gate-against``: each with the group that it is of."""

OTHERS = ("SPECDEC_FORCE_PY", "SPECDEC_CACHE", "SPECDEC_LOAD_PLUGINS")
"""Variables that are read where they are needed, and stand for no option."""

FIXED = {
    "SPECDEC_ENABLE_KV_APPEND": ("1", "keys and values are always appended to the arena"),
    "SPECDEC_PARALLEL_STREAMS": ("0", "this version drafts and verifies on one stream"),
    "SPECDEC_SYNC_MODE": ("event", "on CUDA the parts of a step are timed by events"),
}
"""Variables of other tools for what cannot be chosen here: the only value that is taken, and why."""

KEYS = ("SPECDEC_API_KEY",)
"""Begins the names of variables that hold the API keys of endpoints."""

OWN = "SPECDEC_GATE_"
"""Begins the names of variables that the gate gives to its launches."""


@dataclass(frozen=True)
class Source:
    """Texts of options, by their names, and where they come from; ``whole``: it has all options, set or not."""

    where: str
    texts: Mapping[str, str]
    whole: bool = False


def with_sources(given: Texts, known: Known) -> Texts:
    """Return ``given`` with the texts that a file, variables and a repeated run have for what the command line leaves
    open.

    Raises UsageError for a file that cannot be read, a name that is no option, a value of the wrong type, and sources
    that contradict each other.
    """
    sources = [*_file(given, known), *_repeated(given), *_variables()]
    texts, chosen, written = dict(given.texts), set(given.given), dict(given.written)
    for name in known:
        said = {source.where: source.texts[name] for source in sources if name in source.texts}
        if not said or name in given.given:
            continue
        if len(set(said.values())) > 1:
            both = ", ".join(f"{text!r} in {where}" for where, text in said.items())
            raise pytest.UsageError(f"{name} has two values: {both}; leave out one, or say --{_written(name)}=…")
        text = next(iter(said.values()))
        if text != texts[name] or any(name in source.texts and not source.whole for source in sources):
            texts[name] = text
            chosen.add(name)
            written[name] = " and ".join(said)
    return replace(given, texts=texts, given=frozenset(chosen), written=written)


def _written(name: str) -> str:
    return name if name.startswith("gate-") else f"specdec-{name}"


def _file(given: Texts, known: Known) -> list[Source]:
    """The texts in ``--specdec-config``, a YAML mapping from options to values or lists of values."""
    text, path = given.texts["config"], given.path("config")
    if path is None:
        return []
    try:
        found = user_yaml(path)
    except UserFileError as error:
        raise pytest.UsageError(f"--specdec-config: {error}; name a YAML file") from None
    unknown = [name for name in found if name not in known]
    if unknown:
        close = difflib.get_close_matches(str(unknown[0]).replace("_", "-").removeprefix("specdec-"), known, n=1)
        meant = f": did you mean {close[0]!r}?" if close else f"; options are {', '.join(known)}"
        raise pytest.UsageError(f"--specdec-config {text!r} has {unknown[0]!r}, which is no option{meant}")
    return [Source(text, {name: _text(text, name, value, known[name][1]) for name, value in found.items()})]


def _text(file: str, name: str, value: Any, option: Option) -> str:
    """A value of the file as the command line would have it."""
    expected = "true or false" if option.flag else "a value or a list of values" if option.many else "one value"
    if isinstance(value, bool) == option.flag:
        if isinstance(value, list) and option.many and value and all(map(_plain, value)):
            return ",".join(map(str, value))
        if _plain(value):
            return str(value)
    shown = json.dumps(value, default=str).replace('"', "")
    raise pytest.UsageError(f"--specdec-config {file!r}: {name} is {shown}; expected {expected}")


def _plain(value: Any) -> bool:
    return isinstance(value, str | bool)


def _repeated(given: Texts) -> list[Source]:
    """The options of the run whose folder ``--specdec-repeat`` names."""
    text, folder = given.texts["repeat"], given.path("repeat")
    if folder is None:
        return []
    if not runs(folder):  # before the journal imports torch
        raise pytest.UsageError(
            f"--specdec-repeat: {folder} is no folder of results: it has no {MANIFEST}; name a folder that "
            "--specdec-results has made"
        )
    from benchsuite.store.journal import Journal
    from specdec.errors import SpecdecError

    try:
        said = Journal.load(folder).said
    except SpecdecError as error:
        raise pytest.UsageError(f"--specdec-repeat: {error}") from None
    return [Source(f"the run in {text}", {name: got for name, got in said["options"].items() if got}, whole=True)]


def _variables() -> list[Source]:
    """The options that ``SPECDEC_…`` variables give, each from its own source; a variable that is unknown warns."""
    sources, known = list[Source](), [*VARIABLES, *FIXED, *OTHERS]
    for variable in sorted(os.environ):
        if not variable.startswith("SPECDEC_") or variable in OTHERS or variable.startswith((OWN, *KEYS)):
            continue
        value = os.environ[variable]
        if variable in FIXED:
            taken, why = FIXED[variable]
            if value != taken:
                raise pytest.UsageError(f"the variable {variable} is {value!r}; expected {taken}: {why}")
        elif variable in VARIABLES:
            meaning = VARIABLES[variable]
            if meaning.texts and value not in meaning.texts:
                choices = " or ".join(meaning.texts)
                raise pytest.UsageError(f"the variable {variable} is {value!r}; expected {choices}")
            sources.append(Source(f"the variable {variable}", {meaning.option: meaning.texts.get(value, value)}))
        else:
            close = difflib.get_close_matches(variable, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            _warn(f"the variable {variable} means nothing here: {meant}")
    return sources


def _warn(text: str) -> None:
    """Warn; where warnings are errors (``-W error``), refuse: pytest has no other place for an error at this time."""
    try:
        warnings.warn(pytest.PytestConfigWarning(text), stacklevel=1)
    except pytest.PytestConfigWarning as error:
        raise pytest.UsageError(str(error)) from None
