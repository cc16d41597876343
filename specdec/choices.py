"""The names of devices, dtypes and models that users choose from, checked without torch."""

from __future__ import annotations

import re
from pathlib import Path

from specdec.errors import SpecdecError, unknown

DEVICES = ("cuda", "mps", "cpu")
"""Kinds of devices, the fastest first."""

FLOATS = ("float32", "bfloat16", "float16", "float64")
BITS = {"int8": 8, "int4": 4}
"""Dtypes: those that torch multiplies in, and the bits of those that weights alone are rounded to."""

MODELS = ("tiny", "smollm2-135m", "shape:<config>", "<folder>", "<file>.gguf", "<hub id>")


def check_device(name: str) -> None:
    """Raise SpecdecError unless a name is ``auto`` or a kind of device, with or without a number: ``cuda:1``."""
    if name != "auto" and name.partition(":")[0] not in DEVICES:
        raise unknown("device", name, (*DEVICES, "auto"))


def check_dtype(name: str) -> None:
    """Raise SpecdecError for an unknown dtype."""
    if name not in (*FLOATS, *BITS, "auto"):
        hint = "Autocast (amp) keeps float32 weights: name the dtype of the weights" if name == "amp" else ""
        raise unknown("dtype", name, (*FLOATS, *BITS, "auto"), hint)


def check_model(name: str) -> None:
    """Raise SpecdecError for a name that is none of ``MODELS``, and for a folder or file that is not there or holds no
    model. A hub id is not looked up."""
    path = Path(name)
    if name in ("tiny", "smollm2-135m") or name.startswith("shape:"):
        return
    if is_gguf(name):
        if not path.is_file():
            raise SpecdecError(f"there is no GGUF file {name!r}; give the path of one, or another target")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise SpecdecError(f"the folder {name!r} holds no model: expected a config.json in it")
    elif not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) or path.exists():
        raise unknown("model", name, MODELS, "A hub id has the form owner/name; a folder must exist.")


def is_gguf(name: str) -> bool:
    """Whether a target's name is that of a GGUF file, by its ending."""
    return name.lower().endswith(".gguf")
