"""Whatever was verified before, a draft proposes what it proposes for the same text as a prompt.

Texts are played to a draft without an engine: rows begin, grow by windows of the draft, of another draft and of nobody,
move, end, and continue what was kept. A twin reads the whole text anew, and must propose the same. Every forward is
counted, and none of them writes where the host's bound says that the arena has no cell.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchsuite.conformance.exact.enumerator import context
from benchsuite.conformance.models import families, tiny
from benchsuite.conformance.models.tiny import ask, prompts
from benchsuite.tests.rig import Make, pairs_in_turn, saved_head, slow_after, some_of
from benchsuite.workshop.machines.renamed import BYTES, LETTERS, byte_level, own_copy, shuffled, shuffled_draft
from specdec import Context, Draft, Env, Request, SamplingParams, SpecdecError, Verdict, Window, catalog
from specdec.arena import Arena, KeptCells
from specdec.catalog import Loaded
from specdec.processors import Adjustments, Penalties
from specdec.queue import KeptText
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.draft_model import DraftModel
from specdec_plugins.drafts.eagle import Eagle
from specdec_plugins.drafts.eagle_lite import EagleLite
from specdec_plugins.drafts.medusa import Medusa
from specdec_plugins.drafts.translated import TranslatedDraft
from specdec_plugins.drafts.tree import Tree
from specdec_plugins.entries import RESTS
from specdec_plugins.growth import wanted

Build = Callable[[Env], Draft]

ROWS, K, CHUNK, LENGTH = 3, 4, 8, 160


def lent_env(family: str = "llama", length: int = LENGTH, k: int = K) -> Env:
    """The environment that an engine over a tiny target gives its draft."""
    kept: list[Env] = []

    def held(env: Env) -> Draft:
        kept.append(env)
        return env.draft("garbage")

    tiny.assembly(family, max_rows=ROWS, max_length=length, extra=(("draft", "held", held),)).engine("held", k=k)
    return kept[0]


def state_of(text: tuple[int, ...], size: int) -> Tensor:
    """A hidden state of a text's last token: any, the same for the same text."""
    return torch.randn(size, generator=torch.Generator().manual_seed(abs(hash(text))))


