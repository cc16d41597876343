"""Plugins with planted faults: which check of the kit finds each, and its message."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from benchsuite import conformance
from benchsuite.conformance.backends import BackendChecks
from benchsuite.conformance.claims import Checks, failures
from benchsuite.conformance.controllers import ControllerChecks
from benchsuite.conformance.drafts import DraftChecks
from benchsuite.conformance.engines import EngineChecks
from benchsuite.conformance.heads import HeadChecks
from benchsuite.conformance.models import tiny
from benchsuite.conformance.policies import PolicyChecks
from benchsuite.tests.cheating_controllers import CHEATING_CONTROLLERS
from benchsuite.tests.cheating_drafts import CHEATING_DRAFTS, RepeatPending
from benchsuite.tests.cheating_policies import CHEATING_POLICIES
from benchsuite.tests.faulty_acceptance import HalfAsLikely, SameTenth, WidelySameTenth
from benchsuite.tests.faulty_engines import ENGINES
from benchsuite.tests.faulty_noise import (
    Echo,
    SeedlessPolicy,
    SharedCoin,
    StaleAtFirst,
    StaleCoins,
    StaleModel,
    Tossed,
    Unnumbered,
)
from benchsuite.tests.made_up_examinations import FAULTY_HEADS
from benchsuite.tests.rig import slow_after
from specdec import Context, Draft, Policy, Purpose, Request, Verdict, Window
from specdec.decoder import Cells
from specdec.interfaces import ControllerFactory
from specdec.packed import Weight
from specdec_kernels.reference import Reference
from specdec_plugins.controllers.fixed import Fixed
from specdec_plugins.controllers.goodput import Goodput
from specdec_plugins.drafts.draft_model import DraftModel
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.drafts.oracle import Oracle
from specdec_plugins.policies.match import Match
from specdec_plugins.policies.rejection import Rejection

LONG = (
    *("distribution", "drawn_from", "fit_for_a_gpu", "replayed", "agrees_with"),
    *("sampled_outputs", "changes_no_output", "replays_only"),
)
"""Parts of the names of checks that take seconds."""


def quick_first(planted: Sequence[tuple[Any, ...]], at: int) -> list[Any]:
    """Mark all as slow but the first fault of each check; ``at`` is the place of the check's name."""
    seen: set[str] = set()
    marked = []
    for case in planted:
        check = case[at]
        slow = check in seen or any(part in check for part in LONG)
        slow = slow and case[0] is not Echo  # which is found in half a second
        seen.add(check)
        marked.append(pytest.param(*case, marks=[pytest.mark.slow] if slow else []))
    return marked


def name_of(value: object) -> str | None:
    """The fault's name as the test's id."""
    return getattr(value, "__name__", None)


