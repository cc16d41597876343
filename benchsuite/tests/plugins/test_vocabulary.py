"""A draft with another tokenizer reads the text in its own tokens and proposes those that the target has too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, processors
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from benchsuite import conformance
from benchsuite.conformance.models import families, tiny
from benchsuite.conformance.models.tiny import ask, prompts, requests
from benchsuite.conformance.proposals import Proposal, proposals
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import Make, assert_same, left_to_deep, pairs_in_turn, slow_after
from benchsuite.workshop.machines.renamed import (
    BYTES,
    LETTERS,
    SPECIAL,
    byte_level,
    own_copy,
    renamed,
    shuffled,
    shuffled_draft,
)
from specdec import Context, Draft, Env, Request, SamplingParams, SpecdecError, Verdict, Window, catalog
from specdec.arena import Arena
from specdec.assembly import Assembly
from specdec.catalog import Loaded
from specdec_plugins.drafts.oracle import Oracle
from specdec_plugins.drafts.translated import TranslatedDraft
from specdec_plugins.vocabularies import Spelling, Translation, _alphabet


def pieces(
    vocabulary: Sequence[str], merges: Sequence[tuple[str, str]] = (), begin: str = ""
) -> PreTrainedTokenizerBase:
    """A tokenizer as sentencepiece writes it, of these tokens in this order; ``begin`` is put before every text."""
    made = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=list(merges), byte_fallback=True)
    )
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    if begin:
        made.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, vocabulary.index(begin))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=begin or None)


@cache
def words() -> PreTrainedTokenizerBase:
    """A tokenizer for the target in which most tokens are several bytes, so that a draft of bytes needs several."""
    alone = LETTERS[:100]
    long = [first + second * (i % 3 + 1) for i, (first, second) in enumerate(itertools.pairwise(LETTERS))]
    return byte_level([*alone, *long[: BYTES - len(alone)]])


@cache
def some_bytes() -> Loaded:
    """Another model than the targets, of bytes, some of them missing."""
    kept = [token for token in range(BYTES) if token % 7]
    model = renamed(families.build_model("llama", seed=1), [*kept, 257, 256])
    return Loaded("bytes", model, byte_level([LETTERS[token] for token in kept], special=SPECIAL[::-1]))


def spelling(env: Env) -> Draft:
    """A draft of bytes for a target of words."""
    return TranslatedDraft(replace(env, tokenizer=words()), own_copy(some_bytes()))


# One class: what takes longest, the draft of other words is held to.
TestShuffled = pytest.mark.slow(
    left_to_deep(
        conformance.draft("shuffled", sampled=True, fakes=False, factory=shuffled_draft),
        "test_q_is_the_distribution_that_its_proposals_were_drawn_from",
        "test_sampled_outputs_have_the_targets_distribution",
        "test_it_keeps_nothing_that_a_replayed_step_overwrites",
    )
)
TestSpelling = pytest.mark.slow(conformance.draft("spelling", sampled=True, fakes=False, factory=spelling))


def build(family: str = "llama", rows: int = 3, length: int = 192, **drafts: Callable[[Env], Draft]) -> Assembly:
    """An Assembly over a tiny target with these drafts."""
    extra = tuple(("draft", name, factory) for name, factory in drafts.items())
    return tiny.assembly(family, max_rows=rows, max_length=length, extra=extra)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 1.0]), ids=["greedy", "sampled"])
@pytest.mark.parametrize(("k", "rows"), slow_after(1, pairs_in_turn([1, 3, 7], [1, 3])))
def test_under_match_every_output_is_plain_decodings(k: int, rows: int, temperature: float) -> None:
    made = build(rows=rows, spelling=spelling)
    work = requests(SamplingParams(temperature=temperature, seed=5, max_new_tokens=24))
    plain, other = (EngineSource(made.engine(draft, k=k if draft else None)) for draft in (None, "spelling"))
    assert_same(Judge(made.target, range(40)), plain, other, work)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["rejection", "block"])
def test_greedy_outputs_are_plain_decodings_under_policies_that_draw(policy: str) -> None:
    made = build(shuffled=shuffled_draft)
    engine = made.engine("shuffled", policy, k=4)
    assert_same(Judge(made.target, range(40)), EngineSource(made.engine(None)), EngineSource(engine), requests())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "temperature"), slow_after(1, pairs_in_turn(["llama", "gemma3", "mistral", "gpt2"], [0.0, 1.0]))
)
def test_the_target_under_other_ids_has_every_proposal_accepted(family: str, temperature: float) -> None:
    """Without the tokens that nobody needs: what the target draws is always among those that the draft has."""
    work = requests(SamplingParams(temperature=temperature, max_new_tokens=30), count=6)
    needed = {token for request in work for token in (*request.prompt, *build(family).plain(request))}
    without = [token for token in range(BYTES) if token not in needed]
    assert len(without) > 10, "too few tokens are left out: the case is not covered"
    made = build(family, other=lambda env: TranslatedDraft(env, shuffled(family, without)))
    engine = made.engine("other", k=4)
    ask(engine, [4, 4, 0, 4, 0, 0, 4, 1, 4] * 40)
    engine.run(work)
    assert engine.stats.acceptance_rate == 1.0
    assert engine.stats.counts["num_draft_tokens"] > 100
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"


@pytest.mark.slow
def test_tokens_that_the_draft_lacks_cost_only_proposals() -> None:
    """The target under other ids, without an eighth of its tokens: what is left agrees far more often than chance."""
    made = build(shuffled=shuffled_draft)
    engine = made.engine("shuffled", k=1)
    engine.run(requests(SamplingParams(temperature=1.0, max_new_tokens=60)))
    assert engine.stats.acceptance_rate is not None
    assert 0.25 < engine.stats.acceptance_rate < 1.0


@pytest.mark.slow
def test_accepted_proposals_are_not_processed_again() -> None:
    """Where everything is accepted, the first window of a step is the last proposal and the bonus token."""
    made = build(other=lambda env: TranslatedDraft(env, shuffled("llama")))
    engine = made.engine("other", k=4, max_rows=1)
    assert isinstance(engine.draft, TranslatedDraft)
    widths, model = list[int](), engine.draft._model
    forward = model.forward

    def noted(arena: Arena, window: Window, rows: slice, longest: int) -> tuple[Tensor, Tensor]:
        widths.append(window.tokens.shape[1])
        return forward(arena, window, rows, longest)

    object.__setattr__(model, "forward", noted)
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=20))])
    assert widths == [1, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1]


@pytest.mark.slow
def test_a_draft_left_alone_for_longer_than_its_widest_window_reads_everything() -> None:
    made = build(rows=2, length=500, other=lambda env: TranslatedDraft(env, shuffled("llama")))
    engine = made.engine("other", k=4)
    ask(engine, [*[0] * 280, *[4] * 200])
    lengths = zip(prompts(3), (400, 270, 60), strict=True)
    engine.run([Request(i, p, SamplingParams(max_new_tokens=n)) for i, (p, n) in enumerate(lengths)])
    assert engine.stats.counts["num_draft_tokens"] > 50
    assert engine.stats.acceptance_rate == 1.0


def expected_q(draft: TranslatedDraft, model: PreTrainedModel, seen: Proposal) -> Tensor:
    """The draft's distributions of a record's proposals [K, V], from its whole text without an arena."""
    translation = draft._translation
    text = translation.text((*seen.text, *seen.tokens[:-1]))
    logits = model(torch.tensor([text]), use_cache=False).logits[0, -len(seen.tokens) :].float()
    shares = (logits[:, translation.draft_ids] / seen.request.params.temperature).softmax(dim=-1)
    whole = torch.zeros(len(seen.tokens), BYTES + 2)
    return whole.index_copy_(1, translation.ids, shares)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["spelling", "hybrid(sources='ngram(n_min=1), spelling', model_k=3)"])
def test_q_is_the_drafts_own_distribution_over_the_shared_tokens(text: str) -> None:
    """Computed again without an arena, from the whole text in the draft's tokens: after rejections, steps without
    proposals or with another's, in rows of different lengths that move."""
    made = build(spelling=spelling)
    engine = made.engine(text, "rejection", k=4)
    draft = vars(engine.draft).get("_rest", [engine.draft])[0]
    assert isinstance(draft, TranslatedDraft)
    work = requests(SamplingParams(temperature=0.7, seed=2, max_new_tokens=30), count=6)
    found = proposals(engine, work, lambda step: (4, 4, 0, 3, 1, 0, 0, 4, 2)[step % 9])
    assert max(map(len, (draft._translation.more([token]) for token in range(BYTES)))) > 2
    model, checked = draft._model.twin(), 0
    for seen in found:
        if seen.q is not None and bool((seen.q.amax(dim=1) < 1).any()):  # a lookup's proposals are certain
            torch.testing.assert_close(seen.q, expected_q(draft, model, seen), rtol=1e-3, atol=1e-5)
            checked += 1
    assert checked > 30, "too few windows: the case is not covered"
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"