class CountedForwards:
    """Counts the forwards over an arena; the host's bound on the cells that each reads is none too small."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.widths: list[int] = []
        self.counted = False
        plan = Arena.plan

        def planned(arena: Arena, window: Window, ops: Any, rows: slice, longest: int, *more: Any) -> Any:
            assert int(arena.committed[rows].max()) <= longest
            if self.counted:
                self.widths.append(window.tokens.shape[1])
            return plan(arena, window, ops, rows, longest, *more)

        patch.setattr(Arena, "plan", planned)


class Played:
    """Rows of texts that are played to a draft, with coins for all that may happen to them."""

    def __init__(self, build: Build, env: Env, seed: int = 0, forwards: CountedForwards | None = None) -> None:
        self.build, self.env, self.coins, self.forwards = build, env, random.Random(seed), forwards
        self.draft, self.texts = build(env), list[list[int]]()
        self.size = int(env.target.model.get_input_embeddings().weight.shape[1])
        self.kept: list[tuple[tuple[int, ...], object]] = []
        self.seen = self.count = 0

    def step(self) -> None:
        """One event: a request begins or ends, or a window is verified."""
        coin = self.coins.random()
        if not self.texts or (len(self.texts) < ROWS and coin < 0.15):
            self.begin()
        elif coin > 0.88 or max(map(len, self.texts)) > LENGTH - 3 * K:
            self.end(self.coins.randrange(len(self.texts)))
        elif coin > 0.84 and max(map(len, self.texts)) < LENGTH - 6 * CHUNK:
            for _ in range(CHUNK + 4):  # more than fits one forward
                self.verify("nobody")
            if len(self.texts) < ROWS:
                self.begin()
        else:
            self.verify()

    def tokens(self, most: int) -> list[int]:
        """At least one token, at most so many."""
        return [self.coins.randrange(BYTES) for _ in range(self.coins.randint(1, most))]

    def begin(self, text: list[int] | None = None) -> None:
        """A request, that continues a kept text if there is one and the coin says so."""
        row, prompt = len(self.texts), tuple(text or self.tokens(3 * CHUNK))
        first = 0
        if self.kept and text is None and self.coins.random() < 0.7:
            old, kept = self.kept.pop()
            prompt = (*old[: self.coins.choice([len(old), self.coins.randint(0, len(old))])], *self.tokens(4))
            if isinstance(self.draft, EagleLite):
                prompt += (self.coins.randrange(BYTES),)  # it extrapolates from two states, and is told of these again
            whole = KeptText(old, KeptCells(len(old) - 1, False, (), ()), kept)
            first = 0 if kept is None else whole.usable(prompt, needs_hidden=self.draft.needs_hidden)
            if first:
                self.told("resume", row, self.request(row), prompt, kept, first, counted=self.draft.needs_hidden)
        self.texts.append([*prompt])
        self.read(self.draft, row, prompt, first)

    def request(self, row: int) -> Request:
        self.count += 1
        return Request(self.count, (1,), SamplingParams(max_new_tokens=LENGTH))

    def read(self, draft: Draft, row: int, text: tuple[int, ...], first: int = 0) -> None:
        """Admit a prompt of which so many tokens are there already; its hidden states come in chunks."""
        counting = draft is self.draft and draft.needs_hidden
        if not first:
            self.told("admit", row, self.request(row), text, draft=draft, counted=counting)
        while draft.needs_hidden and first < len(text) - 1:
            size = self.coins.randint(1, len(text) - 1 - first)
            states = torch.stack([state_of(text[: at + 1], self.size) for at in range(first, first + size)])
            self.told("prefilled", row, torch.tensor([text[first : first + size]]), first, states[None], draft=draft)
            first += size

    def end(self, row: int) -> None:
        """A row ends and may be kept; the last row takes its place."""
        text, last = tuple(self.texts[row]), len(self.texts) - 1
        if self.coins.random() < 0.8:
            self.kept.append((text, self.told("keep", row, text, counted=True)))
        self.told("release", row, text, counted=True)
        if row != last:
            self.told("move", last, row, self.request(last), tuple(self.texts[last]), counted=True)
            self.texts[row] = self.texts[last]
        self.texts.pop()

    def verify(self, whose: str = "") -> None:
        """A window of nobody, of the draft or of another draft; some of each row is accepted."""
        whose = whose or self.coins.choice(["nobody", "own", "own", "another"])
        k = 0 if whose == "nobody" else self.coins.randint(1, K)
        lent = self.lent(
            self.texts, [k if self.draft.branches else self.coins.randint(min(k, 1), k) for _ in self.texts]
        )
        window = Window.root(lent)
        if k:
            window = self.told("propose", lent, counted=True)
            self.judge(window, lent)
            if whose == "another" and not self.draft.branches:
                window = self.another(window)
        paths = [self.path(window, row) for row in range(lent.rows)]
        self.follow(window, paths, own=bool(k) and (whose == "own" or self.draft.branches))

    def another(self, window: Window) -> Window:
        """A chain that begins like ``window`` in some rows."""
        rows, size = len(self.texts), self.coins.randint(2, K + 1)
        tokens = torch.tensor([[self.coins.randrange(BYTES) for _ in range(size)] for _ in range(rows)])
        tokens[:, 0] = window.tokens[:, 0]
        for row in range(rows):
            same = self.coins.randint(1, min(size, window.tokens.shape[1]))
            tokens[row, :same] = window.tokens[row, :same]
        return Window.chain(
            tokens[:, 0], tokens[:, 1:], torch.tensor([self.coins.randrange(size) for _ in range(rows)])
        )

    def path(self, window: Window, row: int) -> list[int]:
        """The slots from the root to a slot of the row, often to the last one."""
        last = int(window.width[row]) - 1
        path = [last if self.coins.random() < 0.4 else self.coins.randint(0, last)]
        while path[0]:
            path.insert(0, int(window.parents[row, path[0]]))
        return path

    def follow(self, window: Window, paths: list[list[int]], own: bool) -> None:
        """The slots ``paths`` of a window were accepted, and a token came after them."""
        after = torch.tensor([self.coins.randrange(BYTES) for _ in paths])
        padded = torch.full(window.tokens.shape, -1)
        for row, path in enumerate(paths):
            padded[row, : len(path)] = torch.tensor(path)
        hidden = torch.zeros(*window.tokens.shape, self.size)
        for row, text in enumerate(self.texts if self.draft.needs_hidden else []):
            before = {0: tuple(text)}
            for slot in range(window.tokens.shape[1]):
                if slot:
                    before[slot] = (*before[int(window.parents[row, slot])], int(window.tokens[row, slot]))
                hidden[row, slot] = state_of(before[slot], self.size)
        verdict = Verdict(padded, torch.tensor([len(path) - 1 for path in paths]), after)
        self.told("observe", window, verdict, hidden if self.draft.needs_hidden else None, own, counted=True)
        for row, path in enumerate(paths):
            self.texts[row] += [*window.tokens[row, path[1:]].tolist(), int(after[row])]

    def told(self, name: str, *given: Any, draft: Draft | None = None, counted: bool = False) -> Any:
        """A call of the draft; prefill is not counted."""
        if self.forwards:
            self.forwards.counted = counted and (draft or self.draft) is self.draft
        result = getattr(draft or self.draft, name)(*given)
        if self.forwards:
            self.forwards.counted = False
        return result

    def lent(self, texts: list[list[int]], room: list[int]) -> Context:
        """A greedy step over these texts, with room for so many proposals in each."""
        found = context(self.env.ops, torch.arange(len(texts)) + 11)
        tokens = np.zeros((len(texts), LENGTH + K), dtype=np.int64)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = text
        lengths, rooms = np.array([len(text) for text in texts]), np.array(room)
        return replace(
            found,
            params=replace(found.params, temperature=found.params.temperature * 0, greedy=True),
            tokens=torch.tensor(tokens),
            history=tokens,
            length=torch.tensor(lengths),
            length_host=lengths,
            max_proposals=torch.tensor(rooms),
            max_proposals_host=rooms,
        )

    def judge(self, window: Window, lent: Context) -> None:
        """Each row of the window is what a new draft proposes for the row's text alone."""
        for row, text in enumerate(self.texts):
            room = int(lent.max_proposals_host[row])
            twin = self.build(self.env)
            self.read(twin, 0, tuple(text))
            anew = self.told("propose", self.lent([text], [room]), draft=twin)
            width = int(anew.width[0])
            assert int(window.width[row]) == width, text
            assert window.tokens[row, :width].tolist() == anew.tokens[0].tolist()[:width], text
            assert window.parents[row, :width].tolist() == anew.parents[0].tolist()[:width], text
            self.seen += width > 1


