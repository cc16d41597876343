"""Certified ties: the only permitted difference between two arms that must agree.

Two float32 forwards of different width differ by about 1e-5. Where the logits of two tokens are that close, either
token may be chosen. A difference is a tie only if the unmodified model, which runs without the arena, confirms it: both
arms' logits lie within a bound of its logits, and each arm's token follows from its own logits. The bound is four times
the difference of the unmodified model from itself between one and eight tokens at once. It does not depend on the
arena, so a corrupt arena cannot certify itself. An error smaller than the bound still makes ties, and more of them than
rounding does: ``too_many`` limits their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from benchsuite.judge.sources import Tokens, TokenSource
from specdec import processors, sampling
from specdec.amounts import amount
from specdec.devices import is_half
from specdec.errors import SpecdecError
from specdec.ledger import output_paths, stacked
from specdec.model import ArenaModel
from specdec.request import Request
from specdec.sampling import Purpose
from specdec.sharding import joined_output
from specdec_kernels.reference import Reference

MARGIN = 4
"""The bound as a multiple of the unmodified model's own difference between W = 1 and W = 8."""

MOST_FLOAT32 = 1e-3
"""The upper limit of the bound in float32 and float64."""

MEASURED = {"float32 and float64": (0, 41586), "half precision": (11, 623)}
"""Certified ties and compared tokens, of the row in docs/proof.md with most ties a token; of all rows if none has."""

EXACT = "both are exact, so that windows of every width give the same bits (--specdec-exact)"
"""Why a difference between two exact arms is a bug."""

CONFIDENCE = 0.99
"""The confidence of the upper limit that ``rate`` is."""

TOO_MANY = 1e-6
"""The probability with which ties at ``rate`` are called too many, at most."""


@dataclass(frozen=True)
class Difference:
    """The first token at which two outputs differ, and the verdict: a tie, or a bug with its reason.

    ``index`` counts output tokens. ``plain``, ``other`` and ``reference`` are logits of (plain's token, the other's
    token) in plain, in the other arm and in the unmodified model.
    """

    request: int
    index: int
    tokens: tuple[int, int]
    plain: tuple[float, float] | None
    other: tuple[float, float] | None
    reference: tuple[float, float]
    bound: float
    tie: bool
    reason: str

    def __str__(self) -> str:
        verdict = "tie" if self.tie else "BUG"
        return (
            f"{verdict}: request {self.request}, output token {self.index}: plain {self.tokens[0]}, other "
            f"{self.tokens[1]}; their logits: plain {_show(self.plain)}, other {_show(self.other)}, unmodified model "
            f"{_show(self.reference)}, bound {self.bound:.1e}: {self.reason}"
        )


def rate(dtype: torch.dtype) -> float:
    """Return the rate of certified ties per compared token: the upper limit of ``MEASURED``, Clopper and Pearson's.

    Example: ``rate(torch.bfloat16)``
    """
    return upper_limit(*MEASURED[_precision(dtype)])


@cache
def upper_limit(count: int, of: int, confidence: float = CONFIDENCE) -> float:
    """Return the highest rate at which at most ``count`` events ``of`` as many trials are no rarer than 1 - confidence.

    Source: Clopper and Pearson, Biometrika 26 (1934). Example: ``upper_limit(0, 459)`` is 0.01
    """
    few = torch.arange(count + 1, dtype=torch.float64)
    low, high = count / of, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        rare = float(_binomial(few, of, middle).sum()) <= 1 - confidence
        low, high = (low, middle) if rare else (middle, high)
    return high


def too_many(ties: int, tokens: int, dtype: torch.dtype) -> str | None:
    """Return why so many certified ties in ``tokens`` compared tokens are not rounding's; None if they may be.

    They are too many if as many would come by ``rate`` with a probability below ``TOO_MANY``. ``dtype`` is the
    target's.

    Example: ``too_many(40, 144, torch.bfloat16)``
    """
    expected = int((binomial_tails(tokens, rate(dtype)) >= TOO_MANY).sum()) - 1
    if ties <= expected:
        return None
    return (
        f"{ties} certified ties in {tokens} compared tokens, expected are at most {expected}: in {_precision(dtype)} "
        f'rounding makes at most {rate(dtype):.1e} a token (docs/proof.md, "Equality, and certified ties"), and so '
        f"many with a probability below {TOO_MANY:.0e}; look for an error smaller than the bound on logits"
    )


