"""A draft reads the states and logits that it asks for, and they are those of the unmodified model."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.guards.fake_cuda import fake_run
from benchsuite.conformance.guards.tape import Tape
from benchsuite.conformance.models import families, tiny
from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.pages import files_written
from benchsuite.tests.rig import slow_after
from benchsuite.workshop.machines.read_states import Unmodified, over_reader, reader_of
from specdec import Context, Draft, Request, SamplingParams, SpecdecError, Window, catalog, model
from specdec.assembly import Assembly
from specdec.interfaces import Env
from specdec.model import ArenaModel
from specdec.taps import Taps

PAGE = Path(__file__).parents[3] / "docs" / "write-a-plugin.md"
FAMILIES = ("llama", "qwen3", "gemma3", "qwen3-moe")
THREE = Taps((0, 2, 3))
"""Neighbours and a gap, of five layers: the first run of layers ends at once, and the last has no tap."""

CHAIN, TREE = "oracle(0.6)", "forked"
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_new_tokens=12)


@pytest.fixture
def chunks_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a prompt are short, so that most prompts have several."""
    monkeypatch.setattr(model, "PREFILL_CHUNK", 8)


CASES = slow_after(
    1,
    [
        *zip(FAMILIES, ("cpu", "reference", "cpu", "reference"), itertools.cycle([CHAIN, TREE]), strict=False),
        *zip(FAMILIES, ("reference", "cpu", "reference", "cpu"), itertools.cycle([TREE, CHAIN]), strict=False),
        ("llama", "cpu", TREE),
        ("mistral", "cpu", CHAIN),
        ("gpt2", "cpu", TREE),
    ],
)


@pytest.mark.usefixtures("chunks_of_eight")
@pytest.mark.parametrize(("family", "backend", "inner"), CASES)
def test_states_and_logits_of_every_token_are_the_unmodified_models(family: str, backend: str, inner: str) -> None:
    """Prompts in chunks, windows, rejected proposals, ragged rows that end and move: each text has all its states."""
    build = over_reader(family, backend, inner, THREE)
    engine, work = build.engine("reader", k=4), tiny.requests(SAMPLED, 4)
    tiny.ask(engine, itertools.cycle([4, 4, 0, 2]))
    engine.run(work)
    reader, unmodified = reader_of(engine), Unmodified.of(build.target)
    assert len(reader.texts) == len(work)
    for text, got in reader.texts.items():
        unmodified.check(text[:-1], THREE, got, f"{family} on {backend}, {len(text)} tokens")
    counts = engine.stats.counts
    assert 0 < counts["num_accepted_tokens"] < counts["num_draft_tokens"], "nothing was rolled back"
    assert counts["kv_rows_moved_bytes"], "no row moved"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_every_slot_of_a_tree_has_the_states_of_its_own_path(backend: str) -> None:
    """Rejected branches too; padding alone may hold anything."""
    build = over_reader("llama", backend, TREE, THREE)
    engine = build.engine("reader", k=6)
    # A text of some tokens has errors of its own to compare with.
    engine.run([one for one in tiny.requests(replace(SAMPLED, max_new_tokens=5)) if len(one.prompt) > 20])
    unmodified, seen = Unmodified.of(build.target), Counter[bool]()
    for texts, window, states in reader_of(engine).lent[:4]:
        for row, slot in itertools.product(range(len(texts)), range(window.tokens.shape[1])):
            if slot < int(window.width[row]):
                path = [one for one in window.path_to(torch.full_like(window.width, slot))[row].tolist() if one >= 0]
                text = (*texts[row], *window.tokens[row, path].tolist())
                last = states[row, slot : slot + 1], torch.zeros(0, build.target.vocabulary)
                unmodified.check(text, THREE, last, f"slot {slot} of {window.parents[row].tolist()}")
                seen[path != list(range(slot + 1))] += 1
    assert seen[True], "no slot lies beside the first path"