def held(draft: Draft) -> int:
    """How many things lie in the draft's lists and dictionaries."""
    return sum(len(value) for value in vars(draft).values() if isinstance(value, list | dict))


def bytes_draft(env: Env) -> Draft:
    """A draft of bytes, some of them missing, for a target whose tokens are one to three of them."""
    words = [LETTERS[i] + LETTERS[i + 1] * (i % 3) if i < BYTES - 1 else LETTERS[i] for i in range(BYTES)]
    return TranslatedDraft(replace(env, tokenizer=byte_level(words)), shuffled("llama", without=range(0, BYTES, 7)))


Faulty = Callable[..., Any]
"""A method with a fault, made of the method."""


def _own(value: bool) -> Callable[[Faulty], Faulty]:
    return lambda observe: lambda draft, window, verdict, hidden, own: observe(draft, window, verdict, hidden, value)


def _unseen_roots(observe: Faulty) -> Faulty:
    return lambda draft, window, *rest: None if window.tokens.shape[1] == 1 else observe(draft, window, *rest)


def _all_accepted(observe: Faulty) -> Faulty:
    def observed(draft: Draft, window: Window, verdict: Verdict, *rest: Any) -> None:
        observe(draft, window, replace(verdict, num_accepted=torch.full_like(verdict.num_accepted, 99)), *rest)

    return observed


