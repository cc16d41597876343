"""What a plugin implements: Draft, Policy, Controller, Backend.

Only what has no default must be written. A plugin is told what it is about through its factory's
``env`` (an ``Env``) and nothing else; the engine hands it messages and never its own state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from specdec.decoder import Cells, DecoderWeights
from specdec.messages import Context, Verdict, Window
from specdec.quantised import Quantised
from specdec.request import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specdec.model import ArenaModel
    from specdec.stats import Stats

Contract = Literal["exact", "distribution", "lossy"]


@dataclass(frozen=True)
class Env:
    """What a factory may know when it builds a plugin.

    ``target`` the model whose output counts; ``tokenizer`` its tokenizer; ``ops`` the backend;
    ``max_rows``, ``max_length`` (tokens) and ``max_window`` (slots) the engine's sizes; ``seed`` for
    whatever the plugin draws by itself; ``plain(request)`` the tokens plain decoding emits for it, for
    drafts that replay (computed once and remembered); ``draft(text)`` builds another registered draft for the
    same engine, for drafts that combine others.
    """

    target: ArenaModel
    tokenizer: PreTrainedTokenizerBase
    ops: Backend
    max_rows: int
    max_length: int
    max_window: int
    seed: int
    plain: Callable[[Request], tuple[int, ...]]
    draft: Callable[[str], Draft]


class Draft(ABC):
    """Proposes tokens. One method must be written: ``propose``.

    ``needs_hidden`` asks for the target's last hidden states; ``branches`` says that windows may be
    trees; ``looks_up`` that ``look_up`` answers for a row alone, on the host, so that a draft that combines
    others knows at once whether this one found something. All are declared, never guessed.

    The smallest draft, which repeats the pending token::

        class Repeat(Draft):
            def __init__(self, env: Env) -> None: ...

            def propose(self, context: Context) -> Window:
                k = int(context.max_proposals_host.max())
                return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)
    """

    needs_hidden: bool = False
    branches: bool = False
    looks_up: bool = False

    @abstractmethod
    def propose(self, context: Context) -> Window:
        """The next window. Called when at least one row may propose; never more than ``max_proposals`` a row."""

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """A request takes ``row``; ``prompt`` is every token of it so far. Time spent here is prefill."""

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """The request of ``row`` has ended; ``tokens`` is its prompt and output."""

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """The live request of ``source`` continues in ``row``. By default it is released and admitted anew."""
        self.release(source, tokens)
        self.admit(row, request, tokens)

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Hidden states [1, W, H] of prompt tokens [1, W] from position ``start``; only with ``needs_hidden``."""

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None) -> None:
        """After every step, asked or not: what was verified. ``hidden`` [B, W, H] only with ``needs_hidden``."""

    def look_up(self, context: Context, row: int) -> Sequence[Sequence[int]]:
        """Continuations of one row, likeliest first, within its room; asked only with ``looks_up``. None by default."""
        return ()

    def forget(self) -> None:
        """Forget what requests that have ended taught; called between runs, with no live row. Nothing by default."""

    def info(self) -> Mapping[str, int]:
        """Counters to add to the run's: ``draft_forwards`` and whatever else the draft counts."""
        return {}


class Policy(ABC):
    """Decides what is kept.

    ``coupled`` asks drafts to draw with the target's own noise; ``trees`` says that windows which
    branch are understood; ``raw`` asks for logits before any processor, for policies that look at how
    likely a proposal is: a greedy row's processed distribution is one-hot and says nothing.
    """

    coupled: bool = False
    trees: bool = False
    raw: bool = False

    @abstractmethod
    def contract(self, params: SamplingParams) -> Contract:
        """``exact``: plain decoding's tokens. ``distribution``: its distribution. ``lossy``: neither."""

    @abstractmethod
    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """The verdict over ``logits`` float32 [B, W, V]: row b, slot w is the distribution after node w.

        Processed, unless the policy is ``raw``; not to be written to.
        """


