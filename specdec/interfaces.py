"""The interfaces that plugins implement: Draft, Policy, Controller, Backend.

Only abstract methods must be written. A plugin learns about the engine only from its factory's ``env`` (an
``Env``); the engine passes messages to it and never its own state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from specdec.changes import Interface
from specdec.decoder import Cells, DecoderWeights
from specdec.lengths import Price
from specdec.messages import Context, Verdict, Window
from specdec.packed import Weight
from specdec.processors import StackedParams
from specdec.request import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specdec.calibration import Calibration
    from specdec.model import ArenaModel
    from specdec.runtime import Runtime
    from specdec.stats import Stats

Contract = Literal["exact", "distribution", "lossy"]


@dataclass(frozen=True)
class Env:
    """The information that a factory gets to build a plugin.

    ``target``: the target model; ``tokenizer``: its tokenizer; ``ops``: the backend; ``max_rows``, ``max_length``
    (tokens) and ``max_window`` (slots): the engine's sizes; ``seed``: for the plugin's own random numbers;
    ``plain(request)``: the tokens that plain decoding emits for a request, for drafts that replay (computed once
    and remembered; the engine counts the calls in ``Engine.replayed``, because the speed of a replay means nothing);
    ``draft(text)``: builds another registered draft for the same engine, for drafts that combine others;
    ``runtime``: runs parts of a draft op by op, or records and replays them, as the engine's own (``specdec.runtime``).
    ``calibration``: seconds of the target's forward, measured where they are asked for and shared by all engines over
    it. ``confidence``: whether the controller reads a draft's confidence (``Window.confidence``).
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
    runtime: Runtime
    calibration: Calibration
    confidence: bool = False