class TakesTurns(Draft):
    """Asks a draft in every step; every other window that is verified is the target's own output instead."""

    def __init__(self, env: Env) -> None:
        self.inner, self.right, self.steps = spelling(env), Oracle(env, rate=1.0), 0

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self.inner.admit(row, request, prompt)
        self.right.admit(row, request, prompt)

    def propose(self, context: Context) -> Window:
        self.steps += 1
        inner, right = self.inner.propose(context), self.right.propose(context)
        return inner if self.steps % 2 else right

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        self.inner.observe(window, verdict, hidden, own and self.steps % 2 == 1)
        self.right.observe(window, verdict, hidden, own and self.steps % 2 == 0)


@pytest.mark.slow
def test_proposals_that_were_not_verified_are_not_kept() -> None:
    """What another draft's windows made of the text, the draft reads anew."""
    made = build(rows=1, turns=TakesTurns)
    engine = made.engine("turns", k=4)
    assert isinstance(engine.draft, TakesTurns)
    assert isinstance(engine.draft.inner, TranslatedDraft)
    translation, model = engine.draft.inner._translation, engine.draft.inner._model.twin()
    request = Request(0, prompts(1)[0], SamplingParams(max_new_tokens=60))
    *found, _ = proposals(engine, [request])[::2]
    assert len(found) > 8
    for seen in found:
        text = translation.text((*seen.text, *seen.tokens[:-1]))
        logits = model(torch.tensor([text]), use_cache=False).logits[0, -len(seen.tokens) :, translation.draft_ids]
        assert list(seen.tokens) == translation.ids[logits.argmax(dim=1)].tolist()


