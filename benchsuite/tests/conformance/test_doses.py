"""What each check of the kit runs: engines, requests, seeds and comparisons, as ``kit_doses.txt`` has them.

A check that looks at less than it seems to passes as before and finds less, which no planted fault has to show.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite import conformance
from benchsuite.conformance import claims, controllers, drafts, engines, faked, policies
from benchsuite.conformance.claims import Checks
from benchsuite.conformance.exact.enumerator import Shape, context
from benchsuite.judge import fidelity
from benchsuite.tests.rig import slow_after
from specdec import Engine, Request, model
from specdec.assembly import Assembly
from specdec_kernels.reference import Reference
from specdec_plugins.engines.transformers import Transformers

TEXT = Path(__file__).parents[1] / "kit_doses.txt"
"""Blocks of lines: the name of a kit's check, and what it runs."""

USUAL = model.PREFILL_CHUNK


class Batched(Transformers):
    """Takes several requests in a call."""

    batches = True


KITS: dict[str, tuple[type[Checks], str]] = {
    "a draft that draws": (conformance.draft("draft_model", sampled=True, k=2), ""),
    "a tree": (conformance.draft("ngram(n_min=1, branches=2)", trees=True), "claims|well_formed|follows|writes"),
    "a lookup that remembers": (
        conformance.draft("suffix(min_match=1)", remembers=True),
        "it_is_what_it_claims|follows|remembered",
    ),
    "a policy of trees": (
        conformance.policy("match", greedy="exact", sampled="exact", trees=True, coupled=True),
        "",
    ),
    "a policy of chains": (
        conformance.policy("rejection", greedy="exact", sampled="distribution"),
        "it_is_what_it_claims|distribution|seeds|greedy",
    ),
    "a lossy policy": (
        conformance.policy("longest_prefix", greedy="exact", sampled="lossy", trees=True),
        "it_is_what_it_claims|distribution|seeds",
    ),
    "a controller": (conformance.controller("fixed", k=2), ""),
    "a backend": (conformance.backend("reference", ops=[]), "changes_no_output"),
    "another engine": (conformance.engine("transformers", refuses=["cache=sttic", "cache=4"]), ""),
    "an engine that batches": (conformance.engine("batched", factory=Batched), "several|times"),
    "an engine that speculates": (conformance.engine("transformers_prompt_lookup(k=3)"), "plain_decoding|explain"),
}
"""Kits, and a pattern of their checks that are looked at, where these differ from those of the kit before."""


