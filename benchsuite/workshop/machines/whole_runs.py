"""Whole runs, drawn at random: any plugins that fit each other, any requests, and all that must hold of a run at once.

A run is a draft, a policy and a controller with options in their ranges, over a tiny model, on a backend of this
machine. Its requests come while others run, are cancelled, and end at tokens, texts and budgets that lie in their own
outputs. What must hold: the policy's contract, the counters of ``benchsuite.workshop.machines.run_book``, the same
outputs in any order and batch, proposals that follow from the text, and a second run of the same engine that repeats
the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st

from benchsuite.conformance.exact.exact_runs import adjusted_logits
from benchsuite.conformance.models import tiny
from benchsuite.judge.ties import Judge
from benchsuite.workshop.machines.run_book import Book, Proposals
from specdec import Engine, Request, SamplingParams, model, processors, sampling
from specdec.assembly import Assembly
from specdec.ledger import adjusts, output_paths, stacked
from specdec.sampling import Purpose

CHUNK, LONGEST = 12, 36
"""Prompt tokens of a forward of a prefill, and tokens of a whole text: some outputs are cut by the second."""

LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK, 2 * CHUNK + 2)
"""Of prompts. All tokens but the last are prefilled, so that these are also chunks without one, whole, and one more."""

of = st.sampled_from
Options = Mapping[str, st.SearchStrategy[Any]]

DRAFTS: dict[str, Options] = {
    "garbage": {},
    "ngram": {"n_max": of((2, 4)), "n_min": of((1, 2)), "branches": of((1, 2, 3))},
    "suffix": {
        "factor": of((0.5, 2.0, 4.0)),
        "least": of((0.0, 0.3, 1.0)),
        "min_match": of((1, 2)),
        "earlier": st.booleans(),
        "branches": of((1, 2, 3)),
    },
    "oracle": {"rate": of((0.0, 0.5, 0.8, 1.0)), "cost": of(("", "garbage", "draft_model"))},
    "draft_model": {"layers": st.just(1)},
    "tree": {
        "layers": st.just(1),
        "beam": of((1, 2, 3)),
        "depth": of((1, 2, 3)),
        "least": of((0.0, 0.01)),
        "widths": of(("", "2-1", "2-2")),
    },
    "medusa": {
        "num_heads": of((1, 3)),
        "head_init": of(("tie", "copy", "random")),
        "temperature": of((0.5, 2.0)),
        "top_p": of((0.5, 1.0)),
        "beam": of((1, 2)),
        "least": of((0.0, 0.01)),
    },
    "eagle": {"alpha": of((0.0, 0.5, 1.0)), "max_draft": of((0, 1, 3)), "reset": st.booleans()},
    "hybrid": {
        "sources": of(
            ("suffix, ngram", "ngram(n_min=1), draft_model", "suffix(min_match=1), garbage", "ngram, medusa")
        ),
        "model_k": of((1, 2, 4)),
        "extend": st.booleans(),
        "merge": st.booleans(),
        "slots": of((1, 3, 6)),
    },
}
POLICIES: dict[str, Options] = {
    "match": {},
    "longest_prefix": {},
    "rejection": {},
    "block": {},
    "tree_rejection": {},
    "conf_threshold": {"tau": of((0.1, 0.3, 1.0))},
    "topk_agree": {"k": of((1, 3))},
    "typical": {"p": of((0.0, 0.5)), "epsilon": of((0.1, 0.3)), "delta": of((0.09, 0.5))},
    "tree_agree": {"m": of((1, 2)), "k": of((1, 3))},
}
CONTROLLERS: dict[str, Options] = {
    "fixed": {"k": of((0, 1, 2, 4, 7))},
    "adaptive": {
        "start": of((1, 4)),
        "window": of((1, 2)),
        "step": of((1, 2)),
        "target": of((0.0, 0.6)),
        "minimum": of((1, 2)),
        "maximum": of((2, 6)),
    },
    "goodput": {"maximum": of((0, 1, 5)), "probe": of((1, 4))},
    "budget": {"maximum": of((0, 1, 5)), "probe": of((1, 4)), "price": of((0.0, 0.1, 1.0))},
}

NOT_DRAWN = {
    "custom_class": "it is the class that its path names: the kit has two",
    **dict.fromkeys(("arctic_suffix", "flashspec_drafter", "rest"), "its package is not here: the kit has stand-ins"),
    "transformers_candidates": "it is tested with generators of transformers, which it only asks",
    "draft_model.model": "a model's name or folder; its first layers draft",
    "draft_model.vocabulary": "of a model of its own",
    "tree.model": "a model's name or folder; its first layers draft",
    **dict.fromkeys(("dflash", "dspark", "eagle3", "mtp", "peagle"), "of a published head: recordings have those"),
    **{
        f"eagle.{option}": "of a trained head, which is a file"
        for option in ("head", "beam", "depth", "least", "leaves", "weights")
    },
    **{
        f"oracle.{option}": "it must fit K, which is drawn apart: a rate is the same coins"
        for option in ("length", "rates", "histogram")
    },
    **{f"medusa.{option}": "of published heads, which are files" for option in ("head", "final", "pickle")},
}
"""Drafts and options that no run has, and why."""

FAMILIES = ("llama", "gemma3", "gpt2")
ROUNDING = ("draft_model", "tree", "medusa", "eagle", "hybrid")
"""Drafts that choose by sums, which batches of other sizes round otherwise."""


def backends() -> list[str]:
    """The backends that run on this machine's CPU without an interpreter."""
    found = [name for name in ("reference", "cpu") if tiny.registry().backend(name).missing() is None]
    return [*found, "auto"]