@pytest.mark.slow
def test_a_moved_row_takes_its_text_along() -> None:
    """The first token after the prompt is one that the draft lacks, so that the prompt's last is processed again, now
    in another row."""
    params = SamplingParams(max_new_tokens=12)
    long, short = prompts(2)
    first = build().plain(Request(1, long, params))[0]
    assert first not in (long[-1], 256, 257)
    made = build(other=lambda env: TranslatedDraft(env, shuffled("llama", without=[first])))
    work = [Request(0, short, SamplingParams(max_new_tokens=1)), Request(1, long, params)]
    moved = [seen for seen in proposals(made.engine("other", k=3), work) if seen.request.id == 1]
    alone = proposals(made.engine("other", k=3, max_rows=1), work[1:])
    assert [(seen.text, seen.tokens) for seen in moved] == [(seen.text, seen.tokens) for seen in alone]


@pytest.mark.slow
def test_a_row_whose_text_is_too_long_for_the_draft_proposes_no_more() -> None:
    """A draft of 100 learnt positions: one more would not crash everywhere, but read the last position twice."""

    def small(env: Env) -> Draft:
        model = families.build_model("gpt2", seed=1)
        model.config.n_positions = model.config.max_position_embeddings = 100
        model.transformer.wpe.weight.data = model.transformer.wpe.weight.data[:100]
        return TranslatedDraft(replace(env, tokenizer=words()), Loaded("small", model, catalog.byte_tokenizer()))

    made = build(small=small)
    engine = made.engine("small", k=4)
    draft, work = engine.draft, requests(SamplingParams(max_new_tokens=60))
    assert isinstance(draft, TranslatedDraft)
    found = proposals(engine, work)
    lengths = [len(draft._translation.text(seen.text)) for seen in found]
    assert 80 < max(lengths) <= 100 - 5
    assert {seen.request.id for seen in found} < {request.id for request in work}, "no row was too long from the start"
    plain = EngineSource(made.engine(None))
    assert_same(Judge(made.target, range(40)), plain, EngineSource(engine), work)