class Notebook:
    """Notes what is called, and lets it run or, where running is another test's work, takes its place."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._lines: list[tuple[str, list[Request]]] = []

    def add(self, line: str, work: Sequence[Request] = ()) -> None:
        """Add a line, with its requests; calls of one kind with one request each are told together."""
        if self._lines and self._lines[-1][0] == line and len(work) == 1:
            self._lines[-1][1].extend(work)
        elif line:
            self._lines.append((line, [*work]))

    def note(self, owner: Any, name: str, told: Callable[..., str], instead: Callable[..., Any] | None = None) -> None:
        """From now on each call of ``owner.name`` adds the line that ``told`` makes of its arguments."""
        original = getattr(owner, name)

        def noting(*given: Any, **named: Any) -> Any:
            self.add(told(*given, **named))
            return (instead or original)(*given, **named)

        self._patch.setattr(owner, name, noting)

    def note_requests(self, owner: Any, name: str, told: Callable[..., str]) -> None:
        """The same of a method whose last argument are requests."""
        original = getattr(owner, name)

        def noting(*given: Any) -> Any:
            if given[-1]:
                self.add(told(*given), given[-1])
            return original(*given)

        self._patch.setattr(owner, name, noting)

    def text(self) -> str:
        """All lines, and forget them."""
        lines, self._lines = self._lines, []
        return "".join(f"\n  {line}{of_requests(work) if work else ''}" for line, work in lines)


def once(values: Sequence[Any]) -> str:
    """All values, or one of them if they are equal; of many the first three and the last."""
    if len(set(values)) == 1:
        return str(values[0])
    shown = [*values[:3], "…", values[-1]] if len(values) > 9 else values
    return " ".join(map(str, shown))


def of_requests(work: Sequence[Request]) -> str:
    """Requests in a few words; the number at the end stands for all of them."""
    parts: dict[str, list[Any]] = {
        "ids": [one.id for one in work],
        "prompts of": [len(one.prompt) for one in work],
        "outputs of": [one.params.max_new_tokens for one in work],
        "temperature": [one.params.temperature for one in work],
        "top-k": [one.params.top_k for one in work],
        "seed": [one.params.seed for one in work],
        "end tokens": [len(one.params.eos) for one in work],
    }
    number = zlib.crc32(repr([*parts.values(), [one.prompt for one in work]]).encode())
    said = ", ".join(f"{name} {once(values)}" for name, values in parts.items() if any(values))
    return f"{len(work)} requests, {said}; {number:08x}"


def of_engine(
    build: Assembly,
    draft: str | None,
    policy: str = "match",
    controller: str = "fixed",
    k: int | None = None,
    max_rows: int | None = None,
    recorder: Any = None,
) -> str:
    if draft is None:  # plain decoding is kept for all checks
        return ""
    rows, kind = max_rows or build._env.max_rows, build.target.model.config.model_type
    size = f"{rows} rows of {build.max_length}, {kind}, {build.target.dtype}"
    return f"engine: {draft}, {policy}, {controller}, K {k}; {size}{', on a tape' if recorder else ''}"


def of_run(engine: Engine, work: Sequence[Request]) -> str:
    if engine.draft is None:
        return ""
    chunk = "" if USUAL == model.PREFILL_CHUNK else f", in chunks of {model.PREFILL_CHUNK}"
    return f"run of {engine.max_rows} rows{chunk}: "


def of_fake(draft: str, policy: str, **named: Any) -> str:
    params, config = named.pop("params"), named.pop("config")
    given = {name: value for name, value in named.items() if name != "extra"}
    return f"on fake tensors: {draft}, {policy}, {given}, {config.model_type}, temperature {params.temperature}"


def of_steps(engine: Engine, work: Sequence[Request], steps: int) -> str:
    return f"{steps} guarded steps: {of_requests(work)}"


def of_distance(policy: Any, vocabulary: int, shape: Shape, requests: Sequence[Request], **named: Any) -> str:
    lengths = [one.params.max_new_tokens for one in requests]
    return f"enumeration: {vocabulary} tokens, parents {shape.parents}, outputs of {lengths}, {named}"


def of_claim(text: str, name: str, claimed: bool, measured: bool, example: str) -> str:
    return f"claim: {name}, {claimed} and {measured}: {example.partition(' it proposed')[0]}"


def of_peer(arm: Any, peer: Any) -> str:
    return f"peer {arm.label} on {arm.setting}"


def binning(found: list[int], patch: pytest.MonkeyPatch) -> None:
    """Count from now on what ``fidelity`` puts into each bin."""
    binned = fidelity.binned

    def counted(*given: Any) -> list[int]:
        places = binned(*given)
        for place in places:
            found[place] += 1
        return places

    patch.setattr(fidelity, "binned", counted)


def told_bins(bins: list[int], found: list[int]) -> str:
    """How many numbers, in thousands, since what is drawn varies with the processor; the bins are then empty again."""
    told = f"some {sum(bins) // 1000},000 numbers, {'all' if bins == found else 'not all'} that were found"
    found[:] = [0] * len(found)
    return told


class Fine:
    """A run on fake tensors that finds nothing."""

    def wrong(self) -> str:
        return ""


def book_of(patch: pytest.MonkeyPatch) -> Notebook:
    """A book in which all that the kit's checks run is noted."""
    book = Notebook(patch)
    book.note(Assembly, "engine", of_engine)
    book.note_requests(Engine, "run", of_run)
    found = [0] * fidelity.BINS
    binning(found, patch)
    book.note(fidelity, "evenness", lambda bins: f"evenness of {told_bins(bins, found)}")
    book.note(faked, "fake_run", of_fake, lambda *given, **named: Fine())
    book.note(policies, "run_distance", of_distance, lambda *given, **named: 0.0)
    book.note(policies, "in_common", lambda policy, shape: f"keys: parents {shape.parents}", lambda policy, shape: {})
    book.note(engines, "PeerRunner", of_peer)
    for module in (drafts, engines):
        book.note(module, "Judge", lambda target, probe: f"judge by {probe}")
    for module in (drafts, policies):
        book.note(module, "guarded_steps", of_steps)
    for module in (drafts, policies, controllers, engines):
        book.note(module, "same", of_claim)
    return book


def built_and_noted(book: Notebook) -> Callable[..., Any]:
    """``EngineChecks._built``, with a note of what it was asked for and of what its peer is asked."""
    original = engines.EngineChecks._built

    def built(self: Any, text: str, make: Any) -> Any:
        book.add(f"built {text}")
        peer = original(self, text, make)
        book.note_requests(peer, "generate", lambda work: "generated: ")
        book.note(peer, "logits_at", lambda request, index: f"logits of request {request.id} at {index}")
        return peer

    return built


def doses(name: str, patch: pytest.MonkeyPatch) -> str:
    """What each check of a kit runs."""
    kit, pattern = KITS[name]
    drafts.kit_assembly.cache_clear()  # plain decoding's outputs are kept there
    book = book_of(patch)
    patch.setattr(engines.EngineChecks, "_built", built_and_noted(book))
    text = [f"== {name}"]
    for check in [each for each in dir(kit) if each.startswith("test_") and re.search(pattern, each)]:
        found = dict(claims.failures(kit, only=f"^{check}$"))
        assert not found, found
        text.append(check + book.text())
    return "\n".join(text)


