"""How much each check of the kit runs.

A check that looks at less than it seems to passes as before and finds less, which no planted fault has to show.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite import conformance
from benchsuite.conformance import claims, controllers, drafts, engines, faked, near_ties, policies, worlds
from benchsuite.conformance.claims import Checks
from benchsuite.conformance.exact.enumerator import Shape, context
from benchsuite.conformance.near_ties import Offer
from benchsuite.judge import fidelity
from specdec import Engine, Request, model
from specdec.assembly import Assembly
from specdec_kernels.reference import Reference
from specdec_plugins.engines.transformers import Transformers

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


DOSES: dict[str, dict[str, str]] = {
    "a draft that draws": {
        "a_prompt_read_in_chunks_is_a_prompt_read_at_once": "4 16 214+48 4811dd84",
        "a_step_is_fit_for_a_gpu": "2 0 0+0 78218560",
        "a_step_reads_the_device_once": "4 0 0+0 2f8a458f",
        "a_text_that_goes_on_is_a_text_read_at_once": "6 12 438+54 8a8ce6a4",
        "it_changes_no_output": "8 24 756+516 fb712fb4",
        "it_is_what_it_claims": "7 6 189+129 64bf3146",
        "it_keeps_nothing_that_a_replayed_step_overwrites": "6 12 351+222 80023147",
        "it_keeps_nothing_that_it_was_lent": "8 16 468+296 c78f1674",
        "it_replays_only_where_claimed": "5 12 378+258 aee85fd1",
        "it_writes_to_nothing_that_it_was_lent": "4 6 198+102 38c4cc84",
        "its_forwards_read_weights": "2 3 99+51 0d2ae1eb",
        "its_own_noise_is_new_in_every_step": "2 3 99+51 54581c6b",
        "its_windows_are_well_formed": "6 12 378+258 12c82e59",
        "prices_of_slots_change_what_it_proposes_alone": "2 0 0+0 8aa0a82b",
        "q_is_the_distribution_that_its_proposals_were_drawn_from": "3 96 3024+4608 f6c1ef98",
        "sampled_outputs_have_the_targets_distribution": "5 48 1512+6000 5e95576a",
        "what_has_ended_is_remembered_only_where_claimed": "3 4 144+56 1652e820",
        "what_it_proposes_follows_from_the_text": "12 24 756+516 e18af4e3",
    },
    "a tree": {
        "it_is_what_it_claims": "7 6 189+129 c6197091",
        "it_keeps_nothing_that_a_replayed_step_overwrites": "6 12 351+222 272561fb",
        "it_writes_to_nothing_that_it_was_lent": "4 6 198+102 a0128eef",
        "its_windows_are_well_formed": "6 12 378+258 9f264d0d",
        "what_it_proposes_follows_from_the_text": "12 24 756+516 66f0672e",
    },
    "a lookup that remembers": {
        "it_is_what_it_claims": "7 6 189+129 07c37e7d",
        "what_has_ended_is_remembered_only_where_claimed": "3 4 144+56 326a2457",
        "what_it_proposes_follows_from_the_text": "12 4 144+56 a129cd30",
    },
    "a policy of trees": {
        "a_row_does_not_see_its_neighbours": "9 0 0+0 77689b4f",
        "a_step_can_be_recorded_and_replayed": "8 16 468+296 47a29961",
        "a_step_is_fit_for_a_gpu": "2 0 0+0 745ee263",
        "a_step_reads_the_device_once": "4 0 0+0 515e2ca9",
        "a_verdict_is_a_path_of_its_window": "1 0 0+0 e15521f7",
        "greedy_it_keeps_no_token_that_is_nearly_the_likeliest": "57 0 0+0 1ed266df",
        "greedy_outputs_are_plain_where_claimed": "6 18 567+387 77f916f0",
        "it_is_what_it_claims": "3 0 0+0 7c59940d",
        "it_writes_to_nothing_that_it_was_lent": "1 0 0+0 e15521f7",
        "its_distribution_is_what_its_contract_says": "36 0 0+0 d04c82c2",
        "sampled_it_keeps_no_token_that_was_nearly_drawn": "59 0 0+0 7cf4be87",
        "sampled_outputs_are_plain_where_claimed": "4 12 378+258 d1c6a642",
        "sampled_outputs_have_the_targets_distribution": "0 0 0+0 00000000",
        "seeds_and_requests_have_noise_of_their_own": "4 0 0+0 4f73b103",
    },
    "a policy of chains": {
        "greedy_it_keeps_no_token_that_is_nearly_the_likeliest": "26 0 0+0 a6b4a6b3",
        "greedy_outputs_are_plain_where_claimed": "4 12 378+258 abdb7c91",
        "it_is_what_it_claims": "3 0 0+0 c183b33c",
        "its_distribution_is_what_its_contract_says": "24 0 0+0 60e58f5c",
        "sampled_outputs_have_the_targets_distribution": "10 96 3024+12000 fe9a7378",
        "seeds_and_requests_have_noise_of_their_own": "2 0 0+0 4e5c4e04",
    },
    "a lossy policy": {
        "it_is_what_it_claims": "3 0 0+0 3d73076f",
        "its_distribution_is_what_its_contract_says": "8 0 0+0 fa813ffb",
        "sampled_outputs_have_the_targets_distribution": "0 0 0+0 00000000",
        "seeds_and_requests_have_noise_of_their_own": "4 0 0+0 31704300",
    },
    "a controller": {
        "a_step_reads_the_device_once": "2 0 0+0 d543fe8a",
        "after_forget_it_asks_what_a_new_one_asks": "20 72 2268+1548 4bb6b224",
        "in_any_world_it_asks_for_what_it_may": "16 0 0+0 104c377b",
        "it_changes_no_output": "8 24 756+516 ae8d3955",
        "it_is_what_it_claims": "2 0 0+0 3ef68063",
        "it_reads_the_clock_only_where_claimed": "2 0 0+0 106e467e",
        "it_repeats_where_claimed": "20 72 2268+1548 cc0f254f",
        "it_writes_to_nothing_that_it_was_lent": "2 0 0+0 106e467e",
        "k_is_a_whole_number_within_its_bounds": "8 24 756+516 ae8d3955",
    },
    "a backend": {
        "it_changes_no_output": "6 18 567+387 3fac68df",
    },
    "another engine": {
        "a_call_of_several_requests_equals_calls_of_one": "1 0 0+0 a5d9eaec",
        "an_option_that_does_not_exist_is_refused": "1 0 0+0 a5d9eaec",
        "closing_frees_the_model_and_ends_it": "2 2 72+28 afe4ab10",
        "counts_explain_the_tokens": "2 3 99+51 8e1ba054",
        "emissions_have_every_token_once": "2 3 99+51 8e1ba054",
        "forwards_explain_the_tokens": "2 3 99+51 8e1ba054",
        "greedy_runs_repeat": "4 9 297+153 555e5173",
        "it_ends_at_the_first_end_token": "2 6 198+102 996279d1",
        "it_gives_as_many_tokens_as_are_asked_for": "6 9 297+36 47686e74",
        "it_is_what_it_claims": "2 0 0+0 4617a785",
        "its_tokens_are_the_targets": "4 3 99+51 4dac8631",
        "its_tokens_are_those_of_its_own_plain_decoding": "1 0 0+0 a5d9eaec",
        "logits_are_those_that_a_token_is_drawn_from": "11 2 39+31 b72e3696",
        "nothing_is_kept_between_prompts": "8 9 297+153 7e9382ca",
        "sampling_is_repeated_by_its_seed_or_refused": "3 9 297+171 86b480df",
        "times_never_go_back_and_end_with_the_call": "2 3 99+51 8e1ba054",
        "wrong_options_are_refused_before_anything_is_loaded": "3 0 0+0 e3611306",
    },
    "an engine that batches": {
        "a_call_of_several_requests_equals_calls_of_one": "3 8 234+148 ba6f2c45",
        "times_never_go_back_and_end_with_the_call": "2 3 99+51 7719cb54",
    },
    "an engine that speculates": {
        "counts_explain_the_tokens": "2 3 99+51 39ef59da",
        "forwards_explain_the_tokens": "2 3 99+51 39ef59da",
        "its_tokens_are_those_of_its_own_plain_decoding": "3 6 198+102 49b9d7d5",
    },
}
"""Of each check: calls, requests, tokens of their prompts and of their outputs, and a checksum of all that it runs."""


class Notebook:
    """Notes what is called, and lets it run or, where running is another test's work, takes its place."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._lines: list[tuple[str, list[Request]]] = []
        self.asked: list[Request] = []

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
        self.asked = [one for _, work in lines for one in work]
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


