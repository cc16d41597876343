"""Checks of every policy: its contract, by enumeration, and the form of its verdicts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.claims import Checks, Failed, same
from benchsuite.conformance.drafts import GREEDY, SAMPLED_ROWS, differ, follows_the_target, kit_assembly
from benchsuite.conformance.exact.enumerator import Shape, chain, context
from benchsuite.conformance.exact.exact_runs import PROMPTS, run_distance
from benchsuite.conformance.exact.keys import in_common
from benchsuite.conformance.faked import must_fit_a_gpu
from benchsuite.conformance.guards.read_guard import guarded_steps
from benchsuite.conformance.lent import lent_copy, refuse_writes
from benchsuite.conformance.models import tiny
from benchsuite.conformance.near_ties import HEATS, Offer, offers
from benchsuite.conformance.replayed import must_replay
from specdec import Context, Policy, Request, SamplingParams, Verdict, Window
from specdec.interfaces import Contract
from specdec_kernels.reference import Reference

EXACT = 1e-12
"""The largest total variation that counts as rounding."""

FORK = Shape((-1, 0, 0, 1))


@dataclass(frozen=True)
class Enumerated:
    """Runs to enumerate: the vocabulary, the proposals, the length of each row's output, and the seed of both tables.

    ``heat`` is the temperature. ``near``: the target's tokens are nearly equally likely; ``ids``: those of the tokens.
    """

    vocabulary: int
    shape: Shape
    lengths: tuple[int, ...]
    seed: int = 0
    heat: float = 1.0
    near: bool = False
    ids: tuple[int, ...] | None = None

    def __str__(self) -> str:
        near = ", nearly equally likely" if self.near else ""
        ids = f" {list(self.ids)}" if self.ids else ""
        rows = f", {len(self.lengths)} rows" if len(self.lengths) > 1 else ""
        heat = f", temperature {self.heat}" if self.heat != 1 else ""
        return f"{self.vocabulary} tokens{ids}{near}, parents {list(self.shape.parents)}{rows}{heat}"

    def distance(self, policy: Policy, certain: bool, fresh: bool = False) -> float:
        """The total variation between outputs under a policy and the target's; see ``run_distance``."""
        work = [
            Request(number, PROMPTS[number], SamplingParams(temperature=self.heat, max_new_tokens=length))
            for number, length in enumerate(self.lengths)
        ]
        return run_distance(
            policy,
            self.vocabulary,
            self.shape,
            work,
            rows=len(work),
            certain=certain,
            seed=self.seed,
            near=self.near,
            ids=self.ids,
            fresh=fresh,
        )


# The residual of a chain has several tokens only with a larger vocabulary, and siblings share a coin unseen with two
# tokens, and with most tables of three.
CHAINS: tuple[Enumerated, ...] = (
    Enumerated(2, chain(1), (3,)),
    Enumerated(2, chain(2), (3,)),
    Enumerated(4, chain(1), (2,)),
    Enumerated(3, chain(1), (2,), near=True, heat=0.5),
    Enumerated(2, chain(1), (2, 1), near=True),
    Enumerated(2, chain(1), (2,), near=True, heat=2.0, ids=(1200, 1500)),
)
FORKS: tuple[Enumerated, ...] = (
    Enumerated(2, FORK, (3,)),
    Enumerated(3, Shape((-1, 0, 0)), (3,), seed=3),
    Enumerated(3, Shape((-1, 0, 0)), (2,), near=True),
)
SAMPLED = SamplingParams(temperature=1.0)
WARM = SamplingParams(temperature=0.6, top_p=0.9)
OTHERS = (replace(SAMPLED, temperature=0.3), replace(SAMPLED, temperature=1.6), WARM, replace(SAMPLED, top_k=9))
"""Further parameters of sampled requests, for which a contract holds too."""


