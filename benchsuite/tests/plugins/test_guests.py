"""Drafts of other projects: what their packages are told and asked, and what comes of their answers."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation import candidate_generator
from transformers.generation.candidate_generator import CandidateGenerator, PromptLookupCandidateGenerator

from benchsuite import conformance
from benchsuite.conformance.claims import Checks
from benchsuite.conformance.models import families, tiny
from benchsuite.conformance.proposals import proposals
from benchsuite.tests import guest_rig
from benchsuite.tests.rig import Make, left_to_deep
from benchsuite.tests.vllm_rig import vllm_config
from specdec import Request, SamplingParams, SpecdecError
from specdec.catalog import byte_tokenizer
from specdec_plugins.drafts import flashspec_drafter
from specdec_plugins.drafts.arctic_suffix import ArcticSuffix
from specdec_plugins.for_vllm import KEY, SpecdecProposer

RECORDED = Path(__file__).parents[1] / "recorded" / "guests" / "arctic-suffix.json"
GREEDY, SAMPLED = SamplingParams(max_new_tokens=14), SamplingParams(temperature=0.9, seed=5, max_new_tokens=14)
MODEL = "flashspec_drafter('benchsuite.tests.guest_rig:ModelDrafter')"
ASSISTED = "transformers_candidates(AssistedCandidateGenerator, model=draft)"


@pytest.fixture(scope="module")
def texts_and_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a datastore, ``texts.idx``, and a model that is not the target, ``draft``."""
    folder = tmp_path_factory.mktemp("guests")
    writer = guest_rig.StoreWriter(str(folder / "texts.idx"), 258)
    for prompt in (*tiny.prompts(6), *tiny.prompts(1, seed=1)):
        writer.add_entry([*prompt, *prompt])
    writer.finalize()
    families.build_model("llama", seed=1).save_pretrained(folder / "draft")
    byte_tokenizer().save_pretrained(folder / "draft")
    return folder


