"""How the kit asks: which cases it runs, which windows it looks at twice, and what it says of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite import conformance
from benchsuite.conformance import drafts
from benchsuite.conformance.backends import BackendChecks
from benchsuite.conformance.claims import Checks, Failed, failures
from benchsuite.conformance.controllers import _equal, _even_clock
from benchsuite.conformance.drafts import DraftChecks
from benchsuite.conformance.proposals import Proposal, proposals, proposed_from_scratch
from benchsuite.judge import fidelity
from benchsuite.judge.favour import SHARES, Favour
from benchsuite.tests.rig import Make
from specdec import Engine, Request, SamplingParams
from specdec_plugins.drafts.garbage import Garbage

TEXT = tuple(range(100, 130))


def made_window(text: int, tokens: tuple[int, ...], parents: tuple[int, ...] | None = None, room: int = 4) -> Proposal:
    """What a draft proposed after the first ``text`` tokens of ``TEXT``."""
    chain = tuple(range(len(tokens))) if parents is None else parents
    return Proposal(Request(0, TEXT, SamplingParams()), TEXT[:text], room, room, tokens, chain, None)


CUDA = pytest.param(7, 8, marks=pytest.mark.cuda)


class Some:
    """Looks like ``Checks``, which is a base of kits alone."""

    @pytest.mark.parametrize("a", [1, 2])
    @pytest.mark.parametrize(("b", "c"), [pytest.param(3, 4), pytest.param(5, 6), CUDA])
    def test_product(self, a: int, b: int, c: int) -> None:
        raise Failed("a claim", "a number", f"{a} {b} {c}")

    def test_skipped(self) -> None:
        pytest.skip("claimed: nothing")

    @pytest.mark.parametrize("case", [0, 1])
    def test_skipped_at_first(self, case: int) -> None:
        if case == 0:
            pytest.skip("claimed: nothing")
        raise Failed("a claim", "a number", str(case))

    def test_fine(self) -> None: ...

    def test_broken(self) -> None:
        raise ValueError("odd")

    def helper(self) -> None:
        raise AssertionError("no check")


def test_every_case_of_a_check_is_run_but_those_that_need_an_accelerator() -> None:
    found = dict(failures(Some))  # type: ignore[arg-type]
    product = {f"test_product[{b}, {c}, {a}]": f"{a} {b} {c}" for a in (1, 2) for b, c in ((3, 4), (5, 6))}
    assert found.keys() == {"test_broken", "test_skipped_at_first[1]", *product}
    assert found["test_broken"] == "ValueError: odd"
    for name, example in product.items():
        said = f"Failed: \n  claimed:  a claim\n  measured: a number\n  example:  {example}"
        assert found[name] == said
    assert [name for name, _ in failures(Some, only="broken|fine")] == ["test_broken"]  # type: ignore[arg-type]


def test_a_window_is_shown_with_the_end_of_its_text_and_its_tree() -> None:
    assert str(made_window(3, (7, 8))) == "after [100, 101, 102] it proposed [7, 8]"
    assert str(made_window(8, (7,))) == "after [100, 101, 102, 103, 104, 105, 106, 107] it proposed [7]"
    last = "[… 101, 102, 103, 104, 105, 106, 107, 108] (9 tokens)"
    assert str(made_window(9, (7, 8), (0, 0))) == f"after {last} it proposed [7, 8] with parents [0, 0]"


def test_a_window_is_asked_for_again_with_its_text_as_a_prompt_and_its_room(assemble: Make) -> None:
    for room in (1, 2, 3):
        again = proposed_from_scratch(assemble().engine("garbage", k=3), made_window(6, (7, 8), room=room))
        assert again is not None
        assert (again.text, again.room, len(again.tokens)) == (TEXT[:6], room, room)
    assert proposed_from_scratch(assemble().engine("ngram", k=3), made_window(6, (7, 8))) is None


def test_what_a_draft_remembers_is_forgotten_before_a_window_is_asked_for_again(assemble: Make) -> None:
    """The text ends in a token that only the earlier request continued."""
    engine, window = assemble().engine("suffix(min_match=1)", k=3), made_window(6, (7, 8))
    engine.run([Request(0, (*TEXT[:6], 7, 8, 9), SamplingParams(max_new_tokens=2))])
    learnt = proposals(engine, [Request(1, TEXT[:6], SamplingParams(max_new_tokens=4))], most=1)
    assert learnt[0].tokens == (7, 8, 9)
    assert proposed_from_scratch(engine, window) is None


def asked_again(kit: type[DraftChecks], every: list[Proposal], monkeypatch: pytest.MonkeyPatch) -> list[Proposal]:
    """Give a kit these records of a draft that proposes the same again; what it asks for again is added to the list."""
    asked: list[Proposal] = []

    def again(engine: object, seen: Proposal) -> Proposal:
        asked.append(seen)
        return seen

    monkeypatch.setattr(kit, "records", lambda self, *given: every)
    monkeypatch.setattr(drafts, "proposed_from_scratch", again)
    return asked


@pytest.mark.parametrize("count", [1, 23, 24, 25, 48, 49, 100])
def test_at_most_so_many_windows_spread_over_all_are_proposed_again(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = conformance.draft("garbage")
    every = [made_window(number % 20 + 1, (number,)) for number in range(count)]
    asked = asked_again(kit, every, monkeypatch)
    kit().test_what_it_proposes_follows_from_the_text(drafts.GREEDY, "coupled")
    places = [every.index(seen) for seen in asked]
    step = -(-count // 24)
    assert places == [*range(0, count, step)]
    assert len(places) <= kit.windows == 24


@pytest.mark.parametrize(("policy", "chosen"), [("coupled", "match"), ("uncoupled", "rejection")])
@pytest.mark.parametrize("remembers", [False, True])
def test_windows_are_proposed_again_under_the_same_policy_alone_in_an_engine(
    policy: str, chosen: str, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that remembers is asked for one request, so that no other has ended before."""
    kit, asked, seen = conformance.draft("garbage", remembers=remembers), list[Any](), made_window(6, (7, 8))

    def again(engine: Any, window: Proposal) -> Proposal:
        asked.append((type(engine.policy).__name__.lower(), engine.max_rows, engine.controller.max_k))
        return window

    def records(kit: object, *given: Any) -> list[Proposal]:
        asked.append(given)
        return [seen]

    monkeypatch.setattr(kit, "records", records)
    monkeypatch.setattr(drafts, "proposed_from_scratch", again)
    kit().test_what_it_proposes_follows_from_the_text(drafts.SAMPLED, policy)
    assert asked == [(chosen, drafts.SAMPLED, *((1, 1) if remembers else (3, 6))), (chosen, 1, kit.k)]