@cache
def _random_windows(trees: bool) -> tuple[Window, Tensor]:
    """Ragged windows of eight rows, with random q if they are chains, and logits for them."""
    generator = torch.Generator().manual_seed(1)
    rows, size, vocabulary = 8, 5, 6
    tokens = torch.randint(0, vocabulary, (rows, size), generator=generator)
    chains = torch.arange(-1, size - 1).expand(rows, -1)
    above = torch.stack([torch.tensor([-1, 0, 0, 1, int(row) % 3]) for row in range(rows)])
    # Siblings are drawn without replacement.
    tokens[:, 2] = torch.where(tokens[:, 2] == tokens[:, 1], (tokens[:, 1] + 1) % vocabulary, tokens[:, 2])
    width = torch.arange(rows) % size + 1
    logits = torch.randn(rows, size, vocabulary, generator=generator)
    q = torch.randn(rows, size - 1, vocabulary, generator=generator).softmax(dim=-1)
    return Window(tokens, (above if trees else chains).clone(), width, None if trees else q), logits


class PolicyChecks(Checks):
    """Checks of a policy; ``conformance.policy`` makes a subclass with the claims filled in."""

    text: ClassVar[str]
    greedy: ClassVar[Contract]
    sampled: ClassVar[Contract]
    trees: ClassVar[bool]
    coupled: ClassVar[bool]
    extra: ClassVar[tuple[tiny.Extra, ...]]

    @property
    def policy(self) -> Policy:
        """The policy as an engine builds it."""
        return kit_assembly("llama", 3, self.extra).engine("ngram", self.text, k=2).policy

    def test_it_is_what_it_claims(self) -> None:
        """The class has the claimed ``trees``, ``coupled`` and contracts."""
        policy = self.policy
        same(self.text, "trees", self.trees, policy.trees, "the class says so")
        same(self.text, "coupled", self.coupled, policy.coupled, "the class says so")
        sampled = [(params, self.sampled) for params in (SAMPLED, *OTHERS)]
        for params, claimed in ((GREEDY, self.greedy), *sampled):
            says = policy.contract(params)
            if says != claimed:
                example = f"temperature {params.temperature}, top-k {params.top_k}, top-p {params.top_p}"
                raise Failed(f"{self.text} is {claimed}", f"it says {says}", example)

    @pytest.mark.parametrize("certain", [False, True])
    def test_its_distribution_is_what_its_contract_says(self, certain: bool) -> None:
        """Every outcome of whole runs of the engine is enumerated; the distance of a lossy policy is printed."""
        cases = CHAINS + FORKS if self.trees else CHAINS
        if self.sampled == "lossy":  # whose distance is shown, and holds no promise
            cases = CHAINS[1:2] + (FORKS[:1] if self.trees else ())
        far = {case: case.distance(self.policy, certain) for case in cases}
        if self.sampled == "lossy":
            print(f"{self.text}: total variation {max(far.values()):.4f}")
        elif max(far.values()) > EXACT:
            case = max(far, key=far.__getitem__)
            fresh = case.distance(self.policy, certain, fresh=True)
            why = "" if fresh > EXACT else "; 0 if no noise were used twice: some draws or coins share a key"
            raise Failed(
                f"{self.text} has the target's distribution",
                f"total variation {far[case]:.4f} of {sum(case.lengths)} tokens{why}",
                f"{case}, proposals {'certain' if certain else 'drawn'}",
            )

    @pytest.mark.parametrize(
        ("draft", "params"), [pytest.param("draft_model", SAMPLED), pytest.param("ngram(n_min=1)", WARM)]
    )
    def test_sampled_outputs_have_the_targets_distribution(self, draft: str, params: SamplingParams) -> None:
        """The same by samples over 258 tokens: what was enumerated are at most four, which a policy can count."""
        if self.sampled != "distribution":
            pytest.skip(f"claimed: sampled={self.sampled}")
        build = kit_assembly("llama", SAMPLED_ROWS, self.extra)
        follows_the_target(draft, self.text, build, build.engine(draft, self.text, k=4), params)

    def test_seeds_and_requests_have_noise_of_their_own(self) -> None:
        """A request's draws and coins share no noise with those of another seed, or of another request."""
        for shape in [chain(2), *([FORK] if self.trees else [])]:
            for other, keys in in_common(self.policy, shape).items():
                if keys:
                    raise Failed(
                        f"{self.text} draws by the noise of the seed and of the request",
                        f"{keys} of a request's keys are also those of {other}",
                        f"12 tokens, parents {list(shape.parents)}",
                    )

    def test_greedy_outputs_are_plain_where_claimed(self) -> None:
        """The distribution of a greedy row is one-hot, so its output equals plain decoding's."""
        if self.greedy != "exact":
            pytest.skip(f"claimed: greedy={self.greedy}")
        build = kit_assembly("llama", 3, self.extra)
        for draft in ("oracle(0.8)", "garbage", *(("ngram(branches=2)",) if self.trees else ())):
            differ(f"{draft} under {self.text}", build, build.engine(draft, self.text, k=4), tiny.requests(GREEDY, 6))

    def test_greedy_it_keeps_no_token_that_is_nearly_the_likeliest(self) -> None:
        """Offered the second likeliest at each depth of windows of every width, it emits the likeliest all the same."""
        if self.greedy != "exact":
            pytest.skip(f"claimed: greedy={self.greedy}")
        policy = self.policy
        for offer in offers(self.trees, (0.0,)):
            self._must_choose(policy, offer, "greedy", "the likeliest")

    def test_sampled_it_keeps_no_token_that_was_nearly_drawn(self) -> None:
        """The same where plain decoding draws: offered the token that came second by the noise of the draw."""
        if self.sampled != "exact":
            pytest.skip(f"claimed: sampled={self.sampled}")
        policy = self.policy
        for offer in offers(self.trees, HEATS):
            self._must_choose(policy, offer, "sampled", "drawn")

    def _must_choose(self, policy: Policy, offer: Offer, kind: str, chosen: str) -> None:
        """Raise Failed where a row of an offer emits another token than plain decoding."""
        window, params = offer.window, offer.context.params
        bare = policy.raw or (policy.chooses and params.greedy and params.adjustments is None)  # as the engine decides
        logits = offer.logits.clone() if bare else offer.context.process(offer.logits, window)
        verdict, choices = policy.accept(logits, window, offer.context), offer.choices()
        for row, (path, kept) in enumerate(zip(verdict.path.tolist(), verdict.num_accepted.tolist(), strict=True)):
            tokens = [*window.tokens[row, path[1 : kept + 1]].tolist(), int(verdict.next[row])]
            due = choices[row, path[: kept + 1]].tolist()
            if offer.seen[row] and tokens != due:
                where = f" {offer.condition}" if offer.condition else ""
                raise Failed(
                    f"{kind} outputs of {self.text} are plain decoding's",
                    f"it emits {tokens} where {due} are {chosen}",
                    f"a token {offer.gaps[row]:g} nats below{where}, parents {window.parents[row].tolist()}",
                )

    def test_sampled_outputs_are_plain_where_claimed(self) -> None:
        """The tokens equal plain decoding's, because the policy draws with the target's own noise."""
        if self.sampled != "exact":
            pytest.skip(f"claimed: sampled={self.sampled}")
        build, params = kit_assembly("llama", 3, self.extra), replace(GREEDY, temperature=1.0, seed=3)
        for draft in ("oracle(0.8)", "garbage"):
            differ(f"{draft} under {self.text}", build, build.engine(draft, self.text, k=4), tiny.requests(params, 6))

    def test_a_verdict_is_a_path_of_its_window(self) -> None:
        """The path starts at the root, has valid slots only and is -1 past its end; ``next`` is a valid token id."""
        window, logits = _random_windows(self.trees)
        verdict = self._judge(window, logits)
        for row in range(len(logits)):
            path, kept = verdict.path[row].tolist(), int(verdict.num_accepted[row])
            walk = path[: kept + 1]
            parents = window.parents[row].tolist()
            fits = (
                walk[0] == 0
                and all(parents[b] == a for a, b in itertools.pairwise(walk))
                and max(walk) < int(window.width[row])
                and set(path[kept + 1 :]) <= {-1}
                and 0 <= int(verdict.next[row]) < logits.shape[2]
            )
            if not fits:
                raise Failed(
                    f"{self.text} returns a path from the root, -1 past its end",
                    f"path {path} with num_accepted {kept}, next {int(verdict.next[row])}",
                    f"parents {parents}, width {int(window.width[row])}",
                )

    def test_a_row_does_not_see_its_neighbours(self) -> None:
        """Each row alone gets the same verdict as in the batch."""
        window, logits = _random_windows(self.trees)
        whole = self._judge(window, logits)
        for row in range(len(logits)):
            only = slice(row, row + 1)
            q = None if window.q is None else window.q[only]
            part = Window(window.tokens[only], window.parents[only], window.width[only], q)
            alone = self._judge(part, logits[only], row)
            got, expected = (
                (v.path[at].tolist(), int(v.num_accepted[at]), int(v.next[at])) for v, at in ((whole, row), (alone, 0))
            )
            if got != expected:
                raise Failed(
                    f"{self.text} judges rows one by one", f"{got} in the batch, {expected} alone", f"row {row}"
                )

    def test_it_writes_to_nothing_that_it_was_lent(self) -> None:
        """Logits, window and context belong to the engine, which reads them later."""
        window, logits = lent_copy(_random_windows(self.trees))
        policy = self.policy
        refuse_writes(self.text, policy, ["accept"])
        policy.accept(logits, window, _rows(context(Reference()), len(logits), 0))

    @pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, temperature=1.0)], ids=["greedy", "sampled"])
    def test_a_step_can_be_recorded_and_replayed(self, params: SamplingParams) -> None:
        """A verdict follows from tensors alone, so that a recorded step gives what its Python would give again."""
        must_replay(self.text, "llama", self.extra, "draft_model", self.text, tiny.requests(params, 4), 3)

    @pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, temperature=1.0)], ids=["greedy", "sampled"])
    def test_a_step_is_fit_for_a_gpu(self, params: SamplingParams) -> None:
        """On fake tensors: nothing is read or waited for, no devices are mixed, and equal steps make equal launches."""
        must_fit_a_gpu(self.text, "llama", self.extra, "garbage", self.text, params, 3)

    def test_a_step_reads_the_device_once(self) -> None:
        """The host reads the device only in the engine's one read."""
        for params in (GREEDY, replace(GREEDY, temperature=1.0)):
            engine = kit_assembly("llama", 3, self.extra).engine("draft_model", self.text, k=3)
            # Longer than six steps in which every proposal is accepted.
            guarded_steps(engine, tiny.requests(replace(params, max_new_tokens=60), 3), 6)

    def _judge(self, window: Window, logits: Tensor, first: int = 0) -> Verdict:
        return self.policy.accept(logits, window, _rows(context(Reference()), len(logits), first))


def _rows(one_row: Context, rows: int, first: int) -> Context:
    """``rows`` copies of one row, each with its own noise stream, numbered from ``first``."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.expand(rows, *tensor.shape[1:]).clone()

    params = one_row.params
    stacked = replace(
        params,
        stream=torch.arange(first, first + rows) * 77 + 5,
        temperature=wide(params.temperature),
        top_k=wide(params.top_k),
        top_p=wide(params.top_p),
    )
    return replace(
        one_row,
        request=torch.arange(first, first + rows),
        tokens=wide(one_row.tokens),
        length=wide(one_row.length),
        max_proposals=wide(one_row.max_proposals),
        params=stacked,
    )
