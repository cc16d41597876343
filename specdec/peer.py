"""Peers: other engines that decode the same requests from the same weights, as rows beside ours.

A plugin implements ``Peer`` and registers it with the hook ``specdec_register_engines``. The suite hands a peer
requests and reads tokens and times back; nothing else of the other engine is seen.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.changes import Interface
from specdec.draft_counts import DraftCounts
from specdec.errors import SpecdecError
from specdec.request import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class PeerEnv:
    """The information that a factory gets to build a peer.

    ``target``: the target's name, as ``--specdec-target`` has it; ``model()``: the target as a transformers model in
    float on ``device`` in ``dtype``, not changed by our engine and shared by the peers that ask for it, so that weights
    are in memory once; ``tokenizer``: the target's; ``max_length``: most tokens of a request, prompt and output
    together; ``max_rows``: most requests of one call of ``generate``; ``threads``: of the host, that our engine uses.
    """

    target: str
    device: torch.device
    dtype: torch.dtype
    max_length: int
    max_rows: int
    threads: int
    model: Callable[[], PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase

    def gguf(self) -> Path:
        """The target's GGUF file. Raises SpecdecError, which says what to do, if it has none."""
        from specdec.catalog import gguf_file  # transformers takes seconds to import, and a registry needs none of it

        return gguf_file(self.target)

    def files(self) -> str:
        """What another engine loads the target from: a folder, a GGUF file or a hub id.

        Raises SpecdecError for a target that is made in memory.
        """
        from specdec.catalog import files_of

        return files_of(self.target)


@dataclass(frozen=True)
class Generation:
    """What a peer made of one request.

    ``tokens``: the output, its end token included; ``emissions``: for tokens that arrived together, the seconds since
    ``generate`` was called and their number, in order; ``seconds``: until the output was whole, at least the last
    emission's; ``forwards``: of the target after the one that gave the first emission, None if the engine does not say;
    ``warm``: the prompt may have been in a cache of the engine's, so that nothing is known of the time to read it.
    ``counts``: the engine's own, of its proposals for this request; None if it does not say, or proposes nothing.

    Example: ``Generation((5, 6, 7), ((0.2, 1), (0.3, 2)), 0.3, 1)``
    """

    tokens: tuple[int, ...]
    emissions: tuple[tuple[float, int], ...]
    seconds: float
    forwards: int | None = None
    warm: bool = False
    counts: DraftCounts | None = None


class Peer(Interface, ABC):
    """Another engine on the target's weights. Two methods must be written: ``generate`` and ``described``.

    ``factory(env, **options)`` builds a peer, and loads what it needs: it is called once for each setting, outside all
    timing. Two attributes are read before anything is loaded, so the class sets them: ``batches`` (``generate`` decodes
    several requests at once) and ``needs_gguf`` (it reads the target's GGUF file). ``reference``: for one that
    speculates, the name of the peer of the same engine that decodes plainly; None otherwise.

    ``own_arithmetic``: its kernels or its format of the weights round in a way of their own, so that its tokens are
    compared with plain's and no equality is promised. ``set_up_seconds``: what was loaded or compiled outside timed
    runs, by its name. K is the option ``k`` of the factory, if it has one.
    """

    batches: bool = False
    needs_gguf: bool = False
    reference: str | None = None
    own_arithmetic: bool = False
    set_up_seconds: Mapping[str, float] = {}

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Raise SpecdecError for a value of an option that cannot be; called with all options before anything loads."""

    @classmethod
    def missing(cls) -> str | None:
        """Return why the engine cannot run on this machine and what to do, for example a package; None if it can."""
        return None

    def check_params(self, params: SamplingParams) -> None:
        """Raise SpecdecError if the engine lacks a parameter that ``params`` use; called before anything is timed."""

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode requests, one unless the class ``batches``, and time each from this call; in request order.

        Nothing is kept of a request: the same prompt later has no shorter prefill, or the generation is ``warm``.
        """

    def warm_up(self, first: Request) -> None:
        """Load or compile what requests like ``first`` need, before anything is timed."""

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        """Decode again and return the raw logits, float32 [V], from which output token ``index`` was drawn.

        None if the output ends before, or if the engine gives no logits: a difference from plain is then a failure,
        unless the peer has ``own_arithmetic``.
        """
        return None

    def conditions(self) -> dict[str, str]:
        """What two arms must have in common for their times to be compared: ``dtype`` and ``compile``."""
        return {}

    @abstractmethod
    def described(self) -> str:
        """One line for the card: the engine's version and all that decides its speed."""

    def close(self) -> None:
        """Free the engine's memory. ``generate`` raises SpecdecError afterwards; a second ``close`` does nothing."""


PeerFactory = Callable[..., Peer]


def absent(module: str, extra: str) -> str | None:
    """Return how to install an optional package that is not there; None if it is. Nothing is imported.

    Example: ``absent("llama_cpp", "llama-cpp")``, for ``Peer.missing``
    """
    if module in sys.modules or find_spec(module) is not None:
        return None
    return f"the package {module} is not installed; pip install 'specdec-bench[{extra}]'"


def require_whole(peer: str, **values: object) -> None:
    """Raise SpecdecError for the first value that is not a whole number of at least 1.

    Example: ``require_whole("llama_cpp_prompt_lookup", k=0)`` names ``k``, 0 and the peer.
    """
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise SpecdecError(f"{name} of the peer {peer} is {value!r}; expected a whole number, 1 or more")


def refuse_params(peer: str, params: SamplingParams, known: Sequence[str]) -> None:
    """Raise SpecdecError if ``params`` set anything, beside lengths, ends and the seed, that ``known`` does not list.

    Example: ``refuse_params("llama_cpp", params, ("temperature", "top_k", "top_p", "min_p"))``
    """
    usual = SamplingParams()
    given = {name: value for name, value in vars(params).items() if value != getattr(usual, name)}
    lacking = sorted(given.keys() - {"max_new_tokens", "eos", "seed", *known})
    if lacking:
        raise SpecdecError(
            f"the peer {peer} cannot decode with {', '.join(lacking)}; it takes {', '.join(known)}. Leave the option "
            "out, or the peer (--specdec-peer)"
        )