def _nothing(method: Faulty) -> Faulty:
    return lambda *given: None


def _one_more(resume: Faulty) -> Faulty:
    return lambda draft, row, request, prompt, kept, first: resume(draft, row, request, prompt, kept, first + 1)


def _other_row(keep: Faulty) -> Faulty:
    return lambda draft, row, tokens: keep(draft, (row + 1) % ROWS, tokens)


def _miscounted(info: Faulty) -> Faulty:
    return lambda draft: {"draft_forwards": info(draft)["draft_forwards"] + 1}


FAULTS = (
    *(("draft_model", DraftModel, "observe", _own(True)), ("draft_model", DraftModel, "observe", _all_accepted)),
    *(("draft_model", DraftModel, "move", _nothing), ("draft_model", DraftModel, "resume", _one_more)),
    *(("draft_model", DraftModel, "info", _miscounted), ("draft_model", DraftModel, "keep", _other_row)),
    *(("tree(beam=2, depth=3)", Tree, "observe", fault) for fault in (lambda _: DraftModel.observe, _unseen_roots)),
    *(("eagle(head={eagle!r})", Eagle, "observe", fault) for fault in (_own(True), _unseen_roots)),
    *(("eagle(head={eagle!r})", Eagle, "keep", _other_row), ("eagle(head={eagle!r})", Eagle, "move", _nothing)),
    *(("eagle(head={eagle!r})", Eagle, "info", _miscounted), ("eagle(head={eagle!r})", Eagle, "release", _nothing)),
    ("hybrid(sources='ngram(n_min=1), draft_model')", DraftModel, "observe", _own(True)),
    *(("eagle_lite(reset=False)", EagleLite, name, _nothing) for name in ("observe", "move")),
    *(("medusa(num_heads=3)", Medusa, name, _nothing) for name in ("observe", "move")),
    *((bytes_draft, TranslatedDraft, "observe", fault) for fault in (_own(True), _unseen_roots)),
    *((bytes_draft, TranslatedDraft, name, _nothing) for name in ("move", "admit")),
)
"""A draft, and a method of it with a fault that no output shows."""

TEXTS = (
    *("draft_model", "tree(beam=2, depth=3)", "tree(widths=2-1-2)", "eagle(head={eagle!r})"),
    *("hybrid(sources='ngram(n_min=1), draft_model')", "eagle(head={eagle!r}, beam=2, depth=3)"),
    *("eagle(head={eagle!r}, leaves=2)", "hybrid(sources='ngram(n_min=1), eagle(head={eagle}, leaves=2)')"),
    *("hybrid(sources='ngram(n_min=1), eagle(head={eagle})')", "eagle_lite(reset=False)", "medusa(num_heads=3)"),
    *("hybrid(sources='ngram(n_min=1, branches=2), draft_model', merge=True, model_k=2, slots=4)",),
    *("hybrid(sources='ngram(n_min=1), tree(beam=2, depth=2)', merge=True, model_k=2, slots=4)",),
    *("hybrid(sources='ngram(n_min=1), eagle(head={eagle})', merge=True, model_k=2, slots=4)",),
    *("hybrid(sources='ngram(n_min=1), draft_model', extend=True, model_k=2, slots=4)",),
)


def build_of(text: str, tmp_path: Path) -> Build:
    """A factory of a registered draft; ``{eagle}`` is a head that is not trained."""
    head = saved_head("eagle", tiny.assembly("llama"), tmp_path) if "{eagle" in text else ""
    return registered(text.format(eagle=head))


def registered(text: str) -> Build:
    """A factory of a registered draft."""
    return lambda env: env.draft(text)