def equal_text(equal: int, compared: int, ties: int) -> str:
    """Return "17/18, 1 tie": the outputs equal token by token, of those compared, and the certified ties in the others.

    An output that differs can hold several ties, because both arms continue after one: "17/18, 2 ties".
    """
    return f"{equal}/{compared}" + (f", {amount(ties, 'tie')}" if ties else "")


def _precision(dtype: torch.dtype) -> str:
    wide, half = MEASURED
    return half if is_half(dtype) else wide


def binomial_tails(trials: int, chance: float) -> Tensor:
    """Return float64 [trials + 2]: the probability of at least so many events, of 0 … trials + 1."""
    each = _binomial(torch.arange(trials + 1, dtype=torch.float64), trials, chance)
    return torch.nn.functional.pad(each, (0, 1)).flip(0).cumsum(0).flip(0)


def _binomial(count: Tensor, trials: int, chance: float) -> Tensor:
    """The probability of each ``count``, float64, of events in so many trials."""
    ways = torch.lgamma(count.new_tensor(trials + 1)) - torch.lgamma(count + 1) - torch.lgamma(trials - count + 1)
    hits, misses = count.new_tensor(chance), count.new_tensor(1 - chance)
    return (ways + torch.xlogy(count, hits) + torch.xlogy(trials - count, misses)).exp()


def surprise(logits: Tensor, tokens: Sequence[int]) -> float:
    """Return the sum of -log p, in nats, of tokens under the softmax of their rows of ``logits`` [N, V]."""
    found = logits.log_softmax(dim=-1).gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    return -float(found.cpu().double().sum())  # MPS has no float64


def _widen_head(model: PreTrainedModel) -> None:
    """In place: the head of a model in half precision gives float32 logits, as ``ArenaModel``'s does."""
    head: Any = model.get_output_embeddings()
    if is_half(head.weight.dtype):
        head.forward = lambda x: joined_output(head, Reference().linear(x, head.weight, head.bias, wide=True))


def _show(pair: tuple[float, float] | None) -> str:
    return "unknown" if pair is None else f"{pair[0]:.6f} / {pair[1]:.6f}"