@dataclass(frozen=True)
class DrawnRequest:
    """A request as it is drawn; ``end``, ``bad`` and ``stop`` are places in what plain decoding emits without them.

    ``comes`` is the step before which it is submitted, ``leaves`` the number of steps after that before which it is
    cancelled, None for never.
    """

    prompt: tuple[int, ...]
    params: Mapping[str, Any]
    emitted: int
    bad: int | None
    end: int | None
    stop: int | None
    comes: int
    leaves: int | None

    def request(self, number: int, build: Assembly) -> Request:
        """The request, which forbids, or ends at, tokens that plain decoding would emit."""
        request = Request(number, self.prompt, SamplingParams(**self.params), min(self.emitted, len(self.prompt)))
        if self.bad is not None and len(pair := build.plain(request)[self.bad : self.bad + 2]) == 2:
            request = replace(request, params=replace(request.params, bad_words=(pair,)))
        if self.end is not None:
            output = build.plain(request)
            ends = (output[min(self.end, len(output) - 1)],)
            least = min(self.params.get("min_new_tokens", 0), request.params.max_new_tokens)
            request = replace(request, params=replace(request.params, eos=ends, min_new_tokens=least))
        if self.stop is not None:
            text = build.tokenizer.decode(build.plain(request)[self.stop : self.stop + 2])
            if text and "\ufffd" not in text:  # of which a part of a character would be another
                request = replace(request, params=replace(request.params, stop=(text,)))
        return request


@dataclass(frozen=True)
class Run:
    """Everything that decides a run; ``other_rows`` is the batch in which the same requests run in another order."""

    family: str
    backend: str
    draft: str
    policy: str
    controller: str
    rows: int
    other_rows: int
    asked: tuple[DrawnRequest, ...]


@st.composite
def named_plugin(draw: st.DrawFn, table: Mapping[str, Options]) -> str:
    """A plugin of a table, with some of its options."""
    name = draw(of(sorted(table)))
    options = draw(st.fixed_dictionaries({}, optional=dict(table[name])))
    return f"{name}({', '.join(f'{option}={value!r}' for option, value in options.items())})"


TOKENS = st.integers(0, 5)
PARAMS = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(1, 12)},
    optional={
        "temperature": of((0.7, 1.0, 1.5)),
        "top_k": of((1, 5, 40)),
        "top_p": of((0.5, 0.9)),
        "min_p": of((0.05, 0.3)),
        "seed": st.integers(0, 3),
        "repetition_penalty": of((0.61, 1.37)),
        "frequency_penalty": of((-0.43, 1.13)),
        "presence_penalty": of((-0.83, 0.71)),
        "logit_bias": st.dictionaries(TOKENS, of((-1.27, 2.19)), min_size=1, max_size=2),
        "logprobs": of((0, 2)),
    },
)
PROMPTS = of(LENGTHS).flatmap(lambda length: st.lists(TOKENS, min_size=length, max_size=length).map(tuple))
PLACES = st.none() | st.integers(0, 8)
ASKED = st.builds(
    DrawnRequest,
    prompt=PROMPTS,
    params=PARAMS,
    emitted=of((0, 0, 1, 3)),
    bad=PLACES,
    end=PLACES,
    stop=PLACES,
    comes=of((0, 0, 0, 1, 4)),
    leaves=st.none() | st.none() | of((0, 1, 3)),
)