@pytest.mark.slow
def test_a_row_whose_text_the_draft_cannot_read_waits_for_one_that_it_can() -> None:
    without = range(0, 250)
    made = build(few=lambda env: TranslatedDraft(env, shuffled("llama", without)))
    engine = made.engine("few", k=3)
    work = [
        Request(i, prompt, SamplingParams(temperature=1.0, seed=i, max_new_tokens=80))
        for i, prompt in enumerate([(1, 2, 3), (4,), (5, 6, 255)])
    ]
    found = proposals(engine, work)
    assert found
    assert {seen.request.id for seen in found if not set(seen.text) - set(without)} == set()
    assert found[0].request.id == 2, "the row with text proposes at once, beside two that cannot"
    plain = EngineSource(made.engine(None))
    assert_same(Judge(made.target, range(40)), plain, EngineSource(engine), work)


def test_the_characters_of_bytes_are_those_of_byte_level_tokenizers() -> None:
    """All 256, from the library that reads them."""
    assert {chr(ord(char)): byte for char, byte in _alphabet().items()} == {c: b for b, c in bytes_to_unicode().items()}


def test_tokens_are_the_same_if_they_stand_for_the_same_bytes() -> None:
    target = byte_level(["Ġ", "t", "h", "e", "i", "r", "Ċ", "é", "Ã", "©", "Ġthe", "Ġtheir", "ĠĊ", "Ã©", "ĠÃ"])
    draft = pieces(
        ["<unk>", "<0x0A>", "<0x65>", "<0xC3>", "▁", "r", "e", "i", "▁t", "▁th", "▁the", "t", "h", "é"],
        merges=[("▁", "t"), ("▁t", "h"), ("▁th", "e")],
    )
    names, back = target.convert_ids_to_tokens, draft.convert_ids_to_tokens
    found = Translation(target, len(target), draft, len(draft))
    pairs = dict(zip(names(found.ids.tolist()), back(found.draft_ids.tolist()), strict=True))
    assert pairs == {
        **{"Ġ": "▁", "t": "t", "h": "h", "e": "e", "i": "i", "r": "r", "Ġthe": "▁the"},
        **{"Ċ": "<0x0A>", "Ã": "<0xC3>", "Ã©": "é"},
    }
    assert found.ids.tolist() == sorted(found.ids.tolist())

    def read(token: str) -> list[str]:
        return list(back(found.more([target.convert_tokens_to_ids(token)])))

    assert read("Ġtheir") == ["▁the", "i", "r"]
    assert read("ĠĊ") == ["▁", "<0x0A>"]
    assert read("ĠÃ") == ["▁", "<0xC3>"], "half a character"
    assert read("©") == [], "a byte that the draft has no token for"
    assert found.longest == 3