class Judge:
    """Compares outputs of one target. The bound is measured on the token ids ``probe``, repeated up to 24 if fewer.

    ``model`` is the unmodified model, but for the head of a model in half precision: its logits are float32 too.
    """

    def __init__(self, target: ArenaModel, probe: Sequence[int]) -> None:
        self.model: PreTrainedModel = target.twin()
        _widen_head(self.model)
        # Long enough for eight tokens after a context, also if the prompts are short.
        self._probe = tuple(islice(cycle(probe), max(24, len(probe))))
        self._bound: float | None = None
        self._surprises: dict[tuple[Tokens, Tokens], float] = {}

    @property
    def bound(self) -> float:
        """The largest permitted distance of logits from the unmodified model's; measured once, at the first use."""
        if self._bound is None:
            measured = MARGIN * self._own_difference()
            wide = not is_half(self.model.dtype)
            self._bound = min(measured, MOST_FLOAT32) if wide else measured
        return self._bound

    @torch.inference_mode()
    def _own_difference(self) -> float:
        ids = torch.tensor([self._probe], device=self.model.device)
        head, tail = ids[:, :-8], ids[:, -8:]
        rows = []
        for pieces in ([tail], list(tail.split(1, dim=1))):
            cache = DynamicCache(config=self.model.config)
            self.model(head, past_key_values=cache, use_cache=True)
            parts = [self.model(piece, past_key_values=cache, use_cache=True).logits for piece in pieces]
            rows.append(torch.cat(parts, dim=1).float())
        difference = float((rows[0] - rows[1]).abs().max())
        if not is_half(self.model.dtype):
            return difference
        # Half precision is coarse: eight positions may agree by chance. One rounding step is the minimum.
        return max(difference, torch.finfo(self.model.dtype).eps * float(rows[0].abs().max()))

    @torch.inference_mode()
    def logits(self, prefix: Sequence[int]) -> Tensor:
        """Return the unmodified model's logits, float32 [V], after a prefix, in one forward without a cache."""
        ids = torch.tensor([prefix], device=self.model.device)
        out: Tensor = self.model(ids, use_cache=False).logits[0, -1]
        return out.float()

    def entropy(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """Return the mean entropy, in bits, of the model's own distribution at each token of an output."""
        distribution = self.after(prompt, output).log_softmax(dim=-1)
        return float(-(distribution.exp() * distribution).sum(dim=-1).mean()) / math.log(2)

    def surprise(self, prompt: Tokens, output: Tokens) -> float:
        """Return the sum of -log p of an output's tokens, in nats; cached, because every arm is compared with plain."""
        if (prompt, output) not in self._surprises:
            self._surprises[prompt, output] = surprise(self.after(prompt, output), output)
        return self._surprises[prompt, output]

    @torch.inference_mode()
    def after(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Return the unmodified model's logits, float32 [N, V], before each token of an output, in one forward.

        Raises SpecdecError where one is NaN or +inf: the model has no distribution there, and every decoder emits the
        same token, so that outputs are equal and say nothing.
        """
        ids = torch.tensor([[*prompt, *output[:-1]]], device=self.model.device)
        out: Tensor = self.model(ids, use_cache=False).logits[0, -len(output) :].float()
        wrong = (out.isnan() | (out == math.inf)).any(dim=-1)
        if bool(wrong.any()):
            raise SpecdecError(
                f"the target's logits are NaN or infinite at {int(wrong.sum())} of an output's {len(output)} tokens: "
                "its weights are damaged, or too large for the dtype; load it in another dtype, or fetch it again"
            )
        return out

    def compare(
        self,
        requests: Sequence[Request],
        request: Request,
        plain: TokenSource,
        other: TokenSource,
        outputs: tuple[Tokens, Tokens],
        exact: bool = False,
    ) -> list[Difference]:
        """Return every difference between two outputs of one request, each with its verdict; stop at a bug.

        ``requests`` is the batch that both arms ran, so that it can run again. After a tie both arms continue from
        plain's prefix, without the rest of the batch. ``exact``: both arms are engines whose windows of every width
        give the same bits, so that no difference is a tie.
        """
        differences: list[Difference] = []
        done = 0
        while outputs[0] != outputs[1]:
            index = _first_difference(*outputs)
            found = self._judge(requests, request, plain, other, outputs, index, EXACT if exact else "")
            differences.append(replace(found, index=found.index + done))
            if not found.tie or index + 1 >= len(outputs[0]):
                break
            request = request.after(outputs[0][: index + 1])
            requests = [request]
            outputs = plain.tokens(requests)[0], other.tokens(requests)[0]
            done += index + 1
        return differences

    def _judge(
        self,
        requests: Sequence[Request],
        request: Request,
        plain: TokenSource,
        other: TokenSource,
        outputs: tuple[Tokens, Tokens],
        index: int,
        reason: str,
    ) -> Difference:
        reference = self.logits((*request.prompt, *outputs[0][:index]))
        ends = [output[index] if index < len(output) else -1 for output in outputs]
        seen = [runner.logits_at(requests, request.id, index) for runner in (plain, other)]
        if -1 in ends and not reason:
            reason = "one output ends where the other goes on"
        for name, logits, token in zip(("plain", "the other"), seen, ends, strict=True):
            if reason:
                break
            if logits is None:
                reason = f"{name} did not repeat its own output"
            elif (far := float((logits - reference).abs().max())) > self.bound:
                reason = f"{name}'s logits lie {far:.1e} from the unmodified model's"
            elif self.choice(logits, request.after(outputs[0][:index])) != token:
                reason = f"{name}'s token does not follow from its own logits"

        def pair(logits: Tensor | None) -> tuple[float, float] | None:
            return None if logits is None or -1 in ends else (float(logits[ends[0]]), float(logits[ends[1]]))

        return Difference(
            request.id,
            index,
            (ends[0], ends[1]),
            pair(seen[0]),
            pair(seen[1]),
            pair(reference) or (0.0, 0.0),
            self.bound,
            not reason,
            reason or "both within the bound, each token follows from its arm's logits",
        )

    @staticmethod
    def processed(logits: Tensor, request: Request) -> Tensor:
        """Return the log-probabilities [V] from which a request draws its first token, given the logits [V] after its
        prompt: -inf for tokens that it cannot draw."""
        params = stacked([request], len(logits), logits.device)
        return processors.process(logits[None, None], params, output_paths([0], logits.device))[0, 0]

    @staticmethod
    def choice(logits: Tensor, request: Request) -> int:
        """Return the first token that the engine draws for a request, given the logits [V] after its prompt."""
        params, distribution = stacked([request], len(logits), logits.device), Judge.processed(logits, request)
        position = torch.tensor([[len(request.prompt)]], device=logits.device)
        noise = sampling.gumbel(sampling.key(params.stream, position, Purpose.TARGET), len(logits))
        return int((distribution if params.greedy else distribution + noise).argmax())


def _first_difference(a: Tokens, b: Tokens) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