class Controller(ABC):
    """Decides how many tokens to propose: one K for the batch.

    ``deterministic`` is False for a controller that reads the clock: its counters need not repeat.
    ``k_option`` names the option of the factory that K sets, where the user gives one apart
    (``--specdec-k 8``); None: it takes none.
    """

    deterministic: bool = True
    k_option: str | None = None

    @property
    @abstractmethod
    def max_k(self) -> int:
        """The largest K that ``next_k`` may return; sizes the arena, so it does not change."""

    @abstractmethod
    def next_k(self, stats: Stats) -> int:
        """K for the next step, 0 … ``max_k``; ``stats`` is the run so far, read-only. The engine refuses another K."""


class Backend(ABC):
    """The tensor operations that have more than one implementation.

    One op has one name everywhere. The reference in plain torch defines what each computes; another
    backend subclasses it and overrides what it accelerates. Nothing here may read a device from the host.
    """

    name: str
    priority: int
    devices: tuple[str, ...] = ("cuda", "mps", "cpu")
    """Kinds of devices that it is meant for: where it cannot run on one of them, the user is told."""

    def missing(self) -> str | None:
        """A sentence saying why this backend cannot run here, or None when it can."""
        return None

    @abstractmethod
    def takes(self, op: str, *tensors: Tensor | Quantised) -> bool:
        """Whether ``op`` runs here on such tensors: asked of device, dtype and shape before every call.

        ``tensors`` are the op's tensors that decide, in the order of its signature: ``sample`` logits,
        ``accept`` probability, ``verify_prefix`` choices, ``rejection_sample`` distribution, ``kv_append`` keys and
        new_keys, ``kv_compact`` keys, ``tree_attention`` query and keys, ``linear`` x and weight,
        ``rms_norm`` x, ``rotary`` query and cos, ``silu_mul`` gate, ``decoder_layer`` x.
        """

    def ran(self) -> Counter[tuple[str, str]]:
        """Calls of each (op, backend) so far, where they are counted (``specdec.ops.Ops``)."""
        return Counter()

    @abstractmethod
    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """argmax over V of logits [..., V] plus the Gumbel noise of ``key`` [...] (None: no noise); int64 [...]."""

    @abstractmethod
    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """bool: uniform(key) < probability, element by element."""

    @abstractmethod
    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """The longest path whose every token is the target's choice [B, W] at its parent, and the choice after it."""

    @abstractmethod
    def rejection_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Exact chain rejection of proposals drawn from ``window.q`` under the target's distribution [B, W, V]; keys
        [B, W]."""

    @abstractmethod
    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """In place: [B, heads, W, head_dim] into ``cells`` [B, W] of [B, heads, capacity, head_dim]."""

    @abstractmethod
    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """In place: cells ``source`` [B, D] become cells ``target`` [B, D], all read before any is written."""

    @abstractmethod
    def tree_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        """Attention of [B, heads, W, d] over [B, heads_kv, L, d]; additive mask [B, 1, W, L]; [B, W, heads, d]."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor | Quantised, bias: Tensor | None) -> Tensor:
        """x Wᵀ + bias: x [..., K], weight [N, K] in x's dtype, in another float dtype or quantised; [..., N] like x."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """x / sqrt(mean(x²) + eps) · (offset + weight) over the last axis, computed in float32; x's shape and dtype."""

    @abstractmethod
    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary positions on queries and keys [B, heads, W, d], cos and sin [B or 1, W, d]: x cos + half(x) sin.

        ``half`` turns (a, b), the halves of a head, into (-b, a). Returns new tensors.
        """

    @abstractmethod
    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) · up, both [..., N] with any strides between rows; a new contiguous tensor."""

    @abstractmethod
    def decoder_layer(self, x: Tensor, layer: DecoderWeights, turn: tuple[Tensor, Tensor], at: Cells) -> Tensor:
        """A whole layer of Llama's kind over the arena, x [B, W, H] to the same: see ``specdec.decoder.decode``."""


OPS = tuple(sorted(Backend.__abstractmethods__ - {"takes"}))
"""The names of the ops."""

DraftFactory = Callable[..., Draft]
PolicyFactory = Callable[..., Policy]
ControllerFactory = Callable[..., Controller]
BackendFactory = Callable[..., Backend]
Factory = Callable[..., Any]