def seeds_and_ids(work: Sequence[Request], length: int) -> None:
    """Requests are of the six prompts with seeds and ids of their own, and else as the kit samples."""
    assert len({request.id for request in work}) == len(work)
    seeds = Counter(request.params.seed for request in work)
    assert {*seeds.values()} == {6}
    assert len({(request.params.seed, request.prompt) for request in work}) == len(work)
    assert {request.params for request in work} == {
        replace(drafts.SAMPLED, seed=seed, max_new_tokens=length) for seed in seeds
    }


@pytest.mark.parametrize("repeats", [16, 3])
def test_q_is_tested_with_as_many_seeds_of_each_prompt_as_there_are_repeats(
    repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, asked = conformance.draft("garbage", sampled=True, k=3), list[Any]()

    def noted(*given: Any) -> list[Proposal]:
        asked.append(given)
        return []

    monkeypatch.setattr(kit, "repeats", repeats if repeats < 16 else kit.repeats)
    monkeypatch.setattr(drafts, "proposals", noted)
    monkeypatch.setattr(fidelity, "evenness", lambda bins: float(not any(bins)))
    kit().test_q_is_the_distribution_that_its_proposals_were_drawn_from()
    [(engine, work)] = asked
    seeds_and_ids(work, 48)
    assert len(work) == 6 * repeats
    assert (type(engine.policy).__name__, engine.controller.max_k) == ("Rejection", 3)
    assert engine.max_rows > 24, "steps are what takes time"


def test_outputs_of_three_thousand_tokens_are_held_to_the_targets_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/proof.md has it; every bin of every output is counted, and the draft is asked again along every one."""
    kit, asked, along = conformance.draft("garbage", k=3), list[Any](), list[Any]()
    bins, ratios = [300] * fidelity.BINS, [0.0] * len(SHARES)

    def run(engine: Any, work: Sequence[Request]) -> list[Any]:
        asked.append((engine, work))
        return [SimpleNamespace(request=one, tokens=(one.id,) * one.params.max_new_tokens) for one in work]

    def examined(judge: object, request: Request, tokens: tuple[int, ...], again: tuple[int, ...]) -> Any:
        assert tokens == again == (request.id,) * request.params.max_new_tokens
        return fidelity.Fidelity([count // 24 + (request.id == 0) * (count % 24) for count in bins])

    def favoured(engine: object, work: Sequence[Request], outputs: Sequence[tuple[int, ...]]) -> Favour:
        along.append((engine, work))
        assert [*outputs] == [(one.id,) * one.params.max_new_tokens for one in work]
        return Favour(len(work), 9, ratios=ratios)

    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(fidelity, "examine", examined)
    monkeypatch.setattr(drafts, "favour", favoured)
    kit().test_sampled_outputs_have_the_targets_distribution()
    [(engine, work)] = asked
    assert along == asked
    seeds_and_ids(work, 125)
    assert sum(request.params.max_new_tokens for request in work) == 3000
    assert (type(engine.policy).__name__, engine.controller.max_k) == ("Rejection", 3)
    assert engine.max_rows == len(work), "steps are what takes time"
    said = "garbage under rejection have the target's distribution"
    ratios[0] = 17.0  # p = 2 x 6 e^-17 = 5e-7, of two tests
    with pytest.raises(Failed, match=f"(?s){said}.*favour the draft's proposals"):
        kit().test_sampled_outputs_have_the_targets_distribution()
    ratios[0], bins[0], bins[9] = 0.0, 430, 170
    with pytest.raises(Failed, match=rf"(?s){said}.*bins, are \[430, 300"):
        kit().test_sampled_outputs_have_the_targets_distribution()


@pytest.mark.parametrize(("wrong", "fails"), [(0, False), (1, False), (2, True)])
def test_of_fifty_windows_one_may_differ_by_rounding(wrong: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = conformance.draft("garbage")
    every = [made_window(20 - number % 20, (number,)) for number in range(50)]
    other = {0: made_window(1, (99,)), 1: None}  # another proposal, and none at all
    monkeypatch.setattr(kit, "windows", 50)
    monkeypatch.setattr(kit, "records", lambda self, *given: every)
    monkeypatch.setattr(
        drafts,
        "proposed_from_scratch",
        lambda engine, seen: other[seen.tokens[0]] if seen.tokens[0] < wrong else seen,
    )
    check = kit().test_what_it_proposes_follows_from_the_text
    if not fails:
        check(drafts.GREEDY, "coupled")
        return
    with pytest.raises(Failed) as failed:
        check(drafts.GREEDY, "coupled")
    assert "2 of 50 windows are not what it proposes" in str(failed.value)
    assert str(failed.value).endswith(f"{every[1]}; asked again: nothing"), "the shortest text is shown"


@pytest.mark.parametrize("full", [True, False])
def test_windows_that_a_requests_end_cut_are_not_proposed_again(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kit, seen = conformance.draft("garbage"), made_window(5, (1, 2))
    cut = replace(seen, room=4 if full else 3)
    asked = asked_again(kit, [cut], monkeypatch)
    kit().test_what_it_proposes_follows_from_the_text(drafts.GREEDY, "uncoupled")
    assert asked == [cut] * full


def test_a_controllers_k_are_seen_in_order_and_it_is_left_as_it_was() -> None:
    kit = conformance.controller("fixed", k=3)
    engine, seen = kit().engine("garbage"), list[tuple[int, Any]]()
    before = engine.controller.next_k
    asked = kit().ks_of_run(engine, lambda step, k, stats: seen.append((step, k)))
    assert seen == [*enumerate(asked)]
    assert {*asked} == {3}
    assert engine.controller.next_k == before
    with pytest.raises(ZeroDivisionError):
        kit().ks_of_run(engine, lambda step, k, stats: 1 // 0)  # type: ignore[arg-type]
    assert engine.controller.next_k == before


def test_two_runs_that_differ_are_told_by_the_first_step_that_does() -> None:
    _equal("it repeats", "ngram", {"once": [1, 2, 3], "twice": [1, 2, 3]})
    with pytest.raises(Failed) as failed:
        _equal("it repeats", "ngram", {"once": [1, 2, 3], "twice": [1, 4, 5]})
    assert str(failed.value) == (
        "\n  claimed:  it repeats\n  measured: K 2 once, 4 twice\n  example:  step 1 of requests by ngram"
    )


def test_what_the_kit_takes_for_granted_of_a_draft_and_a_policy() -> None:
    """A plugin that says nothing of itself claims the most that can be checked."""
    kit = conformance.draft("garbage")
    claims = (kit.trees, kit.sampled, kit.hidden, kit.remembers, kit.memoryless, kit.replays, kit.fakes)
    assert claims == (False, False, False, False, True, False, True)
    assert (kit.k, kit.family, kit.extra) == (4, "llama", ())
    policy = conformance.policy("match", greedy="exact", sampled="exact")
    assert (policy.trees, policy.coupled, policy.extra) == (False, False, ())
    assert conformance.controller("fixed").deterministic
    assert conformance.controller("fixed").k is None
    engine = conformance.engine("transformers")
    assert (engine.own_arithmetic, engine.sampled, engine.refuses) == (False, True, ())
    assert conformance.backend("cpu", ops=["linear"]).device == "cpu"


def test_checks_run_on_one_thread_and_give_the_others_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    turn = Checks._one_thread.__wrapped__(Some())  # type: ignore[attr-defined]
    next(turn)
    inside = torch.get_num_threads()
    assert next(turn, "over") == "over"
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert (inside, after) == (1, 2)


@pytest.mark.parametrize(
    ("device", "there", "runs"), [("cpu", False, True), ("cuda", False, False), ("cuda", True, True)]
)
def test_a_backends_checks_need_its_device(
    device: str, there: bool, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    here = BackendChecks._here.__wrapped__  # type: ignore[attr-defined]
    kit = conformance.backend("cpu", ops=["linear"], device=device)()
    if runs:
        here(kit)
        return
    with pytest.raises(pytest.skip.Exception, match="claimed: device=cuda; this machine has none"):
        here(kit)


def test_the_clock_of_controllers_ticks_once_at_each_reading() -> None:
    with _even_clock():
        assert [time.perf_counter() for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert time.perf_counter() != 4.0


def test_a_kit_has_the_name_of_its_checks_and_the_plugin_under_its_registered_name() -> None:
    def factory(env: object, n: int = 1) -> Any:
        return Garbage(env)  # type: ignore[arg-type]

    kits = {
        "DraftChecks": conformance.draft("mine (n=2)", factory=factory),
        "PolicyChecks": conformance.policy("mine(n=2)", greedy="exact", sampled="exact", factory=factory),
        "ControllerChecks": conformance.controller("mine(n=2)", factory=factory),
        "BackendChecks": conformance.backend("mine(n=2)", ops=[], factory=factory),
        "EngineChecks": conformance.engine("mine(n=2)", factory=factory),
    }
    kinds = ["draft", "policy", "controller", "backend", "peer"]
    assert [kit.__name__ for kit in kits.values()] == [*kits]
    assert [kit.extra for kit in kits.values()] == [((kind, "mine", factory),) for kind in kinds]  # type: ignore[attr-defined]
    assert {kit.text.replace(" ", "") for kit in kits.values()} == {"mine(n=2)"}  # type: ignore[attr-defined]


def test_the_example_of_a_wrong_q_is_its_first_least_likely_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every token had to come, there is none to show."""
    kit = conformance.draft("garbage", sampled=True)
    monkeypatch.setattr(fidelity, "evenness", lambda bins: 0.0)

    def failed(shares: list[list[float]]) -> str:
        found = [replace(made_window(6, (0, 1)), q=torch.tensor(shares)), made_window(7, (1, 1))]
        monkeypatch.setattr(drafts, "proposals", lambda engine, work: found)
        with pytest.raises(Failed) as said:
            kit().test_q_is_the_distribution_that_its_proposals_were_drawn_from()
        return str(said.value).partition("example:")[2].strip()

    assert failed([[1.0, 0.0], [0.0, 1.0]]) == ""
    assert failed([[0.25, 0.75], [0.75, 0.25]]) == f"after {list(TEXT[:6])} … token 0, to which q gives 2.5e-01"
    assert failed([[0.25, 0.75], [0.875, 0.125]]).endswith("token 1, to which q gives 1.2e-01")