@pytest.mark.parametrize("family", slow_after(1, ["llama", "gemma3"]))
def test_a_text_that_is_continued_has_all_its_states(family: str) -> None:
    """What a draft kept and what the target reads again of a conversation are one text's states, without a gap."""
    build = over_reader(family, "cpu", CHAIN, THREE)
    engine = build.engine("reader", k=3)
    first = Request(0, tiny.prompts(1)[0], SAMPLED, keep=True)
    text = (*first.prompt, *engine.run([first])[0].tokens)
    for number, shorter in enumerate((0, 7), 1):
        prompt = (*text[: len(text) - shorter], 5, 6, 7)
        done = engine.run([Request(number, prompt, SAMPLED, continues=number - 1, keep=True)])[0]
        used = engine.stats.counts["kv_reused_tokens"]
        assert used == len(text) - shorter - (1 if shorter else 2), "the last common token's state is read again"
        text = (*prompt, *done.tokens)
        Unmodified.of(build.target).check(text[:-1], THREE, reader_of(engine).texts[text], f"turn {number}")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@torch.inference_mode()
def test_layers_are_in_their_order_the_final_norm_is_last_and_follows_the_last_layer(backend: str) -> None:
    target = over_reader("llama", backend, CHAIN, THREE).target
    tokens = torch.arange(9)[None] * 7
    window = Window.chain(tokens[:, 0], tokens[:, 1:], torch.tensor([8]))

    def states(taps: Taps) -> Any:
        return target.forward(target.arena(1, 16, 9), window, slice(0, 1), 0, taps)[1]

    every = states(Taps((0, 1, 2, 3, 4), final=True))
    assert every.shape == (1, 9, 6, 32)
    final = states(Taps())
    assert torch.equal(every[:, :, 5], final)
    assert torch.equal(states(Taps(final=True)), final)
    assert torch.equal(target.model.base_model.norm(every[:, :, 4]), final)
    for layers in ((0,), (4,), (1, 3), (0, 2, 4)):
        torch.testing.assert_close(states(Taps(layers)), every[:, :, list(layers)], rtol=0, atol=0)
        whole = Taps((0, 1, 2, 3, 4), final=True).part(every, Taps(layers))
        assert whole is not None
        assert torch.equal(whole, every[:, :, list(layers)])
    arena = target.arena(1, 16, 9)
    assert torch.equal(target.extend(arena, tokens, 0, 0, Taps((1, 3), final=True)), every[:, :, [1, 3, 5]])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_taps_change_no_bit_of_the_logits_and_nothing_of_the_next_forward(backend: str) -> None:
    """A run of layers that ends at a tap computes what the whole run does; the next forward is one run again."""
    build = over_reader("llama", backend, CHAIN, THREE)
    target, tokens = build.target, torch.arange(9)[None] * 7
    window = Window.chain(tokens[:, 0], tokens[:, 1:], torch.tensor([8]))

    def forward(taps: Taps) -> tuple[torch.Tensor, Counter[str]]:
        before = target.ops.ran()
        logits, _ = target.forward(target.arena(1, 16, 9), window, slice(0, 1), 0, taps)
        return logits, Counter({op: count for (op, _), count in (target.ops.ran() - before).items()})

    plain, ran = forward(Taps())
    tapped, more = forward(THREE)
    again, less = forward(Taps())
    assert torch.equal(plain, tapped)
    assert torch.equal(plain, again)
    runs = {"reference": (0, 0), "cpu": (1, 4)}[backend]
    assert (ran["decoder_layers"], more["decoder_layers"]) == runs
    assert less == ran


