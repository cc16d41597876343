"""Proposers written for vLLM run here unchanged, and our lookups run where vLLM runs such proposers."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchsuite.conformance.models import tiny
from benchsuite.tests import guest_rig, vllm_rig
from benchsuite.tests.pages import blocks
from benchsuite.tests.rig import Make, slow_after
from benchsuite.tests.vllm_rig import Answers, VllmRunner, Witness, vllm_config
from specdec import Context, Draft, Engine, Env, Registry, Request, SamplingParams, SpecdecError, Verdict, Window
from specdec_plugins.drafts.custom_class import FIELDS
from specdec_plugins.for_vllm import FORGETS, KEY, SpecdecProposer

K, LENGTH = 4, 192
VOCABULARY = 258

Steps = dict[int, list[tuple[list[int], list[int], int]]]
"""For each request its text, the proposals and the room in each step."""


def custom(name: str, **options: object) -> str:
    """The draft that runs a class of the rig."""
    given = "".join(f", {option}={value!r}" for option, value in options.items())
    return f"custom_class(path='benchsuite.tests.vllm_rig:{name}'{given})"


def repeating(count: int) -> list[Request]:
    """Requests of a few kinds of tokens, whose outputs have something to look up; the last two have one prompt."""
    generator = random.Random(0)
    prompts = [tuple(generator.choices(range(65, 69), k=20 + 7 * number)) for number in range(count - 1)]
    params = [SamplingParams(max_new_tokens=20 + 3 * number) for number in range(count)]
    return [Request(i, text, params[i]) for i, text in enumerate((*prompts, prompts[-1]))]


def steps_of(engine: Engine, work: list[Request]) -> Steps:
    """Run requests; what the engine's draft proposed for each text."""
    found: Steps = defaultdict(list)

    def trace(context: Context, window: Window, logits: object, verdict: Verdict) -> None:
        for row, name in enumerate(context.request.tolist()):
            text = context.history[row, : context.length_host[row]].tolist()
            ids = window.tokens[row, 1 : window.width[row]].tolist()
            found[name].append((text, ids, int(context.max_proposals_host[row])))

    engine.trace = trace
    for done in engine.run(work):
        found[done.request.id].append(([*done.request.prompt, *done.tokens], [], 0))
    return found


def in_vllm(draft: str, rows: int) -> SpecdecProposer:
    return SpecdecProposer(vllm_config(K, rows, LENGTH, VOCABULARY, {KEY: draft}))


def must_equal(steps: Steps, name: int, at: int, got: list[int]) -> None:
    """The engine knows of a request's budget and vLLM's proposer does not, so that it may propose more at the end."""
    text, expected, room = steps[name][at]
    assert got[:room] == expected, f"request {name} after {text[-8:]}"


def replayed(proposer: Any, steps: Steps, rows: int, seed: int) -> int:
    """Play every request's steps to the proposer as vLLM would: rows enter, leave, come back and swap places.

    Returns how often a request came back.
    """
    runner, chance, returns = VllmRunner(proposer, rows, LENGTH), random.Random(seed), 0
    waiting, at = sorted(steps), dict.fromkeys(steps, 0)
    chance.shuffle(waiting)
    while waiting or runner.names:
        for name in [name for name in runner.names if chance.random() < 0.1]:  # preempted
            runner.remove(name)
            waiting.insert(chance.randrange(len(waiting) + 1), name)
            returns += 1
        while waiting and len(runner.names) < rows:
            runner.add(waiting[0], steps[waiting[0]][at[waiting[0]]][0])
            waiting.pop(0)
        runner.swap(chance.randrange(len(runner.names)), chance.randrange(len(runner.names)))
        sampled = {}
        for name in [name for name in runner.names if chance.random() < 0.9]:  # the others' prompts are being read
            old, new = steps[name][at[name]][0], steps[name][at[name] + 1][0]
            sampled[name], at[name] = new[len(old) :], at[name] + 1
        for name, got in runner.step(sampled).items():
            if name in sampled:
                must_equal(steps, name, at[name], got)
            else:
                assert got == []
        for name in [name for name in runner.names if at[name] == len(steps[name]) - 1]:
            runner.remove(name)
    return returns