def play(build: Build, family: str = "llama", steps: int = 60, seed: int = 0) -> None:
    """Play so many events; every window is judged, every forward counted, and nothing is left when all rows ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec.model.PREFILL_CHUNK", CHUNK)
        forwards = CountedForwards(patch)
        _play(Played(build, lent_env(family), seed, forwards), forwards, steps)


def play_all(build: Build) -> None:
    """Play four times with other coins."""
    for seed in range(4):
        play(build, seed=seed)


def _play(played: Played, forwards: CountedForwards, steps: int) -> None:
    empty = held(played.draft)
    for _ in range(steps):
        played.step()
    assert played.seen > steps // 4, "too few windows: the case is not covered"
    while played.texts:
        played.end(0)
    assert held(played.draft) == empty
    arenas = [value for value in vars(played.draft).values() if isinstance(value, Arena)]
    assert not arenas or played.draft.info() == {"draft_forwards": len(forwards.widths)}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "seed"), pairs_in_turn(slow_after(1, TEXTS), range(4)))
def test_what_a_draft_proposes_follows_from_the_text_whoevers_windows_were_verified(
    text: str, seed: int, tmp_path: Path
) -> None:
    play(build_of(text, tmp_path), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "seed"), pairs_in_turn([bytes_draft, shuffled_draft], range(4)))
def test_a_draft_with_its_own_tokens_proposes_what_follows_from_the_text(build: Build, seed: int) -> None:
    play(build, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_of(2, range(4)))
def test_a_ring_that_overwrites_itself_is_continued_whole_or_not_at_all(seed: int) -> None:
    play(registered("draft_model"), "mistral", seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(("draft", "owner", "name", "fault"), FAULTS)
def test_a_draft_that_loses_count_of_its_text_is_found(
    draft: str | Build,
    owner: type[Draft],
    name: str,
    fault: Callable[[Faulty], Faulty],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    build = build_of(draft, tmp_path) if isinstance(draft, str) else draft
    with pytest.raises((AssertionError, SpecdecError, IndexError, RuntimeError)):
        play_all(build)


def first_widths(build: Build, accepted: int, roots: int, own: bool) -> int:
    """The width of the first forward for a window of K after one of which so many were accepted, and so many roots."""
    with pytest.MonkeyPatch.context() as patch:
        forwards = CountedForwards(patch)
        played = Played(build, lent_env(), forwards=forwards)
        played.begin([5, 6, 7, 8, 9, 10])
        lent = played.lent(played.texts, [K])
        window = played.told("propose", lent, counted=True)
        assert forwards.widths == [1] * K
        if not own:
            other = (window.tokens[:, 1:] + 1) % BYTES
            window = Window.chain(window.tokens[:, 0], other, torch.tensor([K]))
        played.follow(window, [list(range(accepted + 1))], own)
        for _ in range(roots):
            played.follow(Window.root(played.lent(played.texts, [0])), [[0]], False)
        played.told("propose", played.lent(played.texts, [K]), counted=True)
    return forwards.widths[K]


@pytest.mark.slow
@pytest.mark.parametrize("roots", slow_after(1, [3, 0, 1]))
@pytest.mark.parametrize("accepted", [0, 2, K - 1, K])
def test_what_was_read_as_a_proposal_and_accepted_is_not_read_again(accepted: int, roots: int) -> None:
    """The last proposal never was, and each step brings one token more; a model whose lengths are on the device reads
    as many tokens after any own window. Nothing of another draft's window was read."""
    for build, own_width in (
        (lambda env: TranslatedDraft(env, shuffled("llama")), 1 + (accepted == K)),
        (registered("draft_model"), 1 + (accepted > 0)),
    ):
        assert first_widths(build, accepted, roots, own=True) == own_width + roots
        assert first_widths(build, accepted, roots, own=False) == accepted + 1 + roots


@pytest.mark.slow
@pytest.mark.parametrize("size", [200, 320])
def test_a_model_padded_to_another_size_reads_the_last_id_it_has_and_proposes_what_both_have(
    size: int, tmp_path: Path
) -> None:
    config = families.CONFIGS["llama"]()
    config.vocab_size, config.pad_token_id, config.eos_token_id = size, None, None
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # what the target does not have would be likeliest
        model.get_output_embeddings().weight[258:] *= 30
    model.save_pretrained(tmp_path)
    catalog.byte_tokenizer().save_pretrained(tmp_path)
    played = Played(registered(f"draft_model(model={str(tmp_path)!r})"), lent_env())
    played.begin([3, 199, 200, 257, 4])
    for _ in range(2):
        window = played.told("propose", played.lent(played.texts, [2]))
        text = played.texts[0] + window.tokens[0, 1:].tolist()
        logits = model(torch.tensor([text[:-1]]).clamp(max=size - 1), use_cache=False).logits[0, -2:, :258]
        assert window.tokens[0, 1:].tolist() == logits.argmax(dim=1).tolist()
        other = torch.tensor([[257, 201]])
        played.follow(Window.chain(window.tokens[:, 0], other, torch.tensor([2])), [[0, 1, 2]], own=False)


