"""A checkpoint of a published head: its settings and tensors, each taken by name, and nothing left over at the end."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, overload

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdec import SpecdecError

T = TypeVar("T", bound="bool | int | float | str")
D = TypeVar("D")

Holds = Literal["floats", "integers", "flags"]
"""What a tensor may hold: float16, bfloat16, float32 or float64; int32 or int64; bool."""

DTYPES: dict[Holds, tuple[torch.dtype, ...]] = {
    "floats": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    "integers": (torch.int32, torch.int64),
    "flags": (torch.bool,),
}
PICKLES = (".bin", ".pt", ".pth")
"""Endings of files that torch writes as pickles."""

_REQUIRED = object()
_SHOWN = 8  # names of an error's list


class Settings:
    """The keys of a config, or of an object inside one. Each must be taken or be known not to matter.

    A key whose value is null counts as absent. Every refusal is a SpecdecError that names the key and the file.
    """

    def __init__(self, values: dict[str, Any], path: str, within: str = "") -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self._path, self._within = path, within
        self._left, self._inside = set(self._values), dict[str, Settings]()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def peek(self, key: str) -> object:
        """The value of a key, which stays untaken; None if the key is absent."""
        return self._values.get(key)

    @overload
    def take(self, key: str, kind: type[T]) -> T: ...
    @overload
    def take(self, key: str, kind: type[T], default: D) -> T | D: ...
    def take(self, key: str, kind: type[Any], default: object = _REQUIRED) -> object:
        """The value of a key, of type ``kind``; ``default`` if the key is absent, and without one it must be there.

        An integer counts as a float, and a bool never as a number.

        Example: ``settings.take("draft_vocab_size", int)``
        """
        if key not in self._values:
            if default is _REQUIRED:
                raise SpecdecError(f"{self._path} has no {self._within}{key}; expected {kind.__name__}")
            return default
        value = self._values[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self._wrong(key, value, kind.__name__)
        self._left.discard(key)
        return value

    def integers(self, key: str) -> tuple[int, ...] | None:
        """The value of a key that holds a list of integers; None if the key is absent."""
        return self._listed(key, int, "a list of integers")

    def words(self, key: str) -> tuple[str, ...] | None:
        """The value of a key that holds a list of words; None if the key is absent."""
        return self._listed(key, str, "a list of words")

    def inside(self, key: str) -> Settings:
        """The settings inside a key, which are followed like these; empty if the key is absent."""
        if key not in self._inside:
            value = self._values.get(key, {})
            if not isinstance(value, dict):
                raise self._wrong(key, value, "an object")
            self._left.discard(key)
            self._inside[key] = Settings(value, self._path, f"{self._within}{key}.")
        return self._inside[key]

    def fixed(self, key: str, *values: object) -> None:
        """Take a key that may have no value but ``values``, the only ones that can be read."""
        if key in self._values and not any(self._values[key] == value for value in values):
            raise self._wrong(key, self._values[key], " or ".join(map(repr, values)) + ", all that can be read")
        self._left.discard(key)

    def harmless(self, *keys: str) -> None:
        """Take keys that say nothing about what the network computes."""
        self._left.difference_update(keys)

    def left(self) -> list[str]:
        """The keys that nobody took, those inside other keys included, by their whole names."""
        inside = [key for settings in self._inside.values() for key in settings.left()]
        return sorted([*(self._within + key for key in self._left), *inside])

    def _listed(self, key: str, kind: type[T], expected: str) -> tuple[T, ...] | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(one) is kind for one in value):
            raise self._wrong(key, value, expected)
        self._left.discard(key)
        return tuple(value)

    def _wrong(self, key: str, value: object, expected: str) -> SpecdecError:
        got = f"{value!r} ({type(value).__name__})"
        return SpecdecError(f"{self._within}{key} in {self._path} is {got}; expected {expected}")


class Tensors:
    """The tensors of a checkpoint, each read when it is taken. Each must be taken or be known not to matter.

    ``shapes`` are their sizes by name, ``load`` reads one. Every refusal is a SpecdecError that names the tensor and
    the file.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], load: Callable[[str], Tensor], path: str) -> None:
        self.shapes, self._load, self._path = shapes, load, path
        self._left = set(shapes)

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    @overload
    def take(
        self, name: str, shape: tuple[int, ...], holds: Holds = "floats", *, optional: Literal[False] = False
    ) -> Tensor: ...
    @overload
    def take(self, name: str, shape: tuple[int, ...], holds: Holds = "floats", *, optional: bool) -> Tensor | None: ...
    def take(
        self, name: str, shape: tuple[int, ...], holds: Holds = "floats", *, optional: bool = False
    ) -> Tensor | None:
        """A tensor of this shape, in its own dtype; None if it is absent and ``optional``.

        Example: ``tensors.take("fc.weight", (576, 1728))``
        """
        if name not in self.shapes:
            if optional:
                return None
            raise SpecdecError(f"{self._path} has no tensor {name}, {_sizes(shape)}; it has {_some(self.shapes)}")
        got = self.shapes[name]
        if got != shape:
            transposed = " (it is transposed)" if got == shape[::-1] else ""
            raise SpecdecError(f"{name} in {self._path} is {_sizes(got)}{transposed}; expected {_sizes(shape)}")
        tensor = self._load(name)
        if tensor.dtype not in DTYPES[holds]:
            expected = " or ".join(_dtype(one) for one in DTYPES[holds])
            raise SpecdecError(f"{name} in {self._path} is {_dtype(tensor.dtype)}; expected {expected}")
        if holds == "floats" and not bool(tensor.isfinite().all()):
            raise SpecdecError(f"{name} in {self._path} holds values that are no finite numbers; it was never filled")
        self._left.discard(name)
        return tensor

    def harmless(self, *patterns: str) -> None:
        """Take tensors that the network does not read, by names or patterns: ``*.rotary_emb.inv_freq``."""
        self._left = {name for name in self._left if not any(fnmatchcase(name, pattern) for pattern in patterns)}

    def left(self) -> list[str]:
        """The names of the tensors that nobody took."""
        return sorted(self._left)