@pytest.mark.slow
@pytest.mark.parametrize(
    "draft",
    slow_after(
        1,
        [
            "ngram(n_min=1)",
            "suffix(min_match=1, earlier=False)",
            "hybrid(sources='suffix(min_match=5, earlier=False), ngram(n_min=1)')",
            "arctic_suffix(factor=3.0, cached=0)",
        ],
    ),
)
def test_a_lookup_in_vllm_proposes_what_it_proposes_in_the_engine(
    draft: str, assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in guest_rig.THERE.items():
        monkeypatch.setitem(sys.modules, name, module)
    steps = steps_of(assemble(max_rows=3).engine(draft, k=K), repeating(6))
    assert sum(len(ids) for request in steps.values() for _, ids, _ in request) > 50
    returns = [replayed(in_vllm(draft, 3), steps, 3, seed) for seed in range(5)]
    assert min(returns) > 0


@pytest.mark.slow
def test_a_lookup_that_learns_counts_each_token_once_and_learns_what_it_learns_in_the_engine(assemble: Make) -> None:
    """One request after another, so that both are told of the same tokens in the same order."""
    engine = assemble().engine("suffix(min_match=1)", k=K)
    steps = steps_of(engine, repeating(4))
    proposer = in_vllm("suffix(min_match=1)", 1)
    runner = VllmRunner(proposer, 1, LENGTH)
    for name, request in steps.items():
        runner.add(name, request[0][0])
        for at in range(1, len(request)):
            got = runner.step({name: request[at][0][len(request[at - 1][0]) :]})
            must_equal(steps, name, at, got[name])
        runner.remove(name)
    assert proposer._draft.info()["suffix_indexed_tokens"] == engine.stats.counts["suffix_indexed_tokens"]


@pytest.mark.slow
def test_each_row_is_admitted_and_released_in_a_place_of_its_own(
    monkeypatch: pytest.MonkeyPatch, assemble: Make
) -> None:
    held: dict[int, tuple[int, ...]] = {}
    numbers = itertools.count()
    ended = 0

    def admit(place: int, request: Request, prompt: tuple[int, ...]) -> None:
        assert place not in held, "a place that another row still has"
        assert (request.id, request.prompt) == (next(numbers), prompt), "each has a number of its own"
        held[place] = prompt

    def release(place: int, tokens: tuple[int, ...]) -> None:
        nonlocal ended
        prompt = held.pop(place)
        assert tokens[: len(prompt)] == prompt
        assert len(tokens) > len(prompt)
        ended += 1

    steps = steps_of(assemble(max_rows=3).engine("ngram(n_min=1)", k=K), repeating(6))
    proposer = in_vllm("ngram(n_min=1)", 3)
    monkeypatch.setattr(proposer._draft, "admit", admit)
    monkeypatch.setattr(proposer._draft, "release", release)
    returns = replayed(proposer, steps, 3, seed=0)
    VllmRunner(proposer, 3, LENGTH).step({})
    assert not held
    assert 6 < ended <= 6 + returns


def test_a_lookup_in_vllm_leaves_room_for_the_token_after_its_proposals() -> None:
    runner = VllmRunner(in_vllm("ngram(n_min=1)", 1), 1, LENGTH)
    text = [place % 9 for place in range(LENGTH)]
    runner.add(0, text[: LENGTH - 7])
    lengths = [len(runner.step({0: [token]})[0]) for token in text[LENGTH - 7 :]]
    assert lengths == [4, 4, 3, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("draft_model", "'draft_model' of .*cannot run in vLLM: it reads '.*' of the target"),
        ("eagle", "'eagle' of .*cannot run in vLLM"),
        ("medusa", "'medusa' of .*cannot run in vLLM"),
        ("oracle", "'oracle' of .*cannot run in vLLM"),
        ("tree", "'tree' of .*cannot run in vLLM"),
        ("garbage", "'garbage' of .*cannot run in vLLM: it is no lookup on the host"),
        (custom("TheirLookup"), "cannot run in vLLM: it is no lookup on the host"),
        ("hybrid(sources='suffix, eagle')", "cannot run in vLLM"),
        ("ngram(branches=2)", "it proposes trees, and a custom class proposes chains; leave out an option"),
        ("ngrm", "unknown draft 'ngrm'; did you mean 'ngram'"),
        ("ngram(n_max=0)", "n_min is 2 and n_max 0"),
    ],
)
def test_a_draft_that_cannot_run_in_vllm_is_refused_by_name(draft: str, message: str) -> None:
    with pytest.raises(SpecdecError, match=message) as refused:
        in_vllm(draft, 2)
    if "cannot run in vLLM" in message:
        assert "look their proposals up: arctic_suffix, ngram, suffix, or a hybrid of these" in str(refused.value)