def combines(draft: str) -> bool:
    """Whether the options of a draft fit each other: a hybrid extends or merges, if it has a source that can."""
    extends = "extend=True" in draft
    return not (extends and ("merge=True" in draft or ("sources=" in draft and "ngram" not in draft)))


@st.composite
def whole_runs(draw: st.DrawFn) -> Run:
    """Draw a run whose plugins fit each other."""
    draft = draw(named_plugin(DRAFTS).filter(combines))
    branching = any(part in draft for part in ("tree(", "branches=2", "branches=3", "beam=2", "beam=3", "merge=True"))
    fitting = {name: options for name, options in POLICIES.items() if tiny.policy_named(name).trees or not branching}
    return Run(
        draw(of(FAMILIES)),
        draw(of(backends())),
        draft,
        draw(named_plugin(fitting)),
        draw(named_plugin(CONTROLLERS)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        tuple(draw(st.lists(ASKED, min_size=1, max_size=5))),
    )


@contextmanager
def short_chunks() -> Iterator[None]:
    """Prefill in chunks of ``CHUNK`` tokens."""
    with patch.object(model, "PREFILL_CHUNK", CHUNK):
        yield


@cache
def judged_target(family: str, backend: str) -> tuple[Assembly, Judge]:
    """A target of whole runs, which remembers what plain decoding emitted; ``cache_clear`` forgets all of them."""
    build = tiny.assembly(family, max_rows=4, max_length=LONGEST, backend=backend)
    return build, Judge(build.target, range(40))


def check(run: Run) -> None:
    """Run it, run it again, run it in another order, and raise AssertionError where anything differs that must not."""
    with short_chunks(), torch.inference_mode():
        build, judge = judged_target(run.family, run.backend)
        work = [asked.request(number, build) for number, asked in enumerate(run.asked)]
        engine = build.engine(run.draft, run.policy, run.controller, max_rows=run.rows)
        first = _driven(engine, work, run.asked)
        _contract(engine, first, build, judge)
        _repeated(engine, first, work, run.asked)
        # By the first run's book: in the second run of an engine that reads the clock, others may have been cancelled.
        ended = {number for number, out in first.outputs.items() if out.ended}
        stayed = [request for request in reversed(work) if request.id in ended]
        if stayed:
            other = build.engine(run.draft, run.policy, run.controller, max_rows=run.other_rows)
            second = _driven(other, stayed, [replace(run.asked[r.id], comes=0, leaves=None) for r in stayed])
            _same_outputs(other, first, second, judge)
            if _follows_from_the_text(other, run.draft):
                _same_proposals(first.proposals, second.proposals, run.draft.startswith(ROUNDING))


def _driven(engine: Engine, work: Sequence[Request], asked: Sequence[DrawnRequest]) -> Book:
    """The book of a run in which requests come and leave as they were drawn."""
    coming = [(request, one.comes) for request, one in zip(work, asked, strict=True)]
    leaving = [(r.id, one.comes + one.leaves) for r, one in zip(work, asked, strict=True) if one.leaves is not None]
    with Book(engine, CHUNK).kept() as book:
        for step in range(200):
            engine.submit([request for request, at in coming if at == step])
            book.cancel([number for number, at in leaving if at == step])
            book.check()
            if engine.rows.live:
                engine.step()
                book.check()
            elif step > max(at for _, at in coming):
                break
        book.check_end()
    return book


def _contract(engine: Engine, book: Book, build: Assembly, judge: Judge) -> None:
    """An exact row has plain decoding's tokens, whole or up to where it was cancelled, and plain's are the model's."""
    for number, out in book.outputs.items():
        params = out.request.params
        if engine.policy.contract(params) == "exact":
            plain = build.plain(out.request)
            expected = plain if out.ended else plain[: len(out.tokens)]
            _equal(judge, out.request, expected, tuple(out.tokens), "plain decoding")
            if params.temperature == 0:
                _likeliest(judge, out.request, expected)
        done = engine.finished.get(number)
        if done and done.logprobs:
            law = judge.after(out.request.prompt, done.tokens).log_softmax(dim=-1)
            for index, (token, told) in enumerate(zip(done.tokens, done.logprobs, strict=True)):
                far = abs(told.raw - float(law[index, token]))
                assert far < 1e-2, f"request {number}: the log-probability of token {index} is off by {far:.2f}"


def _likeliest(judge: Judge, request: Request, output: Sequence[int]) -> None:
    """Every token of a greedy output is the likeliest of the unmodified model, after processors written again."""
    if not output:
        return
    logits = judge.after(request.prompt, output).double()
    start = len(request.prompt) - request.emitted
    # Output that was decoded earlier counts as output, and not towards the least length.
    least = request.params.min_new_tokens + request.emitted
    params = replace(request.params, min_new_tokens=0, max_new_tokens=LONGEST)
    whole = replace(request, prompt=request.prompt[:start], params=replace(params, min_new_tokens=least), emitted=0)
    for index, token in enumerate(output):
        scores = logits[index]
        if adjusts(request.params):
            before = (*request.prompt[start:], *output[:index])
            scores = torch.tensor(adjusted_logits(scores.exp().tolist(), whole, before))
        short = float(scores.max() - scores[token])
        assert short <= 4 * judge.bound, f"request {request.id}: token {index}, {token}, is {short:.3f} from the best"


def _equal(judge: Judge, request: Request, expected: tuple[int, ...], got: tuple[int, ...], by: str) -> None:
    """Two outputs are equal, up to where rounding may choose between two tokens."""
    if expected == got:
        return
    index = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), -1)
    told = f"request {request.id} gave {got}, {by} {expected}"
    assert index >= 0, told
    assert _near(judge, request, expected[:index], expected[index], got[index]), told