@pytest.mark.slow
@pytest.mark.parametrize("begun", slow_after(1, [44, 3, 43, 70]))
def test_a_row_proposes_while_its_text_and_one_more_window_fit_the_draft(begun: int) -> None:
    """48 positions and windows of five slots. A row that is longer grows on in silence beside one that proposes."""
    model = families.build_model("gpt2", seed=1)
    model.config.n_positions = model.config.max_position_embeddings = 48
    model.transformer.wpe.weight.data = model.transformer.wpe.weight.data[:48]
    small = Loaded("small", model, catalog.byte_tokenizer())
    played = Played(lambda env: TranslatedDraft(env, own_copy(small)), lent_env())
    played.begin([*range(begun)])
    played.begin([7, 8])
    for length in range(begun, max(begun, 50) + 12):
        window = played.told("propose", played.lent(played.texts, [K, K]))
        assert window.width.tolist() == [K + 1 if length + K + 1 <= 48 else 1, K + 1]
        played.follow(window, [[0], [0]], own=True)
        if len(played.texts[1]) > 20:
            played.end(1)
            played.begin([7, 8])


def test_of_a_trees_window_eagle_reads_a_path_which_is_no_longer_than_was_asked(tmp_path: Path) -> None:
    """Of another draft's window all slots may be a path."""
    with pytest.MonkeyPatch.context() as patch:
        forwards = CountedForwards(patch)
        played = Played(build_of("eagle(head={eagle!r}, beam=2, depth=2)", tmp_path), lent_env(), forwards=forwards)
        played.begin([5, 6, 7])
        for own, width in ((True, 3), (False, K + 1)):
            window = played.told("propose", played.lent(played.texts, [K]), counted=True)
            assert window.tokens.shape[1] == K + 1
            forwards.widths.clear()
            played.follow(window, [[0]], own)
            assert forwards.widths == [width]


def test_of_a_trees_window_a_model_keeps_what_the_accepted_path_begins_with() -> None:
    """The model's second proposal stands beside its first, and is accepted: nothing that it has read is right."""
    played = Played(registered("draft_model"), lent_env())
    played.begin([5, 6, 7, 8])
    window = played.told("propose", played.lent(played.texts, [2]))
    played.follow(Window(window.tokens, torch.tensor([[-1, 0, 0]]), window.width), [[0, 2]], own=False)
    lent = played.lent(played.texts, [K])
    played.judge(played.told("propose", lent), lent)


def test_a_tree_reads_all_that_was_accepted_of_a_window_deeper_than_its_own() -> None:
    played = Played(registered("tree(beam=2, depth=2)"), lent_env())
    played.begin([5, 6, 7, 8])
    window = played.told("propose", played.lent(played.texts, [2]))
    other = Window.chain(window.tokens[:, 0], torch.tensor([[11, 12, 13, 14]]), torch.tensor([4]))
    played.follow(other, [[0, 1, 2, 3, 4]], own=False)
    lent = played.lent(played.texts, [K])
    played.judge(played.told("propose", lent), lent)


@pytest.mark.slow
def test_widths_are_the_children_of_each_node_of_a_depth() -> None:
    for widths, expected in (("3", [3]), ("3-2", [3, 6]), ("2-1-2", [2, 2, 4]), ("12-2", [12, 24])):
        played = Played(registered(f"tree(widths={widths})"), lent_env(k=40))
        played.begin([5, 6, 7])
        depth = played.told("propose", played.lent(played.texts, [40])).depth[0].tolist()
        assert [depth.count(level + 1) for level in range(len(expected))] == expected
        assert len(depth) == 1 + sum(expected)


