"""What is compared: the setting that arms share, an arm, and the name of a peer. All are plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from specdec.errors import SpecdecError, unknown
from specdec.lists import split_list
from specdec.request import SamplingParams

if TYPE_CHECKING:
    from specdec.registry import Registry


@dataclass(frozen=True)
class PeerName:
    """A peer as ``parse_peer`` writes it; rows that were measured elsewhere are shown without their engine at hand.

    Example: ``PeerName("transformers_prompt_lookup(k=4)").label`` is ``transformers prompt lookup``.
    """

    text: str

    @property
    def name(self) -> str:
        """The name that is registered."""
        return self.text.partition("(")[0]

    @property
    def label(self) -> str:
        """The name in words, ``transformers prompt lookup``, with that which an option ``name`` gives it."""
        words = self.name.replace("_", " ")
        return f"{words} {self.given}" if self.given else words

    @property
    def own_plain(self) -> str | None:
        """The value of an option ``plain``, the ``name`` of the peer that is this one without speculation."""
        return self._option("plain")

    @property
    def given(self) -> str | None:
        """The value of an option ``name``, by which a table shows the peer; None without one."""
        return self._option("name")

    def _option(self, name: str) -> str | None:
        """The value of an option that is a name; None without one."""
        found = [part for part in split_list(self.options) if part.startswith(f"{name}=")]
        return found[0].removeprefix(f"{name}=").strip("'\"") if found else None

    @property
    def brief(self) -> str:
        """``options`` for a column of a table: nothing for a peer that has a name of its own, as servers have."""
        return "" if self.given else self.options

    @property
    def options(self) -> str:
        """K, and every option that differs from its default: ``k=10``; empty if there is none."""
        return self.text.partition("(")[2].removesuffix(")")

    @property
    def k(self) -> int | None:
        """K, the proposals of a step; None for a peer that proposes nothing."""
        found = [part for part in split_list(self.options) if re.fullmatch(r"k=\d+", part)]
        return int(found[0].removeprefix("k=")) if found else None


SAMPLED = tuple(
    one.name for one in fields(SamplingParams) if one.type in ("float", "int") and one.name != "min_new_tokens"
)
"""Fields of ``SamplingParams`` that a setting names: numbers, each of which is an option of the main job."""


@dataclass(frozen=True)
class Setting:
    """Values that all arms of one comparison share. Arms of different settings are never compared.

    ``sampling``: how requests are decoded, without the end tokens, which are the target's. Whatever names, keys or
    writes a setting does it by ``values``, so that no field is left out.

    Example: ``Setting("tiny", "auto", "cpu", "float32", 1, "chat", SamplingParams(temperature=0.8))``
    """

    target: str
    backend: str
    device: str
    dtype: str
    batch: int
    workload: str
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Setting:
        """Return the setting of ``values``. TypeError for an unknown field or one that is missing, SpecdecError for a
        value out of range."""
        sampling = SamplingParams(**{name: values[name] for name in SAMPLED if name in values})
        return cls(**{name: value for name, value in values.items() if name not in SAMPLED}, sampling=sampling)

    @property
    def values(self) -> dict[str, Any]:
        """Every field by its name, those of ``sampling`` among them, as plain data."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "sampling"}
        return own | {name: getattr(self.sampling, name) for name in SAMPLED}

    def replaced(self, **values: Any) -> Setting:
        """Return this setting with other ``values``. Raises what ``of`` raises."""
        return Setting.of({**self.values, **values})

    @property
    def without_workload(self) -> Setting:
        """This setting without its workload; models and engines are shared by this key."""
        return replace(self, workload="")

    @property
    def unusual(self) -> dict[str, Any]:
        """Every value that is not the usual one, by its name, without target and workload, which every name has.

        The seed is one for a whole run, and no part of names.
        """
        named = ("target", "workload", "seed")
        return {name: got for name, got in self.values.items() if name not in named and got != USUAL[name]}

    @property
    def odd(self) -> list[str]:
        """``unusual`` as parts of a name: ``batch4``."""
        return [f"{name}{got}" for name, got in self.unusual.items()]

    @property
    def id(self) -> str:
        """The setting's part of its rows' names; unique within a matrix."""
        return "-".join([self.target, self.workload, *self.odd])

    def params(self, eos: tuple[int, ...]) -> SamplingParams:
        """Return the sampling parameters of the setting's requests, which end at the tokens ``eos``."""
        return replace(self.sampling, eos=eos)