class Checkpoint:
    """The settings and tensors of one published head; ``done`` refuses it unless all of them were taken.

    Example::

        checkpoint = Checkpoint.open("path/to/head")
        vocabulary = checkpoint.settings.take("draft_vocab_size", int)
        head = checkpoint.tensors.take("lm_head.weight", (vocabulary, 576))
        checkpoint.done()
    """

    def __init__(self, path: str, settings: Settings, tensors: Tensors) -> None:
        self.path, self.settings, self.tensors = path, settings, tensors

    @staticmethod
    def open(path: str | Path, pickle: bool = False) -> Checkpoint:
        """Open a folder with a config.json and .safetensors files, or one such file with a config.json beside it.

        With ``pickle`` a file of torch (.bin, .pt, .pth) is read too, its weights alone. Code of a checkpoint is never
        run. SpecdecError for files that are absent, damaged or in contradiction with one another.
        """
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        if not path.exists():
            raise SpecdecError(f"there is no head {str(path)!r}; name a folder with a config.json, or a weights file")
        if not (folder / "config.json").is_file():
            raise SpecdecError(f"{str(folder)!r} has no config.json, which says how the weights of a head are read")
        settings = Settings(_object(folder / "config.json"), str(folder / "config.json"))
        files = _weights(path) if path.is_dir() else [path]
        pickles = [file for file in files if file.suffix != ".safetensors"]
        if not pickles:
            return Checkpoint(str(path), settings, _lazy(files, path))
        if not pickle:
            raise SpecdecError(
                f"{pickles[0].name} in {str(folder)!r} is a pickle, which is read only on demand: say pickle=true, and "
                "its weights alone are read; or convert it to .safetensors"
            )
        loaded = _unpickled(pickles)
        shapes = {name: tuple(tensor.shape) for name, tensor in loaded.items()}
        return Checkpoint(str(path), settings, Tensors(shapes, loaded.__getitem__, str(path)))

    def done(self) -> None:
        """Raise SpecdecError if a setting or a tensor was not taken: the network would not be the published one."""
        parts = [
            f"{kind} that nobody reads: {_some(left)}"
            for kind, left in (("settings", self.settings.left()), ("tensors", self.tensors.left()))
            if left
        ]
        if parts:
            raise SpecdecError(
                f"{self.path} has {'; and '.join(parts)}. The head would compute something else without them: it is of "
                "another form, or of a newer version of this one"
            )


def _object(path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise SpecdecError(f"{path} has the key {max(names, key=names.count)!r} twice in one object")
        return found

    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except (OSError, ValueError) as error:
        raise SpecdecError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise SpecdecError(f"{path} holds {type(value).__name__}; expected an object of settings")
    return value


def _weights(folder: Path) -> list[Path]:
    """The files with weights in a folder, by its index if it has one."""
    indices = sorted(folder.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        raise SpecdecError(
            f"{str(folder)!r} has {len(indices)} indices: {_some(p.name for p in indices)}; expected one"
        )
    if not indices:
        found = sorted(folder.glob("*.safetensors"))
        found = found or sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
        if not found:
            raise SpecdecError(f"{str(folder)!r} has no .safetensors file; expected the weights of a head")
        return found
    places = _object(indices[0]).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise SpecdecError(f"{indices[0]} has no weight_map from names of tensors to names of files")
    files = [folder / name for name in sorted(set(places.values()))]
    for file in files:
        if not file.is_file() or file.parent != folder:
            raise SpecdecError(f"{indices[0]} names {file.name!r}, which is no file in {str(folder)!r}")
        if strange := set(_shapes(file)) ^ {name for name, place in places.items() if place == file.name}:
            raise SpecdecError(f"{indices[0]} and {file.name} do not hold the same tensors: {_some(strange)}")
    return files


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SpecdecError(f"{file} cannot be read: {error}; expected a .safetensors file") from error


def _lazy(files: list[Path], path: Path) -> Tensors:
    places, shapes = dict[str, Path](), dict[str, tuple[int, ...]]()
    for file in files:
        held = _shapes(file)
        if twice := sorted(held.keys() & shapes.keys()):
            raise SpecdecError(f"{places[twice[0]].name} and {file.name} in {path} both hold {_some(twice)}")
        shapes.update(held)
        places.update(dict.fromkeys(held, file))

    def load(name: str) -> Tensor:
        with safe_open(places[name], framework="pt") as opened:
            return cast(Tensor, opened.get_tensor(name))

    return Tensors(shapes, load, str(path))


def _unpickled(files: list[Path]) -> dict[str, Tensor]:
    if len(files) > 1:
        raise SpecdecError(f"{files[0].parent} has several pickles, {_some(p.name for p in files)}; name one of them")
    try:
        held = torch.load(files[0], map_location="cpu", weights_only=True)
    except (OSError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise SpecdecError(f"{files[0]} cannot be read as weights alone: {str(error).splitlines()[0]}") from error
    if not isinstance(held, dict) or not all(isinstance(tensor, Tensor) for tensor in held.values()):
        raise SpecdecError(f"{files[0]} holds something else than a dictionary of tensors")
    return held


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more or "none"


def _sizes(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