def test_a_replayed_step_hands_over_what_a_step_op_by_op_does() -> None:
    build = over_reader("llama", "reference", CHAIN, THREE)
    found = []
    for recorder in (None, Tape()):
        engine = build.engine("reader", k=3, recorder=recorder)
        engine.run(tiny.requests(SAMPLED, 3))
        found.append(reader_of(engine).texts)
    assert found[0].keys() == found[1].keys()
    for text, got in found[0].items():
        for mine, theirs in zip(got, found[1][text], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_the_bytes_that_are_copied_out_of_layers_are_counted_in_prompts_and_steps() -> None:
    build = over_reader("llama", "cpu", "garbage", THREE)
    engine = build.engine("reader", k=3)
    request = Request(0, tiny.prompts(1)[0], SamplingParams(max_new_tokens=6))
    engine.run([request])
    slots = len(request.prompt) - 1 + sum(step.rows * step.width for step in engine.stats.steps)
    assert engine.stats.counters()["hidden_bytes_copied"] == slots * 3 * 32 * 4
    plain = build.engine("garbage", k=3)
    plain.run([request])
    assert "hidden_bytes_copied" not in plain.stats.counters()


class Asking(Draft):
    """Asks for these layers, and never gets to propose."""

    def __init__(self, env: Env | None, layers: Any) -> None:
        self.hidden_layers = layers

    def propose(self, context: Context) -> Window:
        raise AssertionError("it was asked")


@pytest.mark.parametrize("layers", [(2, 1), (1, 1), (-1, 1), [0, 1], (0, True), (0.0,), 3, None])
def test_layers_that_are_no_ascending_tuple_of_indices_are_refused(layers: Any) -> None:
    with pytest.raises(SpecdecError) as refused:
        tiny.assembly(extra=(("draft", "asking", lambda env: Asking(env, layers)),)).engine("asking")
    assert str(refused.value) == (
        f"hidden_layers of the draft Asking are {layers!r}; expected a tuple of ascending indices of decoder layers, "
        "the first layer being 0: (2, 14, 29)"
    )


def test_a_layer_that_the_target_does_not_have_is_refused_by_name_before_anything_runs() -> None:
    build = tiny.assembly(extra=(("draft", "asking", lambda env, last=2: Asking(env, (0, last))),))
    with pytest.raises(SpecdecError) as refused:
        build.engine("asking")
    assert str(refused.value) == (
        "the draft Asking reads the output of layer 2, and the target has 2 layers; expected hidden_layers from 0 to 1"
    )
    assert build.target.forwards == 0
    assert build.engine("asking(last=1)").queue.taps == Taps((0, 1))
    with pytest.raises(SpecdecError, match="the draft Oracle reads the output of layer 7"):
        build.engine("oracle(0.8, cost='asking(last=7)')")


def test_taps_of_several_drafts_are_their_union_and_each_gets_its_own_part() -> None:
    """Against a list of states by name, for every pair of what two drafts may ask for."""
    kinds = [Taps(tuple(layer for layer in range(3) if bits >> layer & 1), final=bool(bits >> 3)) for bits in range(16)]
    state = {name: torch.full((2, 4, 5), float(name)) for name in range(4)}

    def asked(taps: Taps) -> list[int]:
        return [*taps.layers, *[3] * taps.final]

    def asking(taps: Taps) -> Draft:
        draft = Asking(None, taps.layers)
        draft.needs_hidden = taps.final
        return draft

    for one, other in itertools.product(kinds, kinds):
        union = Taps.of([asking(one), asking(other)])
        assert asked(union) == sorted({*asked(one), *asked(other)})
        assert bool(union) is bool(one or other)
        states = union.gathered([state[layer] for layer in union.layers], state[3])
        for taps in (one, other):
            part, names = union.part(states, taps), asked(taps)
            if not names:
                assert part is None
            elif taps.layers:
                assert part is not None
                assert torch.equal(part, torch.stack([state[name] for name in names], dim=2))
            else:
                assert part is not None
                assert torch.equal(part, state[3])


def example(name: str, module: str) -> Any:
    """A draft of docs/write-a-plugin.md, by its class's name."""
    names: dict[str, Any] = {"__name__": module}
    exec(files_written(PAGE.read_text(encoding="utf-8"))[f"{module}.py"], names)
    return names[name]


@pytest.mark.slow
@pytest.mark.fake_gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_the_pages_draft_of_three_layers_steps_on_a_gpu_that_is_not_there(family: str) -> None:
    """Nothing is read or waited for, and twins launch the same ops, so that a step can be recorded."""
    extra = (("draft", "recall", example("Recall", "recall")),)
    config = families.config_of(family, layers=3)
    found = fake_run("recall", k=3, rows=2, steps=4, config=config, backends="triton", extra=extra)
    assert found.wrong() is None
    assert list(found.twins())


@pytest.mark.parametrize("backend", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", slow_after(1, ["llama", "qwen3-moe", "qwen3", "gemma3"]))
def test_the_pages_draft_of_three_layers_runs_over_every_family_and_changes_no_output(
    family: str, backend: str
) -> None:
    found = registry(("draft", "recall", example("Recall", "recall")))
    target = ArenaModel(families.build_model(family, 0, torch.float64, layers=3), found.backend(backend))
    build = Assembly(found, target, catalog.byte_tokenizer(), max_rows=2, max_length=160)
    engine = build.engine("recall", k=4)
    work = tiny.requests(replace(SAMPLED, temperature=0.0, max_new_tokens=20), 4)
    assert [done.tokens for done in engine.run(work)] == [build.plain(request) for request in work]
    assert engine.stats.counts["num_draft_tokens"] > 0