class Greedier(DraftModel):
    """Proposes its likeliest token, but returns the softmax, from which it did not draw, as q (transformers#32867)."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        if window.q is None:
            return window
        return replace(window, tokens=torch.cat([window.tokens[:, :1], window.q.argmax(dim=-1)], dim=1))


class Flatter(DraftModel):
    """Draws from the processed distribution, but returns an unprocessed one as q (transformers#47932)."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        if window.q is None:
            return window
        flat = window.q.sqrt()
        return replace(window, q=flat / flat.sum(dim=-1, keepdim=True))


class Overrun(RepeatPending):
    """Proposes K tokens, also if there is less room (vllm#42533)."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return replace(window, width=torch.full_like(window.width, window.tokens.shape[1]))


class Unmoved(Ngram):
    """Keeps its state of a row when another request moves into the row."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, n_min=1)
        self._prompts: dict[int, tuple[int, ...]] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self._prompts.setdefault(row, prompt)

    def continuations(self, row: int, history: Any, limit: int) -> list[list[int]]:
        return [[self._prompts[row][0]] * limit]


class NeverBack(DraftModel):
    """Leaves rejected proposals in its keys and values (mlx-lm#1109)."""

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        super().observe(window, replace(verdict, num_accepted=torch.full_like(verdict.num_accepted, 99)), hidden, own)


class DeviceReader(RepeatPending):
    """Reads a device tensor on the host."""

    def propose(self, context: Context) -> Window:
        assert context.length.max().item() > 0
        return super().propose(context)


class Learner(RepeatPending):
    """Proposes the last token of the previous request."""

    def __init__(self, env: Any) -> None:
        self._last = 0

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        self._last = tokens[-1]

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return replace(window, tokens=torch.cat([window.tokens[:, :1], window.tokens[:, 1:] * 0 + self._last], dim=1))


class Archive(RepeatPending):
    """Keeps every output where ``forget`` does not reach, and proposes it when the request comes again."""

    kept: ClassVar[dict[Request, tuple[int, ...]]] = {}

    def __init__(self, env: Any) -> None:
        self._requests: dict[int, Request] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self._requests[row] = replace(request, id=0)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        request = self._requests[row]
        self.kept[request] = max(tokens, self.kept.get(request, ()), key=len)

    def propose(self, context: Context) -> Window:
        return Window.ragged(context, [self._known(context, row) for row in range(context.rows)])

    def _known(self, context: Context, row: int) -> list[int]:
        length, most = int(context.length_host[row]), int(context.max_proposals_host[row])
        return list(self.kept.get(self._requests[row], ())[length : length + most]) or [1] * most


class Parrot(Oracle):
    """Replays, and declares all that a check may be skipped for, except that."""

    branches = needs_hidden = learns = True
    weight_bytes = 1

    def info(self) -> Mapping[str, int]:
        return {"draft_forwards": 1}


class Boaster(RepeatPending):
    """Declares that it learns."""

    learns = True


class Weightless(DraftModel):
    """Counts forwards, but declares no weights."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.weight_bytes = 0


class Brancher(RepeatPending):
    """Branches, but declares that it does not."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return replace(window, parents=window.parents.clamp(max=0))


class Vandal(RepeatPending):
    """Writes to the engine's tokens."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        context.tokens.scatter_(1, (context.length - 1)[:, None], 7)
        return window


class Impossible(RepeatPending):
    """Proposes ids outside the vocabulary."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return replace(window, tokens=torch.cat([window.tokens[:, :1], window.tokens[:, 1:] + 300], dim=1))


class Borrower(RepeatPending):
    """Keeps the target's hidden states instead of a copy; those of the last step but one say how much it proposes."""

    needs_hidden = True

    def __init__(self, env: Any) -> None:
        self._seen: list[Tensor] = []

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        if len(self._seen) < 2 or len(self._seen[-2]) != context.rows:
            return window
        drawn = (self._seen[-2].flatten(1).float().sum(dim=1) * 1000).long() % 4
        return replace(window, width=torch.minimum(window.width, 1 + drawn))

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        assert hidden is not None
        self._seen.append(hidden)


class Peeking(RepeatPending):
    """Reads a length from the device, which the host has too."""

    def propose(self, context: Context) -> Window:
        assert int(context.length[0]) > 0
        return super().propose(context)


class Carrying(RepeatPending):
    """Sends a number up from memory that is not pinned."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        most = torch.full((1,), 4, dtype=torch.int64).to(window.width.device)
        return replace(window, width=torch.minimum(window.width, most))


class Limping(RepeatPending):
    """Makes one launch more in every second step."""

    def __init__(self, env: Any) -> None:
        self._steps = 0

    def propose(self, context: Context) -> Window:
        self._steps += 1
        window = super().propose(context)
        return replace(window, width=window.width + 0) if self._steps % 2 else window


class Speechless(RepeatPending):
    """Never proposes anything."""

    def propose(self, context: Context) -> Window:
        return Window.root(context)


class Orphan(RepeatPending):
    """Says that the second proposal continues the third."""

    branches = True

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        parents = window.parents.clone()
        parents[:, 2:3] = 3
        return replace(window, parents=parents)


class Detached(RepeatPending):
    """Says that its second proposal continues nothing."""

    branches = True

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        parents = window.parents.clone()
        parents[:, 2:3] = -1
        return replace(window, parents=parents)


class Likely(DraftModel):
    """Changes q after it has drawn from it, as ``told`` says."""

    @staticmethod
    def told(q: Tensor, drawn: Tensor) -> Tensor:
        """What is returned in place of q [B, K, V], of which ``drawn`` [B, K, 1] were drawn."""
        return q

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        if window.q is None:
            return window
        return replace(window, q=self.told(window.q.clone(), window.tokens[:, 1:, None]))


class NotANumber(Likely):
    """Divides by zero in one place of q (vllm#41834)."""

    @staticmethod
    def told(q: Tensor, drawn: Tensor) -> Tensor:
        q[..., 0] = torch.nan
        return q


class Negative(Likely):
    """Takes so much from one token and gives it to another that a probability is negative: the sum is 1."""

    @staticmethod
    def told(q: Tensor, drawn: Tensor) -> Tensor:
        shift = q[..., :1] + 0.1
        return torch.cat([q[..., :1] - shift, q[..., 1:2] + shift, q[..., 2:]], dim=-1)


class Unnormalised(Likely):
    """Returns shares that sum to 1.001."""

    @staticmethod
    def told(q: Tensor, drawn: Tensor) -> Tensor:
        return q * 1.001


class Unlikely(Likely):
    """Gives the second token that it has drawn no probability, and another one what it had."""

    @staticmethod
    def told(q: Tensor, drawn: Tensor) -> Tensor:
        second, token = q[:, 1:2], drawn[:, 1:2]
        had = second.gather(2, token)
        second.scatter_add_(2, (token + 1) % q.shape[2], had).scatter_(2, token, 0.0)
        return q


class Doubtful(Flatter):
    """Draws from the target's own distribution, but returns a flatter one as q: unlikely tokens are kept too rarely."""

    def __init__(self, env: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            tiny.save_target("llama", Path(folder))
            super().__init__(env, model=folder)


class Usurper(RepeatPending):
    """Puts another token in the place of the pending one."""

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        return replace(window, tokens=torch.cat([(window.tokens[:, :1] + 1) % 256, window.tokens[:, 1:]], dim=1))


class Restarting(RepeatPending):
    """Takes every chunk of a prompt for its first, and proposes the token after it."""

    needs_hidden = True

    def __init__(self, env: Any) -> None:
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._after: dict[int, int] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self._prompts[row], self._after[row] = prompt, prompt[0]

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        self._after[row] = self._prompts[row][tokens.shape[1]]

    def propose(self, context: Context) -> Window:
        rows = range(context.rows)
        return Window.ragged(context, [[self._after[row]] * int(context.max_proposals_host[row]) for row in rows])


class Unforgetting(Learner):
    """Learns, says so, and has no ``forget``."""

    learns = True


class Heedless(Ngram):
    """Says that it heeds prices and makes what it finds."""

    def propose(self, context: Context) -> Window:
        return super().propose(replace(context, price=None))


DRAFTS: list[tuple[Callable[..., Draft], dict[str, Any], str, str]] = [
    (Speechless, {}, "is_what_it_claims", "planted proposes now and then.*nothing at all.*6 requests"),
    (Orphan, {"trees": True}, "well_formed", "a parent that is no earlier slot"),
    (Detached, {"trees": True}, "well_formed", "a parent that is no earlier slot"),
    (NotANumber, {"sampled": True}, "well_formed", "q is not finite"),
    (Negative, {"sampled": True}, "well_formed", "negative somewhere"),
    (Unnormalised, {"sampled": True}, "well_formed", r"rows of q sum to \[1.001"),
    (Unlikely, {"sampled": True}, "well_formed", "a token that its own q calls impossible"),
    (Usurper, {}, "it_changes_no_output", r"changes no output.*from the unmodified model's"),
    (
        Doubtful,
        {"sampled": True},
        "sampled_outputs_have_the_targets",
        "planted under rejection have the target's.*as uneven",
    ),
    (Unforgetting, {"remembers": True}, "remembered_only", "planted forgets.*after forget"),
    (Peeking, {}, "fit_for_a_gpu", "the host reads a number of the device"),
    (
        Carrying,
        {},
        "fit_for_a_gpu",
        r"a copy from cpu to cuda that waits, at test_planted.py:\d+: most = ",
    ),
    (Limping, {}, "fit_for_a_gpu", "two steps of 5 slots launch .* so that neither can be recorded"),
    (Greedier, {"sampled": True}, "q_is_the_distribution", "the proposals of planted are drawn from its q.*chance"),
    (Flatter, {"sampled": True}, "q_is_the_distribution", "drawn from its q"),
    (Overrun, {}, "well_formed", "proposals where .* were asked for"),
    (Unmoved, {}, "follows_from_the_text", r"claims memoryless=True.*windows are not what it proposes"),
    (NeverBack, {"sampled": True}, "follows_from_the_text", "asked again"),
    (DeviceReader, {}, "reads_the_device_once", "read the device through item"),
    (Learner, {}, "remembered_only_where_claimed", "has remembers=False.*remembers=True"),
    (Learner, {"memoryless": False}, "remembered_only_where_claimed", "has remembers=False.*remembers=True"),
    (Boaster, {}, "is_what_it_claims", "has remembers=False.*remembers=True.*learns"),
    # One call for each of six requests, in each of two runs.
    (Oracle, {}, "replays_only_where_claimed", r"has replays=False.*replays=True.* 12 calls of Env.plain"),
    (
        Parrot,
        {"trees": True, "sampled": True, "hidden": True, "remembers": True, "memoryless": False},
        "replays_only_where_claimed",
        "has replays=False.*replays=True",
    ),
    (
        StaleModel,
        {"sampled": True},
        "noise_is_new_in_every_step",
        r"(?<![-\d])[1-9]\d* keys of draws were those of an earlier step",
    ),
    (
        StaleAtFirst,
        {"sampled": True},
        "noise_is_new_in_every_step",
        r"(?<![-\d])[1-9]\d* keys of draws were those of an earlier step",
    ),
    (Weightless, {"sampled": True}, "forwards_read_weights", "weight_bytes 0, and .* draft_forwards"),
    (Brancher, {}, "is_what_it_claims", "claims trees=False.*a window branches"),
    (
        Heedless,
        {},
        "prices_of_slots",
        r"planted heeds prices.*made \d+ proposals that each cost 2.*no proposal brings more than one token",
    ),
    (Vandal, {}, "writes_to_nothing", r"propose changed \['Context.tokens'\]"),
    (Impossible, {}, "well_formed", "a token id outside"),
    (
        Restarting,
        {"hidden": True},
        "read_in_chunks",
        # The shortest prompt is the example: its second chunk has one token, so that its second token is proposed.
        r"planted reads a prompt in chunks.*by their lengths: \[10, 17.*\(10 tokens\).* there: \[(99, ){3}99\]",
    ),
    (Borrower, {"hidden": True}, "replayed_step_overwrites", "recorded once and replayed.*the counters are not"),
    (RepeatPending, {"trees": True}, "is_what_it_claims", "has trees=True.*trees=False"),
    (RepeatPending, {"sampled": True}, "is_what_it_claims", "has sampled=True.*sampled=False"),
    (RepeatPending, {"hidden": True}, "is_what_it_claims", "has hidden=True.*hidden=False"),
    (RepeatPending, {"remembers": True}, "remembered_only_where_claimed", "has remembers=True.*remembers=False"),
    (RepeatPending, {"replays": True}, "replays_only_where_claimed", "has replays=True.*replays=False"),
]


@pytest.mark.parametrize(("fault", "claims", "check", "message"), quick_first(DRAFTS, 2), ids=name_of)
def test_a_faulty_draft_is_found(fault: Callable[..., Draft], claims: dict[str, Any], check: str, message: str) -> None:
    kit = conformance.draft("planted", factory=fault, **claims)
    kit.repeats = 4  # some 5,000 proposals find a shift of 7 %; each of these faults makes a larger one
    said = next(failures(kit, only=check), None)
    assert said, f"{check} finds nothing"
    assert re.search(message, said[1], re.DOTALL), said


@pytest.mark.slow
def test_what_is_kept_where_forget_does_not_reach_is_found_although_other_checks_ran_before() -> None:
    others = f"^(?!.*({'|'.join(LONG)}))"
    said = dict(failures(conformance.draft("planted", factory=Archive, memoryless=False), only=others))
    assert "test_what_has_ended_is_remembered_only_where_claimed" in said


@pytest.mark.slow
def test_a_draft_without_fault_is_certified() -> None:
    assert dict(failures(conformance.draft("planted", factory=RepeatPending))) == {}


class Cheap(Rejection):
    """Draws a rejected token from p instead of the residual."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        verdict = super().accept(logits, window, context)
        distribution = logits.gather(1, verdict.num_accepted[:, None, None].expand(-1, 1, logits.shape[2]))
        where = (context.length + verdict.num_accepted)[:, None]
        return replace(verdict, next=context.choose(distribution, where, Purpose.RESIDUAL)[:, 0])


class First(Match):
    """Always keeps the first proposal (lattice#243)."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        position = context.length[:, None] + window.depth
        choices = context.choose(logits, position, Purpose.TARGET)
        if window.tokens.shape[1] > 1:
            choices = torch.cat([window.tokens[:, 1:2], choices[:, 1:]], dim=1)
        return context.ops.verify_prefix(window, choices)


class Padded(Match):
    """Keeps padding that happens to agree with the target."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        width = torch.full_like(window.width, window.tokens.shape[1])
        return super().accept(logits, replace(window, width=width), context)


class Borrowing(Rejection):
    """Judges each row by the q of another: no fault where there is no q."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        q = None if window.q is None else window.q.roll(1, dims=0)
        return super().accept(logits, replace(window, q=q), context)


class Ahead(Rejection):
    """Judges each row but the last by the q of the next."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        q = None if window.q is None else torch.cat([window.q[1:], window.q[-1:]])
        return super().accept(logits, replace(window, q=q), context)


class Shared(Rejection):
    """Uses one coin for the whole batch: a row's verdict depends on its neighbours."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        stream = context.params.stream[:1].expand(len(logits))
        return super().accept(logits, window, replace(context, params=replace(context.params, stream=stream)))


class Writer(Match):
    """Scales the engine's logits in place."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        logits.mul_(2.0)
        return super().accept(logits, window, context)


class Sloppy(Match):
    """Keeps any proposal that is likely enough, but declares itself exact."""

    raw = True

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        good = logits.softmax(dim=-1).gather(1, window.parents.clamp(min=0)[:, :, None].expand_as(logits))
        likely = good.gather(2, window.tokens[:, :, None])[:, :, 0] > 0.002
        choices = context.choose(context.process(logits, window), window.depth, Purpose.TARGET)
        return context.ops.verify_prefix(window, window.prefer(likely, choices))


class Tallying(Match):
    """Judges every third step by other noise, and counts the steps on the host."""

    def __init__(self, env: Any) -> None:
        self._calls = 0

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        self._calls += 1
        shifted = logits.roll(self._calls % 3, dims=-1)
        return super().accept(shifted, window, context)


class Weighing(Match):
    """Reads the likeliest logit."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        assert float(logits.max()) > -1e9
        return super().accept(logits, window, context)


class Redrawn(Match):
    """Draws the target's token by other noise than plain decoding does."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        choices = context.choose(logits, context.length[:, None] + window.depth, Purpose.RESIDUAL)
        return context.ops.verify_prefix(window, choices)


class Altering(Match):
    """Changes the verdict in one place."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        return self.altered(super().accept(logits, window, context), logits)

    @staticmethod
    def altered(verdict: Verdict, logits: Tensor) -> Verdict:
        """The verdict that is returned."""
        return verdict


class Rootless(Altering):
    """Leaves the root out of the path."""

    @staticmethod
    def altered(verdict: Verdict, logits: Tensor) -> Verdict:
        return replace(verdict, path=torch.where(verdict.path == 0, 1, verdict.path))


class Unended(Altering):
    """Fills the rest of the path with 0 in place of -1."""

    @staticmethod
    def altered(verdict: Verdict, logits: Tensor) -> Verdict:
        return replace(verdict, path=verdict.path.clamp(min=0))


class OutOfWords(Altering):
    """Emits a token one past the vocabulary's last."""

    @staticmethod
    def altered(verdict: Verdict, logits: Tensor) -> Verdict:
        return replace(verdict, next=torch.full_like(verdict.next, logits.shape[2]))


class Leaping(Altering):
    """Keeps the last slot of the window after the root, whatever its parent is."""

    @staticmethod
    def altered(verdict: Verdict, logits: Tensor) -> Verdict:
        path = torch.full_like(verdict.path, -1)
        path[:, 0], path[:, 1] = 0, logits.shape[1] - 1
        return replace(verdict, path=path, num_accepted=torch.ones_like(verdict.num_accepted))


EXACT = {"greedy": "exact", "sampled": "exact", "trees": True, "coupled": True}
SHARED = r"the target's distribution.*total variation 0\.\d+ of . tokens; 0 if no noise were used twice"
POLICIES: list[tuple[type[Policy], dict[str, Any], str, str]] = [
    (
        Cheap,
        {"greedy": "exact", "sampled": "distribution"},
        "its_distribution",
        r"has the target's distribution.*total variation 0\.\d+ of \d tokens\n",  # and nothing of noise
    ),
    (
        SameTenth,
        {"greedy": "exact", "sampled": "distribution"},
        "its_distribution",
        r"has the target's distribution.*total variation 0\.\d+",
    ),
    (
        HalfAsLikely,
        {"greedy": "exact", "sampled": "lossy", "trees": True, "coupled": True},
        "nearly_the_likeliest",
        r"greedy outputs of planted are plain decoding's.*a token 0\.0001 nats below, parents",
    ),
    (
        WidelySameTenth,
        {"greedy": "exact", "sampled": "distribution"},
        "sampled_outputs_have",
        "outputs of draft_model under planted.*favour the draft's proposals",
    ),
    (
        First,
        EXACT,
        "greedy_outputs",
        "changes no output",
    ),
    (
        Padded,
        EXACT,
        "a_verdict_is_a_path",
        "num_accepted",
    ),
    *(
        (fault, {"greedy": "exact", "sampled": "distribution", "trees": fault.trees}, "its_distribution", SHARED)
        for fault in (SharedCoin, StaleCoins, Echo)
    ),
    (
        Tossed,
        {"greedy": "exact", "sampled": "distribution"},
        "its_distribution",
        "a key's noise is that of a coin and of a draw",
    ),
    (
        SeedlessPolicy,
        {"greedy": "exact", "sampled": "distribution"},
        "seeds_and_requests",
        "are also those of another seed",
    ),
    (Unnumbered, {"greedy": "exact", "sampled": "distribution"}, "seeds_and_requests", "those of another"),
    (Shared, {"greedy": "exact", "sampled": "distribution"}, "does_not_see_its_neighbours", "in the batch, .* alone"),
    (
        Borrowing,
        {"greedy": "exact", "sampled": "distribution"},
        "does_not_see_its_neighbours",
        "in the batch, .* alone",
    ),
    (Ahead, {"greedy": "exact", "sampled": "distribution"}, "does_not_see_its_neighbours", "in the batch, .* alone"),
    (Rootless, EXACT, "a_verdict_is_a_path", r"path \[1"),
    (Unended, EXACT, "a_verdict_is_a_path", r"path \[0, .*0\] with num_accepted"),
    (OutOfWords, EXACT, "a_verdict_is_a_path", "next 6"),
    (Leaping, EXACT, "a_verdict_is_a_path", r"path \[0, 4, .*num_accepted 1"),
    (Redrawn, EXACT, "sampled_outputs_are", "changes no output.*does not follow from its own logits"),
    (Weighing, EXACT, "reads_the_device_once", "read the device through"),
    (Match, EXACT | {"trees": False}, "is_what_it_claims", "trees=False.*trees=True"),
    (Writer, EXACT, "writes_to_nothing", r"accept changed \['logits'\]"),
    (Tallying, EXACT, "recorded_and_replayed", "differs at token"),
    (Weighing, EXACT, "fit_for_a_gpu", "the host reads a number of the device"),
    (
        Sloppy,
        EXACT,
        "greedy_outputs",
        "changes no output",
    ),
    (
        Match,
        {"greedy": "exact", "sampled": "distribution", "trees": True, "coupled": True},
        "is_what_it_claims",
        "it says exact",
    ),
    (Match, {"greedy": "exact", "sampled": "exact", "trees": True}, "is_what_it_claims", "coupled=False.*coupled=True"),
]


@pytest.mark.parametrize(("fault", "claims", "check", "message"), quick_first(POLICIES, 2), ids=name_of)
def test_a_faulty_policy_is_found(fault: type[Policy], claims: dict[str, Any], check: str, message: str) -> None:
    said = next(failures(conformance.policy("planted", factory=fault, **claims), only=check), None)
    assert said, f"{check} finds nothing"
    assert re.search(message, said[1], re.DOTALL), said


class Beyond(Fixed):
    """Asks for one proposal more than its maximum."""

    def next_k(self, stats: Any) -> int:
        return self.max_k + 1


class Pausing(Fixed):
    """Asks for nothing in every second step, and for its maximum in the others: both bounds, and no fault."""

    def next_k(self, stats: Any) -> int:
        return self.max_k * (len(stats.steps) % 2)


class Clock(Fixed):
    """Reads the clock, but declares that it does not."""

    def next_k(self, stats: Any) -> int:
        return time.perf_counter_ns() % (self.max_k + 1)


class Hoarder(Fixed):
    """Asks for one proposal less in each later run, and forgets nothing."""

    _runs = 0

    def next_k(self, stats: Any) -> int:
        self._runs += 0 if stats.steps else 1
        return self.max_k + 1 - self._runs


class Keeper(Goodput):
    """Keeps the chances and times of earlier runs."""

    def forget(self) -> None:
        if not hasattr(self, "_kept"):
            super().forget()


class Halves(Fixed):
    """Asks for two and a half proposals."""

    def next_k(self, stats: Any) -> Any:
        return 2.5


class OneTooFew(Fixed):
    """Gives every row a K but the last."""

    def next_k(self, stats: Any) -> Any:
        return [self.max_k] * (len(stats.rows) - 1)


class Growing(Fixed):
    """Raises its own maximum while it runs."""

    @property
    def max_k(self) -> int:
        """One more after each step."""
        return self._k

    def next_k(self, stats: Any) -> int:
        self._k += 1
        return 1


class Experimental(Fixed):
    """Tries how fast the target is with smaller weights, and leaves them so."""

    def __init__(self, env: Any, k: int = 4) -> None:
        super().__init__(env, k)
        self._weights = env.target.model.get_input_embeddings().weight

    def next_k(self, stats: Any) -> int:
        with torch.no_grad():
            self._weights.mul_(0.9)
        return super().next_k(stats)


class Numbered(Fixed):
    """Asks for as many proposals as there were controllers before it."""

    built = 0

    def __init__(self, env: Any, k: int = 4) -> None:
        super().__init__(env, k)
        Numbered.built += 1
        self._number = Numbered.built

    def next_k(self, stats: Any) -> int:
        return self._number % 5


CONTROLLERS: list[tuple[ControllerFactory, bool, str, str]] = [
    (Hoarder, False, "after_forget", "planted forgets.*K 4 by a new controller, 3 after a run"),
    (Fixed, False, "is_what_it_claims", "has deterministic=False.*deterministic=True"),
    (Beyond, True, "within_its_bounds", "K 5 at step 0, max_k 4"),
    (Halves, True, "within_its_bounds", "K 2.5 at step 0"),
    (OneTooFew, True, "within_its_bounds", r"K \[4, 4\] at step 0, .* 3 rows"),
    (Growing, True, "within_its_bounds", "max_k 4, now 5"),
    (Clock, True, "repeats", "has deterministic=True"),
    (Hoarder, True, "repeats", "K 4 in the first run, 3 in the second, after forget"),
    (Numbered, True, "repeats", "K . in the first run, . in a new engine"),
    (Keeper, False, "after_forget", "planted forgets"),
    (Experimental, True, "changes_no_output", "changes no output"),
]


@pytest.mark.parametrize(("fault", "deterministic", "check", "message"), slow_after(5, CONTROLLERS), ids=name_of)
def test_a_faulty_controller_is_found(fault: ControllerFactory, deterministic: bool, check: str, message: str) -> None:
    kit = conformance.controller("planted", deterministic=deterministic, factory=fault)
    said = next(failures(kit, only=check), None)
    assert said, f"{check} finds nothing"
    assert re.search(message, said[1], re.DOTALL), said


@pytest.mark.slow
def test_a_controller_that_reaches_both_of_its_bounds_is_certified() -> None:
    kit = conformance.controller("planted", deterministic=True, factory=Pausing)
    assert list(failures(kit, only="within_its_bounds|repeats|is_what_it_claims")) == []


class Rounded(Reference):
    """Normalises in half precision."""

    name = "planted"
    priority = 1

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return super().rms_norm(x.bfloat16().to(x.dtype), weight, eps, offset)


class Hidden(Reference):
    """Runs an op that it does not name."""

    name = "planted"
    priority = 1

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return super().rms_norm(x, weight, eps, offset)


class Forgiving(Reference):
    """Keeps the first proposal, whatever the target chose."""

    name = "planted"
    priority = 1

    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        if window.tokens.shape[1] > 1:
            choices = torch.cat([window.tokens[:, 1:2], choices[:, 1:]], dim=1)
        return super().verify_prefix(window, choices)


class Multiplying(Reference):
    """Multiplies as the reference does."""

    name = "planted"
    priority = 1

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        return super().linear(x, weight, bias, wide)


class AsFirstRow(Multiplying):
    """Multiplies as many slots of each row as the first row has."""

    def linear_of_slots(
        self, x: Tensor, weight: Weight, bias: Tensor | None, width: Tensor, wide: bool = False
    ) -> Tensor:
        out = super().linear_of_slots(x, weight, bias, width, wide)
        out[:, int(width[0]) :] = 0
        return out


class DrawnAsFirstRow(Reference):
    """Draws as many slots of each row as the first row has."""

    name = "planted"
    priority = 1

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        return super().sample(logits, key)

    def sample_of_slots(self, logits: Tensor, key: Tensor | None, width: Tensor) -> Tensor:
        out = super().sample_of_slots(logits, key, width)
        out[:, int(width[0]) :] = 0
        return out


class Unwritten(Multiplying):
    """Leaves NaN where padding is."""

    def linear_of_slots(
        self, x: Tensor, weight: Weight, bias: Tensor | None, width: Tensor, wide: bool = False
    ) -> Tensor:
        out = super().linear_of_slots(x, weight, bias, width, wide)
        out[torch.arange(x.shape[1]) >= width[:, None]] = float("nan")
        return out


class UnwrittenLayers(Reference):
    """Leaves NaN where padding is."""

    name = "planted"
    priority = 1

    def decoder_layers(self, x: Tensor, layers: Any, turn: Any, at: Sequence[Cells]) -> Tensor:
        out = super().decoder_layers(x, layers, turn, at)
        if at[0].width is not None:
            out[torch.arange(x.shape[1]) >= at[0].width[:, None]] = float("nan")
        return out


BACKENDS: list[tuple[type[Reference], list[str], str, str]] = [
    (Rounded, ["rms_norm"], "agrees_with_the_reference", "rms_norm of planted is the reference's.*errs by"),
    (Hidden, ["rms_norm", "linear"], "agrees_with", "planted runs linear.*took none"),
    (Hidden, [], "agrees_with", "planted does not run rms_norm.*it took the cases of"),
    (Forgiving, [], "changes_no_output", "changes no output"),
    (
        AsFirstRow,
        ["linear"],
        "slots_that_count",
        "linear_of_slots of planted is linear of the slots that count.*errs by",
    ),
    (DrawnAsFirstRow, ["sample"], "slots_that_count", "sample_of_slots of planted is sample of the slots that count"),
    (Unwritten, ["linear"], "slots_that_count", "errs by nan"),
    (UnwrittenLayers, ["decoder_layers"], "agrees_with", "errs by nan.*padding"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "ops", "check", "message"), BACKENDS, ids=name_of)
def test_a_faulty_backend_is_found(fault: type[Reference], ops: list[str], check: str, message: str) -> None:
    found = failures(conformance.backend("planted", ops=ops, factory=fault), only=check)
    assert any(re.search(message, said, re.DOTALL) for _, said in found)


def test_a_backend_that_multiplies_padding_passes() -> None:
    kit = conformance.backend("planted", ops=["linear"], factory=Multiplying)
    assert list(failures(kit, only="slots_that_count")) == []


PLANTED: dict[type[Checks], list[str]] = {
    DraftChecks: [check for _, _, check, _ in [*DRAFTS, *CHEATING_DRAFTS]],
    PolicyChecks: [check for _, _, check, _ in [*POLICIES, *CHEATING_POLICIES]],
    ControllerChecks: [
        *(check for _, _, check, _ in CONTROLLERS),
        *(check for _, check, _ in CHEATING_CONTROLLERS),
    ],
    BackendChecks: [check for _, _, check, _ in BACKENDS],
    EngineChecks: [check for _, check, _ in ENGINES],
    HeadChecks: [check for _, check, _ in FAULTY_HEADS],
}
"""The checks of which a fault is found above, in ``test_cheats`` or in tests/doctor, each by a part of its name."""


def test_each_check_of_the_kit_has_been_seen_to_fail() -> None:
    assert PLANTED.keys() == {*Checks.__subclasses__()}, "a kind of plugin whose kit is not tried"
    for kit, parts in PLANTED.items():
        names = [name for name in vars(kit) if name.startswith("test_")]
        meant = {part: [name for name in names if re.search(part, name)] for part in parts}
        assert {part: found for part, found in meant.items() if len(found) != 1} == {}, "the part of a name is of one"
        assert {*names} - {found[0] for found in meant.values()} == set(), f"no fault is planted for these of {kit}"