def of_offer(offer: Offer) -> str:
    rows, size, vocabulary = offer.logits.shape
    return f"offer {offer.condition}: {rows} rows of {size} slots and {vocabulary} tokens, gaps {once(offer.gaps)}"


def of_world(world: worlds.ControllerWorld, controller: Any, *see: Any) -> str:
    return f"{worlds.STEPS} steps in which {next(name for name, one in worlds.WORLDS.items() if one is world)}"


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
    for module in (drafts, policies, controllers):
        book.note(module, "guarded_steps", of_steps)
    book.note(controllers, "live_in", of_world)

    def offered(*given: Any) -> Iterator[Offer]:
        for offer in near_ties.offers(*given):
            book.add(of_offer(offer))
            yield offer

    patch.setattr(policies, "offers", offered)
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


UNDECODED = (
    *("changes_no_output", "replayed", "read_in_chunks", "outputs_are_plain", "replays_only"),
    *("repeats_where_claimed", "after_forget", "within_its_bounds"),
)
"""Parts of the names of checks that ask for the same, whatever the outputs are: their engines decode nothing here."""


def same_outputs(engine: Engine, work: Sequence[Request]) -> list[Any]:
    """The same output for the same request by every engine."""
    return [SimpleNamespace(tokens=(1,) * one.params.max_new_tokens) for one in work]