@pytest.mark.parametrize("name", slow_after(2, reversed(KITS)))
def test_each_check_of_the_kit_runs_what_is_written_down(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got = doses(name, monkeypatch)
    assert f"{got}\n\n" in TEXT.read_text(encoding="utf-8"), f"if it is meant to, write this to {TEXT.name}:\n{got}"


def test_no_kit_is_written_down_that_is_not_run() -> None:
    written = [line.removeprefix("== ") for line in TEXT.read_text(encoding="utf-8").splitlines() if line[:2] == "=="]
    assert written == [*KITS]


def test_the_windows_that_policies_judge_are_ragged_and_of_every_width() -> None:
    chains, logits = policies._random_windows(False)
    assert (chains.tokens.shape, logits.shape) == ((8, 5), (8, 5, 6))
    assert chains.width.tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert chains.parents.tolist() == [[-1, 0, 1, 2, 3]] * 8
    assert chains.tokens.tolist()[:2] == [[1, 5, 0, 2, 1], [1, 5, 0, 5, 0]]
    assert sorted(set(chains.tokens.flatten().tolist())) == [0, 1, 2, 3, 4, 5]
    assert chains.q is not None
    assert chains.q.shape == (8, 4, 6)
    torch.testing.assert_close(chains.q.sum(dim=2), torch.ones(8, 4))
    torch.testing.assert_close(
        chains.q[0, 0], torch.tensor([0.0866, 0.0604, 0.0198, 0.3644, 0.2384, 0.2303]), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        logits[0, 0], torch.tensor([-1.8821, -0.7765, 2.0242, -0.0865, 0.0981, -1.215]), atol=1e-4, rtol=0
    )
    trees, same = policies._random_windows(True)
    assert trees.q is None
    assert trees.parents.tolist() == [[-1, 0, 0, 1, row % 3] for row in range(8)]
    assert torch.equal(trees.width, chains.width)
    assert torch.equal(logits, same)
    assert bool((trees.tokens[:, 1] != trees.tokens[:, 2]).all()), "siblings are drawn without replacement"


def test_each_row_of_a_policys_windows_has_noise_and_tensors_of_its_own() -> None:
    one = context(Reference())
    rows = policies._rows(one, 3, 2)
    assert rows.params.stream.tolist() == [2 * 77 + 5, 3 * 77 + 5, 4 * 77 + 5]
    assert rows.request.tolist() == [2, 3, 4]
    for name in ("tokens", "length", "max_proposals"):
        wide, narrow = getattr(rows, name), getattr(one, name)
        assert wide.tolist() == narrow.tolist() * 3
        assert wide.is_contiguous()
    for name in ("temperature", "top_k", "top_p"):
        assert getattr(rows.params, name).tolist() == getattr(one.params, name).tolist() * 3


SKIPPED: list[tuple[type[Checks], str, dict[str, Any], str]] = [
    (
        conformance.draft("garbage", memoryless=False),
        "test_what_it_proposes_follows_from_the_text",
        {"params": drafts.GREEDY, "policy": "coupled"},
        "memoryless=False",
    ),
    (
        conformance.draft("garbage", memoryless=False),
        "test_a_prompt_read_in_chunks_is_a_prompt_read_at_once",
        {},
        "memoryless=False, so that two runs may propose differently",
    ),
    (
        conformance.draft("garbage", fakes=False),
        "test_a_step_is_fit_for_a_gpu",
        {"params": drafts.GREEDY},
        "fakes=False",
    ),
    *(
        (conformance.draft("garbage"), name, {}, "sampled=False")
        for name in (
            "test_q_is_the_distribution_that_its_proposals_were_drawn_from",
            "test_its_own_noise_is_new_in_every_step",
        )
    ),
    *(
        (
            conformance.policy("typical", greedy="lossy", sampled="lossy"),
            f"test_{name}_outputs_are_plain_where_claimed",
            {},
            f"{name}=lossy",
        )
        for name in ("greedy", "sampled")
    ),
    (
        conformance.controller("goodput", deterministic=False),
        "test_it_repeats_where_claimed",
        {"draft": "garbage"},
        "deterministic=False",
    ),
    (
        conformance.engine("transformers", own_arithmetic=True),
        "test_its_tokens_are_the_targets",
        {},
        "own_arithmetic=True",
    ),
]


@pytest.mark.parametrize(("kit", "check", "given", "claim"), SKIPPED, ids=lambda value: str(value)[:40])
def test_what_is_not_claimed_is_not_run_and_the_skip_names_the_claim(
    kit: type[Checks], check: str, given: dict[str, Any], claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine", "run"):
        monkeypatch.setattr(Assembly if name == "engine" else Engine, name, None)
    with pytest.raises(pytest.skip.Exception) as skipped:
        getattr(kit(), check)(**given)
    assert str(skipped.value) == f"claimed: {claim}"


def test_an_accelerators_checks_are_skipped_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(pytest.skip.Exception, match="no CUDA device here"):
        conformance.draft("garbage")().test_it_changes_no_output(drafts.GREEDY, "cuda", torch.float32)