def test_a_lookup_in_vllm_is_given_its_sizes_every_places_text_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tensors and arrays of the context are the same numbers; what a custom class cannot have says so by its name."""
    envs: list[Env] = []
    build = Registry.draft

    def built(self: Registry, text: str, env: Env) -> Draft:
        envs.append(env)
        return build(self, text, env)

    monkeypatch.setattr(Registry, "draft", built)
    proposer, seen = in_vllm("hybrid(sources='ngram')", 3), list[tuple[Context, int]]()
    env = envs[0]
    assert (env.max_rows, env.max_length, env.max_window, env.seed) == (3, LENGTH, K + 1, 0)
    assert (env.target.vocabulary, str(env.target.device)) == (VOCABULARY, "cpu")
    assert [one.max_window for one in envs] == [K + 1] * 2, "and so are the parts of a hybrid"
    for part, name in ((env.tokenizer, "tokenizer"), (env.ops, "ops"), (env.calibration, "calibration")):
        with pytest.raises(SpecdecError, match=f"^it reads 'other' of the {name}, and vLLM gives that to no custom cl"):
            part.other  # type: ignore[union-attr]  # noqa: B018
    with pytest.raises(SpecdecError, match="^it asks for plain decoding's output, and vLLM gives that to no custom c"):
        env.plain(Request(0, (1,)))

    def look_up(context: Context, place: int) -> list[list[int]]:
        seen.append((context, place))
        return [[7, 8]]

    monkeypatch.setattr(proposer._draft, "look_up", look_up)
    runner = VllmRunner(proposer, 3, LENGTH)
    for number, text in enumerate(([5, 6], [9] * (LENGTH - 4))):
        runner.add(number, text)
    assert runner.step({0: [4], 1: [3]}) == {0: [7, 8], 1: [7, 8]}
    for (context, place), text in zip(seen, ([5, 6, 4], [9] * (LENGTH - 4) + [3]), strict=True):
        length, room = len(text), min(K, LENGTH - 1 - len(text))
        assert context.history[place, :length].tolist() == context.tokens[place, :length].tolist() == text
        assert context.length_host[place] == int(context.length[place]) == length
        assert context.max_proposals_host[place] == int(context.max_proposals[place]) == room
        assert (context.request.tolist(), context.rows, context.coupled) == ([0, 1, 2], 3, False)
        for part, name in ((context.params, "sampling parameters"), (context.ops, "ops")):
            with pytest.raises(SpecdecError, match=f"^it reads 'greedy' of the {name}, and vLLM gives that to no"):
                part.greedy  # type: ignore[union-attr]  # noqa: B018


@pytest.mark.parametrize("additional", [{}, {"other": "x"}, {KEY: 3}])
def test_a_proposer_without_a_draft_says_where_to_name_one(additional: dict[str, object]) -> None:
    with pytest.raises(SpecdecError, match=r"""--additional-config '{"specdec_draft": "suffix"}'"""):
        SpecdecProposer(vllm_config(K, 2, LENGTH, VOCABULARY, additional))


def test_tokens_that_are_not_on_the_host_yet_are_refused() -> None:
    """Under asynchronous scheduling vLLM's buffer holds -1 where a token has been sampled on the device."""
    runner = VllmRunner(in_vllm("ngram", 1), 1, LENGTH)
    runner.add(0, [5, 6, 5])
    proposer, tokens = runner.proposer, runner.token_ids_cpu
    tokens[0, 3], runner.num_tokens_no_spec[0] = -1, 4
    with pytest.raises(SpecdecError, match=r"sampled \[6\] for a row whose tokens end with \[-1\]; .*asynchronous"):
        proposer.propose([[6]], runner.num_tokens_no_spec, tokens)


@pytest.fixture
def witness() -> type[Witness]:
    Witness.calls.clear()
    Witness.arrays.clear()
    return Witness


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_after(1, [1, 3]))
def test_a_class_is_told_of_each_token_once_and_of_its_whole_text_at_every_call(
    rows: int, witness: type[Witness], assemble: Make
) -> None:
    """Also of those that steps without a proposal emitted, and after its row has moved."""
    engine = assemble(max_rows=rows).engine(custom("Witness"), k=K)
    tiny.ask(engine, [4, 0, 0, 2, 4, 1, 0] * 100)
    done = engine.run(repeating(6))
    whole = {(*each.request.prompt, *each.tokens) for each in done}
    assert len(witness.calls) > 20
    texts = [list(each.request.prompt[:-1]) for each in done]  # what each request's class knows
    for call in witness.calls:
        for sampled, text in call:
            assert any(full[: len(text)] == tuple(text) for full in whole), "a text that nobody asked for"
            before = text[: len(text) - len(sampled)]
            assert before in texts, "tokens were left out, or told twice"
            texts[texts.index(before)] = text


