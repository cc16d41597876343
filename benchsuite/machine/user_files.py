"""Files that a user wrote: text in any usual encoding, JSON and YAML, taken or refused by name. Imports no torch."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Marks with which a file in UTF-16 begins."""


class UserFileError(Exception):
    """A file that cannot be read; the text says which, where in it, and why. The caller says what it expected."""


def user_text(path: Path) -> str:
    """Return a file's text: UTF-8 with or without a byte-order mark, or UTF-16 with one; all lines end with LF.

    Raises UserFileError for a file that is not there, is a folder or may not be read, and for another encoding.

    Example: ``user_text(Path("prompts.jsonl")).split("\\n")``
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the name
        raise UserFileError(f"{str(path)!r} cannot be read: {error}") from None
    wide = data.startswith(WIDE)
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind = "UTF-16" if wide else "UTF-8"
        raise UserFileError(f"{path} is no text in {kind} (line {line}, {error.reason}); save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def user_json(path: Path) -> Any:
    """Return what a file of JSON holds. Raises UserFileError as ``user_text`` and ``parsed_json``."""
    text = user_text(path)
    try:
        return parsed_json(text)
    except UserFileError as error:
        raise UserFileError(f"{path} is no JSON ({error})") from None


def parsed_json(text: str) -> Any:
    """Return the value that a text of JSON is.

    Raises UserFileError for anything else: NaN and Infinity, a name that stands twice in one object, half of a
    character, numbers and nesting beyond what can be held.
    """
    try:
        found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserFileError("a text has half of a surrogate pair; write the whole character") from None
    except RecursionError:
        raise UserFileError("it is nested too deeply") from None
    except ValueError as error:
        raise UserFileError(str(error)) from None
    return found


def user_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a file of YAML is; an empty file is an empty one.

    A plain value is the text that is written, but true, false and null: ``off``, ``08``, ``1e-3`` and ``12:30`` are
    these letters, as on a command line. Raises UserFileError for anything that is no mapping of texts, for a name that
    stands twice, and for what is no YAML.
    """
    import yaml

    text = user_text(path)
    try:
        found = yaml.load(text, _loader())
        json.dumps(found, ensure_ascii=False, default=str).encode()
    except yaml.YAMLError as error:
        raise UserFileError(f"{path} is no YAML: {error}") from None
    except UnicodeEncodeError:
        raise UserFileError(f"{path} has half of a surrogate pair; write the whole character") from None
    except (RecursionError, ValueError, TypeError) as error:  # an alias of itself, nesting, a name that is a list
        raise UserFileError(f"{path} cannot be read: {error}") from None
    found = {} if found is None else found
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        shown = (
            f"the name {next(n for n in found if not isinstance(n, str))!r}"
            if isinstance(found, dict)
            else _kind(found)
        )
        raise UserFileError(f"{path} holds {shown}; expected a mapping from names to values, as in batch: [1, 4]")
    return found


def _kind(value: object) -> str:
    return {list: "a list", str: "a text", bool: "true or false"}.get(type(value), type(value).__name__)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one object")
    return found


def _loader() -> type[yaml.SafeLoader]:
    """YAML's safe loader with true, false and null alone: YAML 1.1 reads off, 08 and 12:30 as something else."""
    import re

    import yaml

    class Plain(yaml.SafeLoader):
        """Plain values are texts."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the library's own form

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            """The mapping, if no name stands twice."""
            names = [self.construct_object(key, deep=True) for key, _ in node.value]
            for name in names:
                if names.count(name) > 1:
                    raise yaml.constructor.ConstructorError(None, None, f"{name!r} stands twice", node.start_mark)
            return super().construct_mapping(node, deep)

    Plain.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
    )
    Plain.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
    return Plain