@pytest.fixture
def no_outputs_kept() -> Iterator[None]:
    """Plain decoding's outputs are kept in the kit's assemblies: neither those before nor those of a test."""
    drafts.kit_assembly.cache_clear()
    yield
    drafts.kit_assembly.cache_clear()


def dose(name: str, check: str, patch: pytest.MonkeyPatch) -> tuple[str, str]:
    """How much a check of a kit runs, and all of it."""
    if any(part in check for part in UNDECODED):
        patch.setattr(Engine, "run", same_outputs)
    book = book_of(patch)
    patch.setattr(engines.EngineChecks, "_built", built_and_noted(book))
    assert not dict(claims.failures(KITS[name][0], only=f"^test_{check}$"))
    text = book.text()
    tokens = [sum(len(one.prompt) for one in book.asked), sum(one.params.max_new_tokens for one in book.asked)]
    return f"{text.count(chr(10))} {len(book.asked)} {tokens[0]}+{tokens[1]} {zlib.crc32(text.encode()):08x}", text


def checks_of(name: str) -> list[str]:
    """The names of the checks of a kit that are looked at."""
    kit, pattern = KITS[name]
    return [check.removeprefix("test_") for check in dir(kit) if re.match(rf"test_.*({pattern})", check)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_outputs_kept")
@pytest.mark.parametrize(("name", "check"), [(name, check) for name in KITS for check in checks_of(name)])
def test_each_check_of_the_kit_runs_as_much_as_is_written_down(
    name: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, text = dose(name, check, monkeypatch)
    assert DOSES[name].get(check) == short, f"if it is meant to, {check} has {short!r}:{text}"
    assert DOSES[name].keys() <= {*checks_of(name)}


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