def test_the_arrays_are_as_vllm_makes_them(witness: type[Witness], assemble: Make) -> None:
    assemble(max_rows=3).engine(custom("Witness"), k=K).run(repeating(2))
    for lengths, tokens in witness.arrays:
        assert (lengths.dtype, tokens.dtype) == ("int32", "int32")
        assert (lengths.shape, tokens.shape) == ((3,), (3, LENGTH))


def test_a_class_that_asks_what_is_there_is_told(assemble: Make) -> None:
    settings = '{"additional_config": {"mine": [1]}, "prompt_lookup_min": 3}'
    engine = assemble().engine(custom("Copes", settings=settings), k=K)
    proposer: Any = vars(engine.draft)["_proposer"]
    assert (proposer.own, proposer.least, proposer.k, proposer.longest) == ([1], 3, K, LENGTH)


def test_a_class_reads_vllms_defaults(assemble: Make) -> None:
    config = vars(assemble().engine(custom("TheirLookup"), k=K).draft)["_config"]
    found = {name: getattr(config.speculative_config, name) for name in FIELDS}
    assert found == {**FIELDS, "num_speculative_tokens": K}
    assert config.speculative_config.model == "benchsuite.tests.vllm_rig.TheirLookup"
    assert config.speculative_config.method == "custom_class"


def test_fewer_tokens_than_k_may_be_asked_of_a_class(assemble: Make) -> None:
    engine = assemble().engine(custom("TheirLookup", settings='{"num_speculative_tokens": 2}'), k=K)
    steps = steps_of(engine, repeating(3))
    assert max(len(ids) for request in steps.values() for _, ids, _ in request) == 2


@pytest.mark.slow
def test_a_class_may_be_named_as_vllm_names_it(assemble: Make) -> None:
    text = custom("TheirLookup").replace(":", ".")
    counters = []
    for draft in (text, custom("TheirLookup")):
        engine = assemble().engine(draft, k=K)
        engine.run(repeating(2))
        counters.append(engine.stats.counters())
    assert counters[0] == counters[1]


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("custom_class", "was given path=''; expected the class as package.module:Class"),
        ("custom_class(path='Lookup')", "was given path='Lookup'; expected the class as package.module:Class"),
        ("custom_class(path='no.such:Class')", "cannot import 'no.such' of 'no.such:Class': ModuleNotFoundError"),
        (custom("TheirLokup"), "unknown class of benchsuite.tests.vllm_rig 'TheirLokup'; did you mean 'TheirLookup'"),
        (custom("not_a_class"), "not_a_class is a int; expected a class that takes a vllm_config"),
        (custom("NoPropose"), r"NoPropose has no method propose; vLLM calls propose\(sampled_token_ids"),
        (
            custom("ReadsTheDraftModel"),
            "constructor raised AttributeError: vllm_config.speculative_config has no "
            "'draft_model_config' here, only num_speculative_tokens, prompt_lookup_min",
        ),
        (custom("ReadsTheTarget"), "load_model raised AttributeError: the target's model has no 'get_input_"),
        (custom("Copes"), r"KeyError: 'mine' \(vllm_rig.py:\d+: self.own = .*\). Mend the class, or give what it"),
        (custom("TheirLookup", settings="{"), "settings of .*TheirLookup are no JSON"),
        (custom("TheirLookup", settings="[]"), "expected a JSON object"),
        (custom("TheirLookup", settings='{"prompt_lookup_mn": 1}'), "did you mean 'prompt_lookup_min'"),
        (custom("TheirLookup", settings='{"additional_config": 1}'), "additional_config .* is 1; expected a JSON obj"),
        (custom("TheirLookup", settings='{"num_speculative_tokens": 5}'), "is 5 and this engine proposes at most 4"),
    ],
)
def test_a_class_that_cannot_be_built_is_refused_by_name(draft: str, message: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=message):
        assemble().engine(draft, k=K)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "propose returned a NoneType for 1 rows; expected a list with one list of token ids for each list"),
        ([], "propose returned 0 lists for 1 rows"),
        ([[], []], "propose returned 2 lists for 1 rows"),
        ([3], "returned 3 for row 0; expected a list of whole numbers"),
        ([None], "returned None for row 0; expected a list of whole numbers"),
        ([[1.0]], r"returned \[1.0\] for row 0; expected a list of whole numbers"),
        ([[True]], r"returned \[True\] for row 0; expected a list of whole numbers"),
        ([[1] * 5], "returned 5 tokens for row 0; expected at most num_speculative_tokens, 4"),
        ([[1, -1]], "returned the token id -1 for row 0; the target's vocabulary ends at 257"),
        ([[VOCABULARY]], "returned the token id 258 for row 0; the target's vocabulary ends at 257"),
    ],
)
def test_a_wrong_answer_is_refused_by_the_name_of_its_class(
    answer: object, message: str, monkeypatch: pytest.MonkeyPatch, assemble: Make
) -> None:
    monkeypatch.setattr(Answers, "answer", answer)
    with pytest.raises(SpecdecError, match=f"vllm_rig:Answers: propose {message.removeprefix('propose ')}"):
        assemble().engine(custom("Answers"), k=K).run(repeating(2)[:1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Breaks", "vllm_rig:Breaks: propose raised KeyError: 'lost' "),
        ("Writes", "vllm_rig:Writes: propose raised ValueError: assignment destination is read-only"),
    ],
)
def test_a_class_that_raises_ends_the_run_with_its_name(name: str, message: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=message):
        assemble().engine(custom(name), k=K).run(repeating(2))