def test_the_drafts_own_merges_say_how_it_reads_a_token_that_it_lacks() -> None:
    """The longest token first would be ``abc d``; the merges make ``a bcd``."""
    target = byte_level(["a", "b", "abcd"])
    draft = byte_level(["a", "b", "c", "d", "abc", "cd", "bcd", "ab"], merges=[("c", "d"), ("b", "cd"), ("a", "b")])
    found = Translation(target, len(target), draft, len(draft))
    assert draft.convert_ids_to_tokens(found.more([2])) == ["a", "bcd"]


def test_special_tokens_are_shared_if_both_are_special_and_else_left_out() -> None:
    target = byte_level(["a", "b"], special=["<|end|>", "<|user|>"])
    draft = byte_level(["b", "a", *"<|user>"], special=["<|end|>"])
    found = Translation(target, len(target), draft, len(draft))
    assert (found.ids.tolist(), found.draft_ids.tolist()) == ([0, 1, 2], [1, 0, len(draft) - 1])
    assert found.more([3]) == []
    draft = byte_level(["b", "a", "<|end|>"], special=[])
    assert Translation(target, len(target), draft, len(draft)).ids.tolist() == [0, 1]


def test_ids_past_the_models_vocabulary_are_not_shared() -> None:
    target, draft = byte_level(["a", "b", "c", "d"]), byte_level(["d", "c", "b", "a"])
    found = Translation(target, 3, draft, 3)
    assert (found.ids.tolist(), found.draft_ids.tolist()) == ([1, 2], [2, 1])
    assert found.text([0, 1, 2]) == [2, 1]


def test_a_text_begins_as_the_drafts_own_texts_do() -> None:
    target, draft = byte_level(["a", "b"], special=["<s>"]), pieces(["a", "b", "<s>"], begin="<s>")
    found = Translation(target, len(target), draft, len(draft))
    assert found.text([0, 1]) == [2, 0, 1]
    assert found.text([2, 0]) == [2, 0], "the target's text begins so already"
    assert found.more([1]) == [1]


def saved_draft(loaded: Loaded, folder: Path) -> str:
    """Save a draft; return the quoted path for ``draft_model(model=…)``."""
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return repr(str(folder))


@pytest.mark.slow
def test_the_option_takes_a_draft_that_is_refused_without_it(tmp_path: Path, assemble: Make) -> None:
    path, made = saved_draft(shuffled("llama"), tmp_path), assemble()
    with pytest.raises(SpecdecError, match=r"another tokenizer: 2\d\d tokens differ.*vocabulary=intersection"):
        made.engine(f"draft_model(model={path})", k=2)
    engine = made.engine(f"draft_model(model={path}, vocabulary=intersection)", k=2)
    engine.run(requests())
    assert engine.stats.acceptance_rate == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("model=tiny, vocabulary=intersect", "unknown vocabulary 'intersect'; did you mean 'intersection'.*same"),
        ("model=tiny, vocabulary=3", "unknown vocabulary '3'; choices: intersection, same"),
        ("vocabulary=intersection", "give draft_model a model and no layers"),
        ("model=tiny, layers=1, vocabulary=intersection", "give draft_model a model and no layers"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_choices(options: str, message: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=message):
        assemble().engine(f"draft_model({options})", k=2)


@pytest.mark.parametrize(("vocabulary", "shared"), [(["xyzzy", "plugh"], 0), (["xyzzy", "a"], 1)])
def test_a_draft_with_nothing_to_choose_from_is_refused(
    vocabulary: list[str], shared: int, tmp_path: Path, assemble: Make
) -> None:
    loaded = Loaded("other", renamed(families.build_model("llama"), [0, 1]), byte_level(vocabulary, special=[]))
    with pytest.raises(SpecdecError, match=rf"258 tokens and the draft 2, with {shared} in common"):
        assemble().engine(f"draft_model(model={saved_draft(loaded, tmp_path)}, vocabulary=intersection)", k=2)


def test_a_tokenizer_that_does_not_say_how_its_tokens_are_spelt_is_refused() -> None:
    with pytest.raises(SpecdecError, match=r"takes tokenizers with a tokenizer\.json"):
        Spelling(PreTrainedTokenizerBase(), 10)