def _near(judge: Judge, request: Request, before: tuple[int, ...], one: int, other: int) -> bool:
    """Whether the unmodified model draws two tokens with scores as close as it is to itself."""
    asked = request.after(before)
    logits = judge.logits(asked.prompt)
    params = stacked([asked], len(logits), logits.device)
    scores = processors.process(logits[None, None], params, output_paths([0], logits.device))
    if not params.greedy:
        position = torch.tensor([[len(asked.prompt)]])
        scores = scores + sampling.gumbel(sampling.key(params.stream, position, Purpose.TARGET), len(logits))
    return bool((scores[0, 0, one] - scores[0, 0, other]).abs() <= 4 * judge.bound)


def _repeated(engine: Engine, first: Book, work: Sequence[Request], asked: Sequence[DrawnRequest]) -> None:
    """After draft and controller forgot, the engine takes the same steps; one that reads the clock ends soundly."""
    assert engine.draft
    engine.draft.forget()
    engine.controller.forget()
    again = _driven(engine, work, asked)
    if engine.controller.deterministic:
        for number, out in first.outputs.items():
            assert again.outputs[number].tokens == out.tokens, f"a second run of request {number} emits something else"
        assert again.steps == first.steps, "a second run of the same engine takes other steps"
        assert again.proposals == first.proposals, "a second run of the same engine proposes something else"


def _same_outputs(engine: Engine, first: Book, second: Book, judge: Judge) -> None:
    """Exact rows have the same outputs in another order and batch."""
    for number, out in second.outputs.items():
        if engine.policy.contract(out.request.params) == "exact":
            pair = tuple(first.outputs[number].tokens), tuple(out.tokens)
            _equal(judge, out.request, *pair, "in another order and batch")


def _follows_from_the_text(engine: Engine, draft: str) -> bool:
    """Whether a draft's proposals are those for the text alone: EAGLE that resets knows which step led to it."""
    assert engine.draft
    return not engine.draft.learns and not ("eagle" in draft and "reset=False" not in draft)


def _same_proposals(first: Proposals, second: Proposals, rounds: bool) -> None:
    """The same text has the same proposals beside other rows; of a draft that rounds one window may differ."""
    both = first.keys() & second.keys()
    wrong = [key for key in both if first[key] != second[key]]
    assert len(wrong) <= (len(both) > 4 if rounds else 0), (
        f"{len(wrong)} of {len(both)} proposals are others beside other rows: "
        f"{[(key, first[key], second[key]) for key in wrong[:2]]}"
    )