def test_a_class_that_learns_is_built_anew_to_forget(assemble: Make) -> None:
    for learns in (True, False):
        engine = assemble().engine(custom("TheirMemory", learns=learns), k=K)
        assert engine.draft is not None
        assert engine.draft.learns is learns
        before = vars(engine.draft)["_proposer"]
        engine.draft.forget()
        assert (vars(engine.draft)["_proposer"] is before) is not learns


def test_the_same_class_proposes_the_same_here_and_in_vllm(assemble: Make) -> None:
    """The rig's runner calls the class as vLLM does; the engine must give it what makes it answer alike."""
    steps = steps_of(assemble(max_rows=3).engine(custom("TheirLookup"), k=K), repeating(6))
    theirs: Any = vllm_rig.TheirLookup(vllm_config(K, 3, LENGTH, VOCABULARY, {}))
    assert replayed(theirs, steps, 3, seed=1) > 0


@pytest.mark.slow
def test_the_class_of_the_tutorial_is_a_draft_and_equals_the_rigs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assemble: Make
) -> None:
    page = Path(__file__).parents[3] / "docs" / "other-projects.md"
    section = page.read_text(encoding="utf-8").partition("## vLLM")[2]
    (tmp_path / "previous.py").write_text(blocks("python", section)[0])
    monkeypatch.syspath_prepend(tmp_path)
    [named] = re.findall(r'--specdec-draft "(.*)"', section)
    engines = [assemble(max_rows=3).engine(draft, k=K) for draft in (named, custom("TheirLookup"))]
    assert steps_of(engines[0], repeating(6)) == steps_of(engines[1], repeating(6))
    [given] = re.findall(rf"--additional-config '(.*\"{KEY}\".*)' --spec", section)
    SpecdecProposer(vllm_config(K, 1, LENGTH, VOCABULARY, json.loads(given)))


def test_a_draft_that_is_told_to_forget_knows_nothing_of_requests_that_ended_before_one_begins_alone() -> None:
    """vLLM calls no proposer between two requests, so that the next one shows that the last has ended."""
    text = list(range(60, 80))
    proposed = {}
    for forgets in (False, True):
        additional = {KEY: "suffix", FORGETS: forgets}
        runner = VllmRunner(SpecdecProposer(vllm_config(K, 2, LENGTH, VOCABULARY, additional)), 2, LENGTH)
        runner.add(0, text[:10])
        for token in text[10:]:
            runner.step({0: [token]})
        runner.remove(0)
        runner.add(1, text[:4])
        proposed[forgets] = [runner.step({1: [token]})[1] for token in text[4:8]]
        # A second one beside the first is no new beginning.
        runner.add(2, text[:4])
        beside = runner.step({1: [text[8]], 2: [text[4]]})[2]
        assert beside, "what a request beside it has shown is not known"
    assert any(proposed[False])
    assert not any(proposed[True])