class Draft(Interface, ABC):
    """Proposes tokens. One method must be written: ``propose``.

    ``needs_hidden`` asks for the target's last hidden states, after the final norm, and ``hidden_layers`` for the
    outputs of decoder layers, by their indices from 0 in ascending order; both are constant once the draft is built.
    ``needs_logits`` asks for the logits of every verified slot, ``Verdict.logits``. ``branches`` says that windows may
    be trees; ``looks_up`` says that ``look_up`` answers for a single row, on the host, so that a draft that combines
    others knows at once whether this draft found something; ``extends`` says that ``extend`` goes on behind another
    draft's chains, on the device; ``heeds_price`` says that it knows how likely each proposal is and makes those alone
    that are worth their slots (``Context.price``), so that no controller need limit their number: all of them certain
    (``Window.q`` is None), and chains whose ``chances`` it tells if it ``looks_up``; under a policy that is not coupled
    only drafts that look up get a price; ``learns`` says that ended requests change its proposals until ``forget``.
    ``small_ops`` says that the torch ops of all its methods are small, so that one thread runs them at least as fast as
    several, whose waiting would slow down the target on a CPU (``specdec.threads``); other drafts keep all of torch's
    threads. ``weight_bytes`` is the number of bytes of weights that one of its forwards reads, as ``info`` counts them
    in ``draft_forwards``; a forward that runs the target's head reads that head too. Every draft must declare them
    correctly.

    The smallest draft, which repeats the pending token::

        class Repeat(Draft):
            def __init__(self, env: Env) -> None: ...

            def propose(self, context: Context) -> Window:
                k = int(context.max_proposals_host.max())
                return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)
    """

    needs_hidden: bool = False
    hidden_layers: tuple[int, ...] = ()
    needs_logits: bool = False
    branches: bool = False
    looks_up: bool = False
    extends: bool = False
    heeds_price: bool = False
    learns: bool = False
    small_ops: bool = False
    weight_bytes: int = 0

    @abstractmethod
    def propose(self, context: Context) -> Window:
        """The next window, with at most ``max_proposals`` proposals a row; called if at least one row may propose."""

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """A request starts in ``row``; ``prompt`` holds all its tokens so far. Time spent here counts as prefill."""

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """The request of ``row`` has ended; ``tokens`` is its prompt and output."""

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """The live request of ``source`` continues in ``row``. By default it is released and admitted again."""
        self.release(source, tokens)
        self.admit(row, request, tokens)

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """What the draft needs to go on with the text ``tokens`` of ``row`` in a later request; called before its
        ``release`` if the request has ``keep``. Default: None, nothing."""
        return None

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        """A request starts in ``row`` whose first ``first`` tokens are also the first of a text that ``keep`` returned
        ``kept`` for, not None. The target does not read those again: ``prefilled`` begins at ``first``. Called in place
        of ``admit``, which is the default.
        """
        self.admit(row, request, prompt)

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Hidden states of prompt tokens [1, W] from position ``start``; called only if the draft asks for some.

        ``hidden`` is [1, W, H] with ``needs_hidden`` alone. With ``hidden_layers`` it is [1, W, n, H]: the layers'
        outputs in their order, then, with ``needs_hidden`` too, the states after the final norm.
        """

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """The verified window, after every step, also without ``propose``.

        ``hidden`` are the states of its slots, [B, W, H] or [B, W, n, H] as in ``prefilled``, or None. A rejected
        slot's are those of a text that is not the row's: ``Verdict.last`` and ``Verdict.path`` name the accepted ones.
        ``own``: whether the window is what this draft's ``propose`` returned in this step. It is not if the draft was
        not asked, or if a draft that combines others took another one's proposals for some row.

        The next step may overwrite the tensors: what is needed longer is copied.
        """

    def look_up(self, context: Context, row: int) -> Sequence[Sequence[int]]:
        """Continuations of one row, likeliest first, within its room; called only with ``looks_up``. Default: none.

        Whatever they cost: a price decides about those of all rows together (``Price.counts``).
        """
        return ()

    def chances(self, row: int) -> Sequence[float]:
        """Of each token of the continuation that ``look_up`` gave last of this row, the chance that it is kept with all
        before it; of a draft that does not look up, of each depth of what it would propose. Called only with
        ``heeds_price``, in a step that has a price. Default: none."""
        return ()

    def extend(self, context: Context, window: Window, most: int) -> tuple[Tensor, Tensor]:
        """Tokens int64 [B, ``most``] that follow each row's text and chain of ``window``, and how many, int64 [B].

        Called only with ``extends``, once a step, if a draft that combines others lets this one go on behind another's
        proposals. These are on the device alone: the context's host copies do not have them, and nothing of them is to
        be learned before they are verified. Default: none.
        """
        return window.tokens.new_zeros(window.tokens.shape[0], most), torch.zeros_like(window.width)

    def forget(self) -> None:
        """Delete everything learned from ended requests; called between runs, without live rows. Default: no action."""

    def info(self) -> Mapping[str, int]:
        """Counters to add to the run's counters: ``draft_forwards`` (prefill excluded) and any others of the draft.

        Read in every step.
        """
        return {}


class Policy(Interface, ABC):
    """Decides which proposals are accepted.

    ``coupled`` asks drafts to draw with the target's own noise; ``trees`` says that the policy accepts windows that
    branch; ``raw`` asks for logits before any processor, for policies that use the probability of a proposal: a
    greedy row's processed distribution is one-hot and has no such information. ``chooses`` says that the policy reads
    logits through ``context.choose`` alone: where all rows are greedy, it then gets those before temperature and
    filters, which do not change the likeliest token.
    """

    coupled: bool = False
    trees: bool = False
    raw: bool = False
    chooses: bool = False

    @abstractmethod
    def contract(self, params: SamplingParams) -> Contract:
        """``exact``: the tokens of plain decoding. ``distribution``: only their distribution. ``lossy``: neither."""

    @abstractmethod
    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """The verdict over ``logits`` float32 [B, W, V]: row b, slot w is the distribution after node w.

        The logits are processed unless the policy is ``raw`` or ``chooses``; they must not be changed. On CUDA the call
        is recorded once for each shape and replayed: the verdict must follow from tensors, not from numbers that the
        policy counts.
        """


class Controller(Interface, ABC):
    """Decides how many tokens to propose: one K for the batch, or one for each row.

    ``deterministic`` is False for a controller that reads the clock: its counters need not repeat.
    ``k_option`` names the factory's option that K sets if the user gives K separately (``--specdec-k 8``); None: the
    controller takes no K. ``reads_confidence`` says that it reads the confidence of rows, which drafts that have to
    compute one then do (``Env.confidence``). ``slot_price``: what the slots of the next step cost, as in
    ``Context.price``, or None; read after ``next_k``, and only where ``Stats.heeds_price``.
    """

    deterministic: bool = True
    k_option: str | None = None
    reads_confidence: bool = False
    slot_price: Price | None = None

    @property
    @abstractmethod
    def max_k(self) -> int:
        """The largest K that ``next_k`` may return; constant, because the arena is allocated for it."""

    @abstractmethod
    def next_k(self, stats: Stats) -> int | Sequence[int]:
        """K for the next step, 0 … ``max_k``: one number, or one for each of ``stats.rows`` in their order.

        ``stats`` is the run so far, read-only. A window is as wide as its widest row, and each row has as many
        proposals as its own K and its room allow. The engine refuses any other K, or another number of them.
        """

    def forget(self) -> None:
        """Delete everything learned from earlier requests; called before a unit is measured, without live rows.

        The controller is then as when it was built. Default: no action.
        """


class Backend(Interface, ABC):
    """The tensor operations (ops) that have more than one implementation.

    An op has the same name everywhere. The reference in plain torch defines the result of each op; another backend
    subclasses it and overrides the ops that it accelerates. No op may read a device from the host.
    """

    name: str
    priority: int
    devices: tuple[str, ...] = ("cuda", "mps", "cpu")
    """Kinds of devices for which the backend is meant; if it cannot run on one of them, the user gets a message."""
    row_invariant: frozenset[str] = frozenset()
    """Ops whose result for a row is the same, bit for bit, beside any number of other rows: ``specdec.exact`` asks."""
    own_threads: bool = False
    """Whether its ops run on host threads that are not torch's: see ``specdec.threads``."""
    skips_padding: bool = False
    """Whether ``linear_of_slots``, ``decoder_layers`` and ``sample_of_slots`` leave out the slots behind each row's
    width: a step then costs what the slots cost that count, and not what the widest row would cost in every row."""
    slots_of_a_pass: int = 1
    """Slots for which products read each weight once, where padding is left out: the slot that begins a pass costs more
    than those which fill it. 1: all slots cost alike."""

    def missing(self) -> str | None:
        """A sentence saying why this backend cannot run here, or None when it can."""
        return None

    @abstractmethod
    def takes(self, op: str, *tensors: Weight) -> bool:
        """Whether ``op`` runs here on these tensors, by their device, dtype and shape; called before every call.

        ``tensors`` are the op's deciding tensors, in the order of its signature: ``process`` and ``sample`` logits,
        ``noise_keys`` position, ``accept`` probability, ``verify_prefix`` choices, ``rejection_sample``,
        ``block_sample`` and ``tree_sample`` distribution, ``emit`` tokens, ``kv_plan`` committed, ``kv_append`` keys
        and new_keys, ``kv_compact`` keys, ``tree_attention`` query, keys and, if there are any, sinks, ``linear`` x and
        weight, ``rms_norm`` x, ``rotary`` query and cos, ``silu_mul`` gate, ``decoder_layers`` x and the first layer's
        ``qkv``.
        """

    def pack(self, weight: Weight) -> Weight:
        """A matrix in the form in which ``linear`` and ``decoder_layers`` read it fastest; by default itself.

        Called once for each matrix that stays as it is: a copy does not follow later changes of ``weight``.
        """
        return weight

    def ran(self) -> Counter[tuple[str, str]]:
        """Calls of each (op, backend) so far, if they are counted (``specdec.ops.Ops``)."""
        return Counter()

    def add(self, calls: Counter[tuple[str, str]]) -> None:
        """Count calls that a replay stands for, if calls are counted."""

    @abstractmethod
    def process(self, logits: Tensor, params: StackedParams, paths: Tensor | None) -> Tensor:
        """Each row's processors on raw logits [B, N, V]; a new tensor: see ``specdec.processors.process``."""

    @abstractmethod
    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """argmax over V of logits [..., V] plus the Gumbel noise of ``key`` [...] (None: no noise); int64 [...]."""

    def sample_of_slots(self, logits: Tensor, key: Tensor | None, width: Tensor) -> Tensor:
        """``sample`` of a window's slots, logits [B, W, V] and key [B, W], of which ``width`` int64 [B] of each row
        count: for the others it may give any token. Counted as ``sample``, and called where ``takes`` says so for that.
        Default: ``sample``.
        """
        return self.sample(logits, key)

    @abstractmethod
    def noise_keys(self, stream: Tensor, position: Tensor, draw: int | Tensor) -> Tensor:
        """The keys of ``specdec.sampling.key`` for all purposes: int64 [4, B, W], indexed by ``Purpose``.

        ``stream`` int64 [B], ``position`` int64 [B, W], ``draw`` an int or int64 that broadcasts to [B, W].
        """

    @abstractmethod
    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """bool: uniform(key) < probability, element by element."""

    @abstractmethod
    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """The longest path on which each token is the target's choice [B, W] at its parent, and the choice after it."""

    @abstractmethod
    def rejection_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Exact rejection sampling of a chain drawn from ``window.q``, for the target's ``distribution`` float32
        [B, W, V]; keys int64 [B, W]."""

    @abstractmethod
    def block_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Block verification of a chain: see ``specdec.acceptance.block_verdict``."""

    @abstractmethod
    def tree_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Recursive rejection over the siblings of a tree: see ``specdec.acceptance.tree_verdict``."""

    @abstractmethod
    def emit(self, window: Window, verdict: Verdict, tokens: Tensor, length: Tensor) -> Tensor:
        """In place: write what each row emits into ``tokens`` int64 [B, S], from place ``length`` int64 [B] on.

        Returns int64 [B, D + 4]: ``Verdict.emitted``, then four numbers: accepted proposals, proposals, their largest
        depth, and cells that a compaction must move.
        """

    @abstractmethod
    def kv_plan(
        self,
        window: Window,
        committed: Tensor,
        span: int | None,
        capacity: int,
        look: int,
        limit: int | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where a window lies in rows of an arena with ``committed`` int64 [B] cells, for layers of one ``span``.

        Returns the depth of each slot, its position (at most ``limit`` - 1) and its cell, int64 [B, W], and the mask
        [B, 1, W, look] in ``dtype``: 0 if a slot sees a cell, else -inf. docs/arena.md has the rules.
        """

    @abstractmethod
    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """In place: write [B, heads, W, head_dim] into ``cells`` int64 [B, W] of [B, heads, capacity, head_dim]."""

    @abstractmethod
    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """In place: copy cells ``source`` [B, D] to cells ``target`` [B, D]; all are read before any is written."""

    @abstractmethod
    def tree_attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        scaling: float,
        softcap: float | None,
        used: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of [B, heads, W, d] over [B, heads_kv, L, d]; added mask [B, 1, W, L]; gives [B, W, heads, d].

        ``used`` int64 [B] is a promise that the mask keeps: it hides a row's cells from there on, so that they need not
        be read. None promises nothing. ``sinks`` [heads]: scores of a cell without a value that every slot sees, which
        takes its weight from the others (gpt-oss); None: there is no such cell.
        """

    @abstractmethod
    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        """x Wᵀ + bias: x [..., K], weight [N, K] float, quantised or packed; gives [..., N] in x's dtype.

        ``wide``: in float32, so that the sums of a half-precision product are not rounded; x is not float64.
        """

    def linear_of_slots(
        self, x: Tensor, weight: Weight, bias: Tensor | None, width: Tensor, wide: bool = False
    ) -> Tensor:
        """``linear`` of a window's slots x [B, W, K], of which ``width`` int64 [B] of each row count: for the others it
        may give any numbers but NaN and infinity. Counted as ``linear``, and called where ``takes`` says so for that.
        Default: ``linear``.
        """
        return self.linear(x, weight, bias, wide)

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """x / sqrt(mean(x²) + eps) · (offset + weight) over the last axis, computed in float32; x's shape and dtype."""

    @abstractmethod
    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary positions on queries and keys [B, heads, W, d], cos and sin [B or 1, W, d]: x cos + half(x) sin.

        ``half`` maps (a, b), the halves of a head, to (-b, a). Returns new tensors.
        """

    @abstractmethod
    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) · up, both [..., N] with any strides between rows; a new contiguous tensor."""

    @abstractmethod
    def decoder_layers(
        self, x: Tensor, layers: Sequence[DecoderWeights], turn: tuple[Tensor, Tensor], at: Sequence[Cells]
    ) -> Tensor:
        """Whole layers of Llama's kind over the arena, [B, W, H] to [B, W, H]: see ``specdec.decoder.decode``.

        For slots that do not count (``Cells.width``) it may give any numbers but NaN and infinity, and leave their
        cells as they are.
        """


def defining_class(cls: type, name: str) -> type:
    """The class from which ``cls`` has an attribute; ``object`` if none has it.

    Example: ``defining_class(bool, "bit_length")`` is ``int``
    """
    return next((base for base in cls.__mro__ if name in vars(base)), object)


OPS = tuple(sorted(Backend.__abstractmethods__ - {"takes"}))
"""The names of the ops."""

DraftFactory = Callable[..., Draft]
PolicyFactory = Callable[..., Policy]
ControllerFactory = Callable[..., Controller]
BackendFactory = Callable[..., Backend]
Factory = Callable[..., Any]