@pytest.mark.parametrize("text", ["draft_model", "tree(beam=2, depth=3)", "eagle(head={eagle!r})"])
def test_a_draft_that_rests_reads_nothing_and_then_all(text: str, tmp_path: Path) -> None:
    """Requests come, grow and end unread. One that is there when it is asked again is read then, prompt and all."""
    with pytest.MonkeyPatch.context() as patch:
        forwards, played = CountedForwards(patch), Played(build_of(text, tmp_path), lent_env())
        played.begin([5, 6, 7])
        for _ in range(RESTS):
            played.verify("nobody")
        forwards.counted = True  # from here on in every call, those of prefill too
        for _ in range(3):
            played.begin([8, 9, 10])
            played.verify("nobody")
            played.draft.release(1, tuple(played.texts.pop()))
            played.verify("nobody")
        assert forwards.widths == []
        played.begin([11, 12, 13, 14])
        lent = played.lent(played.texts, [K, K])
        played.judge(played.told("propose", lent), lent)
        assert played.seen == 2


@pytest.mark.slow
@pytest.mark.parametrize("asked", [[0] * 99, [2, 0] * 50])
def test_eagles_row_that_ended_leaves_no_prompt_and_no_step_behind(
    asked: list[int], tmp_path: Path, assemble: Make
) -> None:
    """Steps without proposals are read when the head is asked again; those at a request's end are never read."""
    build = assemble(max_length=160, backend="reference")
    engine = build.engine(f"eagle(head={saved_head('eagle', build, tmp_path)!r})", k=2)
    assert engine.draft is not None
    assert engine.draft.info() == {"draft_forwards": 0}
    ask(engine, asked)
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=65 if not any(asked) else 12))])
    assert held(engine.draft) == 0
    if not any(asked):
        assert engine.draft.info() == {"draft_forwards": 0}
    assert engine.draft.info() == {"draft_forwards": engine.stats.counts["draft_forwards"]}


def _adjusted(sampled: bool, **parts: Any) -> Any:
    rows = context(Reference(), torch.tensor([11, 12]))
    params = replace(
        rows.params, temperature=rows.params.temperature * sampled, greedy=not sampled, adjustments=_parts(**parts)
    )
    return replace(rows, params=params, coupled=not sampled)


def _parts(**parts: Any) -> Adjustments:
    return Adjustments(torch.zeros(2, 8).long(), torch.ones(2).long(), **parts)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("ids", [None, [3, 0, 2]])
def test_a_tree_is_grown_by_biased_and_penalised_logits(ids: list[int] | None, sampled: bool) -> None:
    """The bias is of the whole vocabulary; each token on a node's path is penalised there and nowhere else."""
    columns = [0, 1, 2, 3] if ids is None else ids
    given = None if ids is None else torch.tensor(ids)
    logits = torch.randn(2, 2, len(columns), generator=torch.Generator().manual_seed(6))
    bias = torch.tensor([[0.0, 1.0, -2.0, 3.0], [4.0, 0.0, 0.5, -1.0]])
    found = wanted(_adjusted(sampled, bias=bias), logits, 1, None, given, 4)
    torch.testing.assert_close(found, (logits + bias[:, None, columns]).log_softmax(dim=-1))
    one = torch.ones(2)
    penalties = Penalties(
        seen=torch.zeros(2, 4, dtype=torch.bool),
        emitted=torch.zeros(2, 4, dtype=torch.int32),
        repetition=one,
        frequency=one * 0.5,
        presence=one * 0.25,
    )
    for paths in (None, torch.tensor([[[3], [0]], [[2], [3]]])):
        less = torch.zeros(2, 2, 4)
        if paths is not None:
            less.scatter_(2, paths, 0.75)
        found = wanted(_adjusted(sampled, penalties=penalties), logits, 1, paths, given, 4)
        torch.testing.assert_close(found, (logits - less[:, :, columns]).log_softmax(dim=-1))