USUAL = Setting("", "auto", "auto", "auto", 1, "").values
"""Values that no name says."""


@dataclass(frozen=True)
class Arm:
    """One row of a comparison: a strategy of the engine, plain decoding, or a peer (another library).

    ``controller`` is written without its K, which is ``k``; ``k`` is None for a controller that takes no K.
    ``name``: the user's short name. ``again``: plain decoding a second time; its speed relative to plain's is what the
    machine's noise makes of 1. ``eager``: plain decoding whose steps are not recorded, where plain's are; plain's speed
    relative to its is what recording is worth.
    """

    setting: Setting
    draft: str | None = None
    policy: str = "match"
    controller: str = "fixed"
    k: int | None = 0
    peer: str | None = None
    again: bool = False
    eager: bool = False
    name: str | None = field(default=None, compare=False)

    @property
    def plain(self) -> bool:
        """Whether this is the engine without proposals, and not once more (``again``, ``eager``)."""
        return self.draft is None and not self.control

    @property
    def control(self) -> bool:
        """Whether this is an outside reference, or plain decoding once more: no strategy, and not the baseline."""
        return self.peer is not None or self.again or self.eager

    @property
    def label(self) -> str:
        """The row's name in tables: ``plain``, ``ngram``, ``transformers prompt lookup`` …"""
        once_more = "plain again" if self.again else "plain eager" if self.eager else None
        ours = once_more or self.name or self.draft or "plain"
        return PeerName(self.peer).label if self.peer else ours

    @property
    def strategy(self) -> str:
        """The arm as --specdec-arm or --specdec-peer writes it, ``ngram/match/fixed/4``; or its label."""
        if self.draft is None:
            return self.peer or self.label
        return "/".join([self.draft, self.policy, self.controller, *([] if self.k is None else [str(self.k)])])

    def check(self, registry: Registry) -> None:
        """Raise SpecdecError if no draft, policy or controller has such a name, or takes such options."""
        for kind, text in (("draft", self.draft), ("policy", self.policy), ("controller", self.controller)):
            if text is not None:
                registry.parse(kind, text)

    @property
    def id(self) -> str:
        """The arm's part of a test id; unique within a matrix."""
        strategy = [self.label.replace(" ", "-")]
        if self.peer is not None:
            # -k cannot select by an equals sign.
            strategy += [part.replace("=", "") for part in PeerName(self.peer).options.split(", ") if part]
        if self.draft is not None:
            strategy += [self.policy, *([] if self.k is None else [f"k{self.k}"])]
            strategy += [self.controller] if self.controller != "fixed" else []
        setting = self.setting
        return "-".join([setting.target, setting.workload, *strategy, *setting.odd]).replace("/", ":")


def arm_named(text: str, arms: Sequence[Arm]) -> Arm:
    """Return the arm that ``text`` names, by its strategy or its label; of several workloads', the first.

    Raises SpecdecError if no arm has that name, or several strategies have it.
    """
    exact = [arm for arm in arms if arm.strategy == text]
    found = dict[str, Arm]()
    for arm in exact or arms:
        if text in (arm.label, arm.strategy):
            found.setdefault(arm.strategy, arm)
    if len(found) == 1:
        return next(iter(found.values()))
    choices = list(dict.fromkeys(arm.strategy for arm in arms))
    if found:
        raise SpecdecError(f"--specdec-baseline {text!r} names {len(found)} arms; name one of {', '.join(found)}")
    raise unknown("arm", text, choices, "--specdec-baseline names an arm of every setting that is measured.")