@pytest.fixture(autouse=True)
def packages(texts_and_draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of guests are stand-ins, and the folder is that of files."""
    monkeypatch.chdir(texts_and_draft)
    for name, module in guest_rig.THERE.items():
        monkeypatch.setitem(sys.modules, name, module)


C = TypeVar("C", bound=type[Checks])


def kit_of_guest(checks: C, *deep: str) -> C:
    """Slow checks; those ``deep`` run with --specdec-deep alone."""
    checks.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
    return left_to_deep(checks, "test_sampled_outputs_have_the_targets_distribution", *deep)


FOLLOWS = "test_what_it_proposes_follows_from_the_text"
OF_MODELS = (
    *("test_it_changes_no_output", "test_it_keeps_nothing_that_a_replayed_step_overwrites"),
    *("test_it_replays_only_where_claimed", "test_its_windows_are_well_formed"),
)

TestArcticSuffix = kit_of_guest(conformance.draft("arctic_suffix", remembers=True, memoryless=False))
TestArcticSuffixAlone = kit_of_guest(conformance.draft("arctic_suffix(cached=0)"))
TestRest = kit_of_guest(conformance.draft("rest(datastore=texts.idx)", trees=True))
TestLookupOfFlashspec = kit_of_guest(conformance.draft("flashspec_drafter"))
TestModelOfFlashspec = kit_of_guest(conformance.draft(MODEL, sampled=True, fakes=False))
TestLookupOfTransformers = kit_of_guest(conformance.draft("transformers_candidates", fakes=False, one_read=False))
TestAssistantOfTransformers = kit_of_guest(conformance.draft(ASSISTED, fakes=False, one_read=False), *OF_MODELS)


def test_the_stand_in_of_arctic_inference_answers_as_the_package_has_answered() -> None:
    asked = 0
    for script in json.loads(RECORDED.read_text())["scripts"]:
        if script["cached"] > 0:
            continue  # the stand-in keeps all that has ended, or nothing
        cache = guest_rig.SuffixDecodingCache(script["depth"], script["cached"])
        for call, name, *given in script["calls"]:
            if call != "speculate":
                getattr(cache, call)(name, *given)
                continue
            text, how, (tokens, parents, probs, score, length) = given
            if how["use_tree_spec"]:
                continue
            found, asked = cache.speculate(name, text, **how), asked + 1
            assert (found.token_ids, found.parents, found.match_len) == (tokens, parents, length)
            assert [*found.probs, found.score] == pytest.approx([*probs, score], abs=1e-5)
    assert asked > 20


def test_arctic_inference_is_told_of_each_request_and_of_each_token_once(
    monkeypatch: pytest.MonkeyPatch, assemble: Make
) -> None:
    told, ended = defaultdict[Any, list[int]](list), list[Any]()

    class Listening(guest_rig.SuffixDecodingCache):
        def start_request(self, req_id: Any, prompt_token_ids: Any) -> None:
            assert req_id not in told
            told[req_id] += map(int, prompt_token_ids)
            super().start_request(req_id, prompt_token_ids)

        def add_active_response(self, req_id: Any, token_ids: Any) -> None:
            told[req_id] += map(int, token_ids)
            super().add_active_response(req_id, token_ids)

        def speculate(self, req_id: Any, context: Any, *given: Any, **named: Any) -> SimpleNamespace:
            assert [*map(int, context)] == told[req_id][-64:]
            return super().speculate(req_id, context, *given, **named)

        def stop_request(self, req_id: Any) -> None:
            ended.append(req_id)
            super().stop_request(req_id)

    monkeypatch.setattr(guest_rig.THERE["arctic_inference.suffix_decoding"], "SuffixDecodingCache", Listening)
    engine, work = assemble(max_rows=3).engine("arctic_suffix", k=4), tiny.requests(GREEDY, 6)
    done = [*engine.run(work), *engine.run(work)]  # a second run has the ids of the first
    assert sorted(told.values()) == sorted([*one.request.prompt, *one.tokens] for one in done)
    assert sorted(ended) == sorted(told)


def test_a_tree_of_arctic_inference_is_the_paths_to_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(token_ids=[5, 6, 7, 8], parents=[-1, 0, 0, -1])
    monkeypatch.setattr(guest_rig.SuffixDecodingCache, "speculate", lambda self, *given, **named: answer)
    env: Any = SimpleNamespace(max_window=9)
    for tree, paths in ((True, [[5], [5, 6], [5, 7], [8]]), (False, [[8]])):
        draft = ArcticSuffix(env, tree=tree)
        draft.admit(0, Request(0, (1, 2)), (1, 2))
        assert draft.continuations(0, np.array([1, 2, 3]), 8) == paths


def test_the_store_of_rest_is_asked_neither_for_one_node_nor_with_one_token(assemble: Make) -> None:
    """The package ends the process for either."""
    engine = assemble().engine("rest(datastore=texts.idx)", k=1)
    prompt = tiny.prompts(1)[0]
    proposed = proposals(engine, [Request(0, prompt[:1], GREEDY), Request(1, prompt, GREEDY)])
    assert [list(seen.tokens) for seen in proposed if seen.text == prompt] == [[prompt[0]]]


def test_rest_cannot_run_in_vllm_since_its_answers_are_trees() -> None:
    with pytest.raises(SpecdecError, match=r"^the draft 'rest\(.*cannot run in vLLM: it proposes trees, .*: arctic_su"):
        SpecdecProposer(vllm_config(1, 2, 192, 258, {KEY: "rest(datastore=texts.idx)"}))


def test_a_store_of_another_vocabulary_is_refused(assemble: Make) -> None:
    writer = guest_rig.StoreWriter("other.idx")
    writer.add_entry([1, 2, 300])
    writer.finalize()
    engine = assemble().engine("rest(datastore=other.idx)", k=2)
    with pytest.raises(SpecdecError, match="rest has the token 300, and the target's vocabulary ends at 257"):
        engine.run([Request(0, (1, 2), GREEDY)])


@pytest.mark.parametrize(
    ("draft", "module", "extra"),
    [
        ("arctic_suffix", "arctic_inference", "arctic"),
        ("rest(datastore=texts.idx)", "draftretriever", "rest"),
        ("flashspec_drafter", "flashspec", "flashspec"),
    ],
)
def test_a_package_that_is_not_there_is_named_with_its_extra(
    draft: str, module: str, extra: str, assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in guest_rig.THERE:
        monkeypatch.delitem(sys.modules, name)
    name = draft.partition("(")[0]
    with pytest.raises(SpecdecError) as refused:
        assemble().engine(draft)
    assert f"the package {module} is not installed; pip install 'specdec-bench[{extra}]'" in str(refused.value)
    assert f"python -m benchsuite guests {name} sets up an environment that has it" in str(refused.value)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("rest", "datastore=''; expected a file that draftretriever.Writer wrote: rest"),
        ("arctic_suffix(depth=0)", "depth=0, cached=-1; expected 1 and -1, or more"),
        (
            "flashspec_drafter(mine)",
            "unknown drafter 'mine'; did you mean 'mind'[?] choices: mind. A class is named as",
        ),
        (
            "transformers_candidates(MTPCandidateGenerator)",
            "does not need the target's outputs, which only transformers",
        ),
        ("transformers_candidates(NoSuchGenerator)", "generator='NoSuchGenerator'; expected a CandidateGenerator of"),
        ("transformers_candidates(AssistedCandidateGenerator)", "nothing is known of assistant_model; an assistant is"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    draft: str, message: str, assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(guest_rig.FlashspecRegistry.registered, "mind", guest_rig.ModelDrafter)
    with pytest.raises(SpecdecError, match=message):
        assemble().engine(draft)


def test_a_drafter_of_flashspec_is_one_of_its_entry_points_or_a_registered_one(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("theirs", "benchsuite.tests.guest_rig:ModelDrafter", "flashspec.drafters")
    monkeypatch.setattr(flashspec_drafter, "entry_points", lambda group: EntryPoints([point]).select(group=group))
    monkeypatch.setitem(guest_rig.FlashspecRegistry.registered, "theirs too", guest_rig.ModelDrafter)
    build, work = assemble(), tiny.requests(GREEDY, 1)
    [text] = ({seen.text: seen.tokens for seen in proposals(build.engine(MODEL, k=3), work)},)
    for name in ("theirs", "theirs too"):
        assert {
            seen.text: seen.tokens for seen in proposals(build.engine(f"flashspec_drafter({name})", k=3), work)
        } == text


def test_a_greedy_row_beside_a_sampled_one_has_one_hot_rows_of_q(assemble: Make) -> None:
    engine = assemble(max_rows=2).engine(MODEL, "rejection", k=3)
    prompt = tiny.prompts(1)[0]
    found = proposals(engine, [Request(0, prompt, GREEDY), Request(1, prompt, SAMPLED)])
    for seen in found:
        assert seen.q is not None
        assert bool((seen.q.amax(dim=1) == 1).all()) == (seen.request.id == 0)
    assert {seen.request.id for seen in found} == {0, 1}


def test_under_a_policy_that_compares_draws_a_drafter_proposes_its_likeliest(assemble: Make) -> None:
    found = proposals(assemble().engine(MODEL, "match", k=3), [Request(0, tiny.prompts(1)[0], SAMPLED)])
    assert found
    assert all(seen.q is None and seen.tokens[0] == (seen.text[-1] + 1) % 258 for seen in found)


def test_a_drafter_that_has_no_temperature_has_no_q(assemble: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows from what it drew for a greedy row."""
    monkeypatch.delattr(guest_rig.ModelDrafter, "set_temperature")
    found = proposals(assemble().engine(MODEL, "rejection", k=3), [Request(0, tiny.prompts(1)[0], SAMPLED)])
    assert found
    assert all(seen.q is None for seen in found)


def test_a_drafter_of_another_vocabulary_is_refused(assemble: Make) -> None:
    engine = assemble().engine(MODEL.replace("')", "', settings='{\"vocabulary\": 300}')"), "rejection", k=3)
    with pytest.raises(SpecdecError, match="ModelDrafter has 300 tokens and the target 258"):
        engine.run(tiny.requests(SAMPLED, 1))


def test_a_lookup_of_transformers_proposes_what_it_finds_in_each_text(assemble: Make) -> None:
    settings = '{"max_matching_ngram_size": 1, "num_output_tokens": 3}'
    engine = assemble(max_rows=2).engine(f"transformers_candidates(settings='{settings}')", k=4)
    found = proposals(engine, tiny.requests(GREEDY, 4))
    theirs = PromptLookupCandidateGenerator(num_output_tokens=3, max_matching_ngram_size=1, max_length=192)
    assert len(found) > 5
    for seen in found:
        [candidates], _ = theirs.get_candidates(torch.tensor([seen.text]))
        assert list(seen.tokens) == candidates[len(seen.text) :].tolist()[: seen.room]


class ToldMatches(CandidateGenerator):  # type: ignore[misc]
    """Proposes the last token twice, and notes what it is told."""

    said: list[tuple[int, int, int]]

    def __init__(self, input_ids: Tensor) -> None:
        self.first = input_ids.shape[1]

    def get_candidates(self, input_ids: Tensor, **given: Any) -> tuple[Any, Any]:
        return torch.cat([input_ids, input_ids[:, -1:].expand(-1, 2)], dim=1), None

    def update_candidate_strategy(self, input_ids: Any, scores: Tensor, num_matches: int) -> None:
        self.said.append((input_ids.shape[1], scores.shape[1], num_matches))


def test_a_generator_is_told_what_matched_and_is_built_anew_where_it_was_not_asked(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToldMatches, "said", [], raising=False)
    monkeypatch.setattr(candidate_generator, "ToldMatches", ToldMatches, raising=False)
    engine, ks = assemble().engine("transformers_candidates(ToldMatches)", k=4), [4, 4, 4, 0, 4, 4, 1, 4]
    tiny.ask(engine, [*ks, *[0] * 40])
    steps = list[tuple[int, int]]()
    engine.trace = lambda context, window, logits, verdict: steps.append(
        (int(context.length_host[0]), int(verdict.num_accepted[0]))
    )
    engine.run([Request(0, (7, 7, 7), SamplingParams(max_new_tokens=40))])
    after = [step for step in range(1, len(ks)) if ks[step] and ks[step - 1]]
    assert ToldMatches.said == [(steps[step][0], 3, steps[step - 1][1]) for step in after]
