"""How a published head is read: conventions on which engines differ, what was taken for each, and from what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from specdec import SpecdecError
from specdec.model import ArenaModel

H = TypeVar("H")
T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """The conventions of a head; None is "as the file says".

    ``layers``: the target's decoder layers whose *outputs* the head reads, from 0, in the order of its fusion.
    ``states``: which of its own states a head feeds back to itself, from before or after its last norm.
    ``final``: which state of the target's end a head reads, from before or after the target's last norm.
    ``ids``: whether ``d2t`` holds, for each token of a reduced vocabulary, its id in the target's vocabulary, or that
    id less its own place.
    ``window``: the tokens over which the head itself attends; 0 is all of them.
    ``embedding``: whose embeddings of tokens the head reads.
    ``order``: which part comes first where the embedding of a token and a state are joined.
    ``inside``: in a layer with a window, whether a slot of a block sees all of the block, or none behind itself.
    ``first``: whether a block's first slot, the pending token, proposes, or its token is given and nothing more.
    ``mask``: the token that stands at places that are not known yet.
    """

    layers: tuple[int, ...] | None = None
    states: Literal["before", "after"] | None = None
    final: Literal["before", "after"] | None = None
    ids: Literal["offset", "id"] | None = None
    window: int | None = None
    embedding: Literal["own", "target"] | None = None
    order: Literal["embedding", "state"] | None = None
    inside: Literal["all", "causal"] | None = None
    first: Literal["given", "proposes"] | None = None
    mask: int | None = None

    @staticmethod
    def of(**options: str | int) -> Reading:
        """The reading that options of a draft ask for; an empty text is "as the file says".

        Example: ``Reading.of(layers="2-15-27", ids="offset")``
        """
        asked: dict[str, object] = {}
        for name, option in options.items():
            text = str(option)  # what looks like a number comes as one
            if not text:
                continue
            if name == "layers":
                if not re.fullmatch(r"\d+(-\d+)*", text):
                    raise SpecdecError(f"layers is {text!r}; expected indices of decoder layers from 0, as 2-15-27")
                asked[name] = tuple(map(int, text.split("-")))
            elif name in NUMBERS:
                if not text.isdecimal():
                    raise SpecdecError(f"{name} is {text!r}; expected {NUMBERS[name]}")
                asked[name] = int(text)
            else:
                if text not in VALUES[name]:
                    raise SpecdecError(f"{name} is {text!r}; expected {' or '.join(VALUES[name])}")
                asked[name] = text
        return Reading(**asked)  # type: ignore[arg-type]  # each value was checked above


VALUES = {
    "states": ("before", "after"),
    "final": ("before", "after"),
    "ids": ("offset", "id"),
    "embedding": ("own", "target"),
    "order": ("embedding", "state"),
    "inside": ("all", "causal"),
    "first": ("given", "proposes"),
}
"""What the options of a reading may be that are words."""

NUMBERS = {"window": "a number of tokens, or 0 for all of them", "mask": "a token's id in the target's vocabulary"}
"""What the options of a reading are that are numbers."""


@dataclass(frozen=True)
class Choice:
    """What was taken for one convention, ``what``, and the key, the tensor, the rule or the option it is from.

    ``instead``: what the head itself says where an option says otherwise; None if that is the same, or nothing.
    """

    what: str
    value: object
    source: str
    instead: object = None

    def __str__(self) -> str:
        value = "-".join(map(str, self.value)) if isinstance(self.value, tuple) else str(self.value)
        return f"{self.what}={value} ({self.source})"


@dataclass(frozen=True)
class TargetSizes:
    """What a reader knows of a target: the size of its states, its tokens, and its decoder layers."""

    hidden: int
    vocabulary: int
    layers: int

    @staticmethod
    def of(target: ArenaModel) -> TargetSizes:
        """The sizes of a loaded target."""
        hidden = target.model.get_input_embeddings().weight.shape[1]
        return TargetSizes(hidden, target.vocabulary, len(target.layers))


@dataclass(frozen=True)
class Published(Generic[H]):
    """A head in our form, and how it was read: the names of form and dialect, the whole reading, and its choices.

    ``form`` is the name of the draft that runs it.
    """

    form: str
    dialect: str
    head: H
    reading: Reading
    choices: tuple[Choice, ...]


def settled(what: str, asked: T | None, stated: Sequence[tuple[T | None, str]], option: str) -> Choice:
    """The choice of a convention: what an option asks for, else the first of ``stated``, (value, source), that is one.

    SpecdecError if nothing decides it; ``option`` is the example that the error gives.

    Example: ``settled("layers", reading.layers, [(ids, "aux_layer_ids")], "eagle3(head=…, layers=2-15-27)")``
    """
    said = next(((value, source) for value, source in stated if value is not None), None)
    if asked is not None:
        return Choice(what, asked, f"option {what}", None if said is None or said[0] == asked else said[0])
    if said is not None:
        return Choice(what, *said)
    looked = ", ".join(source for _, source in stated)
    raise SpecdecError(f"nothing in the head decides its {what} (looked for: {looked}); name it: {option}")


def draft_ids(
    d2t: Tensor, t2d: Tensor | None, vocabulary: int, asked: str | None, option: str
) -> tuple[Tensor, Choice]:
    """The target's id of each token of a reduced vocabulary, int64 [D], and the choice of how ``d2t`` was read.

    ``d2t`` integers [D] are ids, or offsets: the id of token i less i. ``t2d`` bool [V] marks the target's tokens that
    the head knows, and decides if it is there. Otherwise that reading is taken whose ids are all different and below
    ``vocabulary``; SpecdecError if neither or both are.
    """
    found = {name: token_ids(d2t, name) for name in VALUES["ids"]}
    fits = {name: are_ids(ids, vocabulary) for name, ids in found.items()}
    if asked is not None:
        if not fits[asked]:
            raise SpecdecError(f"d2t read as {asked} gives ids that repeat or are not from 0 to {vocabulary - 1}")
        return found[asked], Choice("ids", asked, "option ids")
    if t2d is not None:
        known = t2d.nonzero()[:, 0]
        for name, ids in found.items():
            if torch.equal(ids.sort().values, known):
                return ids, Choice("ids", name, "the tokens of d2t are those of t2d")
        raise SpecdecError(
            f"d2t and t2d contradict one another: t2d marks {len(known)} tokens, and the {len(d2t)} of d2t are others, "
            f"read as offset or as id. If t2d is wrong, name the reading: {option}"
        )
    if fits["offset"] == fits["id"]:
        problem = "both as offset and as id" if fits["id"] else "neither as offset nor as id"
        raise SpecdecError(
            f"d2t [{len(d2t)}] can be read {problem} in a vocabulary of {vocabulary}, and there is no t2d that decides "
            f"it; name the reading: {option}"
        )
    name = "offset" if fits["offset"] else "id"
    return found[name], Choice("ids", name, "read otherwise, tokens of d2t repeat or lie outside of the vocabulary")


def token_ids(d2t: Tensor, way: str) -> Tensor:
    """What ``d2t`` integers [D] give for each token, int64 [D], read as "offset" or as "id"."""
    return d2t.long() + torch.arange(len(d2t)) if way == "offset" else d2t.long()


def are_ids(ids: Tensor, vocabulary: int) -> bool:
    """Whether all ids are different, and those of tokens below ``vocabulary``."""
    inside = bool(((ids >= 0) & (ids < vocabulary)).all())
    return inside and len(ids.unique()) == len(ids)
