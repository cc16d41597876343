"""What servers say of their own speculation, in our words and back in theirs.

Pages of counters: vLLM, llama.cpp, TGI; a page of gauges: SGLang. Bodies of answers: vLLM's ``metrics``, SGLang's
``meta_info``, llama.cpp's ``timings`` (which mlx-vlm writes too, with ``draft_rounds``). SGLang's ``/server_info``.
Every name is in ``NAMES``, and in the glossary of docs/metrics.md.

Sources: vllm-project/vllm, vllm/v1/spec_decode/metrics.py, docs/features/speculative_decoding/acceptance_metrics.md;
sgl-project/sglang, managers/tokenizer_manager.py, managers/scheduler_metrics_mixin.py; ggml-org/llama.cpp,
tools/server/README.md, pull requests 12603 and 26389; Blaizzy/mlx-vlm, pull requests 1788 and 2324;
huggingface/text-generation-inference, backends/v3/src/backend.rs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from specdec.draft_counts import DraftCounts
from specdec.errors import unknown
from specdec_plugins.endpoints.exposition import PageError, PageSample, read_samples, write_samples

COUNTS = ("drafts", "proposed", "accepted", "emitted")
"""The counts of a ``Speculation`` that are single numbers."""

LISTS = ("histogram", "proposed_by_step", "accepted_by_step")
"""Those that are lists in a body."""

NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm page": {
            "drafts": "vllm:spec_decode_num_drafts_total",
            "proposed": "vllm:spec_decode_num_draft_tokens_total",
            "accepted": "vllm:spec_decode_num_accepted_tokens_total",
            "accepted_by_position": "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "emitted": "vllm:generation_tokens_total",
        },
        "llama.cpp page": {
            "drafts": "llamacpp:spec_decode_num_drafts_total",
            "proposed": "llamacpp:spec_decode_num_draft_tokens_total",
            "accepted": "llamacpp:spec_decode_num_accepted_tokens_total",
            "accepted_by_position": "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
            "emitted": "llamacpp:tokens_predicted_total",
            "decode_s": "llamacpp:tokens_predicted_seconds_total",
        },
        "sglang page": {
            "said_length": "sglang:spec_accept_length",
            "said_rate": "sglang:spec_accept_rate",
            "emitted": "sglang:generation_tokens_total",
        },
        "tgi page": {"accepted": "tgi_request_skipped_tokens_sum", "tgi_steps": "tgi_request_skipped_tokens_count"},
        "vllm body": {
            "drafts": "num_spec_steps",
            "proposed": "num_draft_tokens",
            "accepted": "num_accepted_draft_tokens",
            "histogram": "acceptance_histogram",
            "proposed_by_step": "per_step_drafted",
            "accepted_by_step": "per_step_accepted",
            "said_length": "mean_acceptance_length",
            "said_rate": "draft_acceptance_rate",
        },
        "sglang body": {
            "drafts": "spec_verify_ct",
            "proposed": "spec_draft_token_num",
            "accepted": "spec_accept_token_num",
            "histogram": "spec_accept_histogram",
            "emitted": "completion_tokens",
            "said_length": "spec_accept_length",
            "said_rate": "spec_accept_rate",
        },
        "llama.cpp body": {
            "drafts": "draft_rounds",
            "proposed": "draft_n",
            "accepted": "draft_n_accepted",
            "emitted": "predicted_n",
            "decode_s": "predicted_ms",
        },
        "sglang info": {"said_length": "avg_spec_accept_length"},
    }
)
"""By source (server, and where it says it): our word for a figure, and the server's name."""

LATER = MappingProxyType(
    {
        "spec_num_proposed_drafts": "spec_draft_token_num",
        "spec_proposed_drafts": "spec_draft_token_num",
        "spec_num_correct_drafts": "spec_accept_token_num",
        "spec_accepted_drafts": "spec_accept_token_num",
        "spec_correct_drafts_histogram": "spec_accept_histogram",
    }
)
"""Names that later versions of SGLang give to figures of earlier ones; several may stand in one body."""

BODIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vllm body": ("metrics", "speculative_decoding"),
        "sglang body": ("meta_info",),
        "llama.cpp body": ("timings",),
        "sglang info": ("internal_states",),
    }
)
"""The keys under which a body has its figures; those of SGLang's info stand in a list, one for each scheduler."""

FIRST_ENGINE = (
    "vllm:spec_decode_num_emitted_tokens_total",
    "vllm:spec_decode_draft_acceptance_rate",
    "vllm:spec_decode_efficiency",
)
"""Names that only vLLM's first engine (before 0.8 or so) has; it counted no drafts."""

KNOWN_BESIDE = ("num_spec_tokens", "draft_kind")
"""Names of bodies that hold no figure of ours: vLLM's setting K; mlx-vlm's kind of draft."""


@dataclass(frozen=True)
class Speculation:
    """What a server says of its own speculation, in our words; None or () is a figure that it does not say.

    ``source``: a key of ``NAMES``; ``scope``: what is counted: ``request``, ``since start``, ``between`` two pages, or
    the ``last interval`` of the server's own log. ``drafts``: steps of a row that proposed something; ``proposed``,
    ``accepted``: draft tokens; ``accepted_by_position``: accepted at depth 1, 2, …; ``histogram``: steps that accepted
    0, 1, … proposals; ``emitted``: generated tokens, on pages those of prefills too; ``decode_s``: seconds of
    generating. ``said_rate``, ``said_length``: the server's own acceptance rate (0 to 1) and mean acceptance length.
    ``engines``: each engine's own counts, by its labels; ``began``: when the counters were made, in seconds since 1970.
    ``notes``: what was there and is not among these figures, and why. ``proposed_by_step``, ``accepted_by_step``: of
    each step that proposed, in order.
    """

    source: str
    scope: str
    drafts: int | None = None
    proposed: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] = ()
    histogram: tuple[int, ...] = ()
    emitted: int | None = None
    decode_s: float | None = None
    said_rate: float | None = None
    said_length: float | None = None
    began: float | None = None
    engines: Mapping[str, Speculation] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    proposed_by_step: tuple[int, ...] = ()
    accepted_by_step: tuple[int, ...] = ()

    @property
    def speculates(self) -> bool:
        """Whether the server says that anything was proposed or accepted."""
        return bool(self.drafts or self.proposed or self.accepted or self.said_length)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / proposed, or what the server says it is, if it does not say the two."""
        if self.proposed is not None and self.accepted is not None:
            return self.accepted / self.proposed if self.proposed else None
        return self.said_rate

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts, or what the server says it is, if it does not say the two."""
        if self.drafts is not None and self.accepted is not None:
            return 1 + self.accepted / self.drafts if self.drafts else None
        return self.said_length

    @property
    def counts(self) -> DraftCounts:
        """The counts as those of any engine: of its steps where they are known, else with the depths of a histogram."""
        if self.proposed_by_step:
            return DraftCounts.of_steps(zip(self.proposed_by_step, self.accepted_by_step, strict=True))
        kept = self.accepted_by_position or DraftCounts.of_histogram(self.histogram).accepted_by_position
        return DraftCounts(self.drafts, self.proposed, self.accepted, kept)

    def figures(self) -> dict[str, Any]:
        """Return the figures by the names that rows of results have (docs/metrics.md); unknown ones are None."""
        return {
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_histogram": {str(j): n for j, n in enumerate(self.histogram) if n} or None,
            "counters.num_drafts": self.drafts,
            "counters.num_draft_tokens": self.proposed,
            "counters.num_accepted_tokens": self.accepted,
            "counters.num_accepted_tokens_per_pos": list(self.accepted_by_position) or None,
        }


def read_page(text: str) -> Speculation:
    """Return what a server's ``/metrics`` says of speculation since the server began.

    A page without speculation gives a ``Speculation`` whose ``speculates`` is False, with a note. Raises PageError for
    what is no page of these servers, for half a page, and for counters that no server could have counted.
    Example: ``read_page('sglang:spec_accept_length{} 2.9\\n').mean_acceptance_length`` is 2.9.
    """
    prefixes = [_prefix(source) for source in PAGES]
    samples = read_samples(text, (*prefixes, *(prefix.replace(":", "_") for prefix in prefixes)))
    for source, read in PAGES.items():
        prefix = _prefix(source)
        ours = [sample for sample in samples if sample.name.startswith(prefix)]
        if ours:
            return read(source, ours)
        # Some exporters may write no colon in a name; SGLang's gRPC workers do not.
        bare = [sample for sample in samples if sample.name.startswith(prefix.replace(":", "_"))]
        if bare and ":" in prefix:
            return read(source, [replace(one, name=one.name.replace("_", ":", 1)) for one in bare])
    found = sorted({sample.name for sample in samples})[:5]
    raise PageError(
        f"the page is none of {', '.join(sorted(PAGES))}: it has {', '.join(found) or 'no sample at all'}. "
        "Was another program's port named?"
    )


def read_body(body: Mapping[str, Any]) -> Speculation | None:
    """Return what an answer's body says of its own request; None if it says nothing.

    Takes the last JSON object of a streamed answer too (``Reply.body``). Raises PageError for figures that contradict
    each other. Example: ``read_body({"timings": {"draft_n": 8, "draft_n_accepted": 6}}).acceptance_rate`` is 0.75.
    """
    metrics = body.get("metrics")
    if isinstance(metrics, Mapping) and isinstance(metrics.get("speculative_decoding"), Mapping):
        return _of_body("vllm body", metrics["speculative_decoding"], "", KNOWN_BESIDE)
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, Sequence) and choices else None
    for place in (body, first):
        meta = place.get("meta_info") if isinstance(place, Mapping) else None
        if isinstance(meta, Mapping) and any(name.startswith("spec_") for name in meta):
            return _of_body("sglang body", _in_first_names(meta), "spec_")
    timings = body.get("timings")
    if isinstance(timings, Mapping) and any(name.startswith("draft_") for name in timings):
        return _of_body("llama.cpp body", timings, "draft_", KNOWN_BESIDE)
    return None


def read_server_info(info: Mapping[str, Any]) -> Speculation:
    """Return what SGLang's ``/server_info`` (once ``/get_server_info``) says since the server began.

    It is one mean over all steps so far, of each scheduler, without a count that it could be weighted with.
    """
    states = info.get("internal_states")
    if not isinstance(states, Sequence) or not all(isinstance(state, Mapping) for state in states):
        raise PageError(
            f"expected SGLang's server info, with internal_states; got the keys {', '.join(sorted(info)[:6]) or 'none'}"
        )
    name = NAMES["sglang info"]["said_length"]
    engines = {
        str(number): Speculation(
            "sglang info", "since start", said_length=_gauge(PageSample(name, str(state[name])), f"scheduler {number}")
        )
        for number, state in enumerate(states)
        if state.get(name) is not None
    }
    found = [*engines.values()]
    notes = () if found else (f"no {name}: the server has not speculated yet, or never does",)
    if len(found) > 1:
        notes = ("several schedulers: their mean lengths have no weights to be averaged with",)
    said = found[0].said_length if len(found) == 1 else None
    return Speculation("sglang info", "since start", said_length=said, engines=engines, notes=notes)


def between(before: Speculation, after: Speculation) -> Speculation:
    """Return what was counted between two readings of one source.

    Raises PageError, by the counter's name, if one fell or was made anew, as after a restart, in any engine. A mean
    without counts (SGLang's) is kept only if nothing had been counted before: no difference of two means is a mean.
    """
    wrong = {"request", "between"} & {before.scope, after.scope}
    if before.source != after.source or wrong:
        raise PageError(
            f"expected two readings of one page; got {before.source} ({before.scope}) and "
            f"{after.source} ({after.scope})"
        )
    lost = set(before.engines) - set(after.engines)
    if lost:
        raise PageError(f"{after.source}: engine {', '.join(sorted(lost))} is gone from the second page; read it again")
    engines = {
        name: _since(before.engines[name], one, name) if name in before.engines else one
        for name, one in after.engines.items()
    }
    whole = _since(before, after, "")
    return replace(whole, scope="between", engines={name: replace(e, scope="between") for name, e in engines.items()})


def added(parts: Iterable[Speculation]) -> Speculation | None:
    """Return several requests as one: the sums of their counts; None of none. A figure that one lacks is left out."""
    every = [*parts]
    if not every:
        return None
    sources = {part.source for part in every}
    if len(sources) > 1:
        raise PageError(f"expected the words of one server; got {', '.join(sorted(sources))}")
    return Speculation(
        every[0].source,
        every[0].scope,
        **{name: _sum(getattr(part, name) for part in every) for name in (*COUNTS, "decode_s")},
        accepted_by_position=_columns([part.accepted_by_position for part in every]),
        histogram=_columns([part.histogram for part in every]),
        proposed_by_step=_one_by_one([part.proposed_by_step for part in every]),
        accepted_by_step=_one_by_one([part.accepted_by_step for part in every]),
        notes=tuple(dict.fromkeys(note for part in every for note in part.notes)),
    )


def write_page(said: Speculation, source: str | None = None) -> str:
    """Return the page on which a server would say this; ``source`` defaults to where it was read.

    Raises SpecdecError for a source that has no page. Figures without a name there are left out: ``unsaid`` names them.
    """
    source = source or said.source
    if source not in PAGES:
        raise unknown("page", source, PAGES)
    names, samples = NAMES[source], list[PageSample]()
    for word, name in names.items():
        # What no engine says for itself, the whole says without labels.
        apart = [pair for pair in said.engines.items() if getattr(pair[1], word, None) is not None]
        for labels, engine in apart or [("", said)]:
            shown = _read_labels(labels)
            if word == "accepted_by_position":
                samples += [
                    PageSample(name, str(count), {**shown, "position": str(position)})
                    for position, count in enumerate(engine.accepted_by_position)
                ]
            elif (value := _told(engine, word)) is not None:
                samples.append(PageSample(name, repr(value), shown))
                if word == "drafts" and engine.began is not None:
                    samples.append(PageSample(name.replace("_total", "_created"), repr(engine.began), shown))
    kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in names.values()}
    return write_samples(samples, kinds)


def write_body(said: Speculation, source: str | None = None) -> dict[str, Any]:
    """Return the part of an answer's body in which a server would say this; as ``write_page``."""
    source = source or said.source
    if source not in BODIES:
        raise unknown("body", source, BODIES)
    found: dict[str, Any] = {}
    for word, name in NAMES[source].items():
        if word in LISTS:
            if getattr(said, word):
                found[name] = list(getattr(said, word))
            continue
        value = _told(said, word)
        if word == "said_length" and (theirs := _with_prefill(said, source)) is not None:
            value = theirs
        if value is not None:
            found[name] = value * 1e3 if name.endswith("_ms") else value
    if source == "sglang info":
        return {"internal_states": [found]}
    for key in reversed(BODIES[source]):
        found = {key: found}
    return found


def unsaid(said: Speculation, source: str) -> list[str]:
    """Return our words for the figures that ``said`` has and a source has no name for."""
    if source not in NAMES:
        raise unknown("source", source, NAMES)
    words = (*COUNTS, "accepted_by_position", *LISTS, "decode_s", "said_rate", "said_length")
    return [word for word in words if getattr(said, word) not in (None, ()) and word not in NAMES[source]]


def _prefix(source: str) -> str:
    """What all names of a page begin with."""
    name = next(iter(NAMES[source].values()))
    return name.partition(":")[0] + ":" if ":" in name else name.partition("_")[0] + "_"


def _counters(source: str, samples: Sequence[PageSample]) -> Speculation:
    """A page of counters, whose engines are told apart by their labels and summed."""
    names = {name: word for word, name in NAMES[source].items()}
    found = defaultdict[str, dict[str, Any]](dict)
    depths = defaultdict[str, dict[int, int]](dict)
    notes, first = dict[str, None](), False
    for sample in samples:
        # prometheus_client adds _total to counters; other writers, and older pages, do not.
        word = names.get(sample.name) or names.get(f"{sample.name}_total")
        labels = {name: value for name, value in sample.labels.items() if name != "position"}
        engine = _write_labels(labels)
        if word == "accepted_by_position":
            depths[engine][_position(sample)] = sample.count()
        elif word == "decode_s":
            found[engine][word] = sample.number()
        elif word:
            found[engine][word] = found[engine].get(word, 0) + sample.count()
        elif sample.name == _created(source):
            found[engine]["began"] = sample.number()
        elif sample.name in FIRST_ENGINE:
            first = True
        elif "spec_decode" in sample.name and not sample.name.endswith("_created"):
            notes[f"{sample.name} is a name that is not known here; it was not read"] = None
    engines = {}
    for engine, words in found.items():
        counts = [depths[engine].get(depth) for depth in range(max(depths[engine], default=-1) + 1)]
        _whole(source, engine, words, counts, first)
        by_position = tuple(count for count in counts if count is not None)
        engines[engine] = _checked(Speculation(source, "since start", **words, accepted_by_position=by_position))
    if first:
        notes["vLLM's first engine: it counts no drafts, so there is no mean acceptance length"] = None
    speaking = {name: one for name, one in engines.items() if one.proposed is not None}
    return _together(source, speaking or engines, tuple(notes))


def _created(source: str) -> str:
    """The name under which a page says when its count of drafts was made."""
    return NAMES[source]["drafts"].replace("_total", "_created")


def _whole(source: str, engine: str, words: Mapping[str, Any], counts: Sequence[int | None], first: bool) -> None:
    """Refuse half a page: the three counters of an engine are made together, and so are all positions."""
    three = ("proposed", "accepted") if first else ("drafts", "proposed", "accepted")
    missing = [NAMES[source][word] for word in three if word not in words]
    where = f" of engine {engine}" if engine else ""
    if 0 < len(missing) < len(three) or (missing and counts):
        raise PageError(
            f"the page has no {', '.join(missing)}{where}, but its other counts: half a page. Fetch it again"
        )
    if None in counts:
        raise PageError(
            f"{NAMES[source]['accepted_by_position']}{where} lacks position {counts.index(None)}: half a page. "
            "Fetch it again"
        )


def _tgi(source: str, samples: Sequence[PageSample]) -> Speculation:
    """TGI records, for every batch step of a request, one less than the tokens that came of it."""
    total = dict.fromkeys(NAMES[source].values(), 0)
    seen = set[str]()
    for sample in samples:
        if sample.name in total:
            total[sample.name] += sample.count()
            seen.add(sample.name)
    if not seen:
        return Speculation(
            source, "since start", notes=("tgi_request_skipped_tokens is not on the page: no request yet",)
        )
    if len(seen) == 1:
        raise PageError(f"the page has {seen.pop()} and not its pair: half a page. Fetch it again")
    accepted, steps = (total[name] for name in NAMES[source].values())
    notes = (
        f"{steps} steps, prefills and steps without proposals among them: TGI counts neither drafts nor proposals",
    )
    return Speculation(source, "since start", accepted=accepted, emitted=accepted + steps, notes=notes)


def _gauges(source: str, samples: Sequence[PageSample]) -> Speculation:
    """SGLang's gauges of its last log interval, one for each scheduler."""
    names = {name: word for word, name in NAMES[source].items()}
    found = defaultdict[str, dict[str, Any]](dict)
    emitted, notes = None, list[str]()
    for sample in samples:
        word = names.get(sample.name)
        if word == "emitted":
            emitted = (emitted or 0) + sample.count()
        elif word and (value := _gauge(sample, word)):  # 0 where nothing was speculated
            found[_write_labels(sample.labels)][word] = value
        elif sample.name.startswith("sglang:spec_") and not word:
            notes.append(f"{sample.name} is a name that is not known here; it was not read")
    engines = {engine: Speculation(source, "last interval", **words) for engine, words in found.items()}
    said: dict[str, Any] = {}
    if len(engines) == 1:
        only = next(iter(engines.values()))
        said = {"said_length": only.said_length, "said_rate": only.said_rate}
    elif engines:
        notes.append("several schedulers: their mean lengths have no weights to be averaged with")
    else:
        notes.append("the page says nothing of speculation: sglang:spec_accept_length is absent or 0")
    return Speculation(
        source, "last interval", emitted=emitted, engines=engines, notes=tuple(dict.fromkeys(notes)), **said
    )


PAGES: Mapping[str, Callable[[str, Sequence[PageSample]], Speculation]] = MappingProxyType(
    {"vllm page": _counters, "llama.cpp page": _counters, "sglang page": _gauges, "tgi page": _tgi}
)
"""The readers of pages, by source."""


def _of_body(source: str, said: Mapping[str, Any], prefix: str, beside: Sequence[str] = ()) -> Speculation:
    """The words of one request. Names that begin with ``prefix`` and are not known are noted."""
    words: dict[str, Any] = {}
    for word, name in NAMES[source].items():
        value = said.get(name)
        if value is None:
            continue
        if isinstance(value, bool | str):
            raise PageError(f"{name} is {value!r}; expected a number. Look at the server's answer")
        if word in LISTS:
            if not isinstance(value, Sequence):
                raise PageError(f"{name} is {value!r}; expected a list of numbers. Look at the server's answer")
            words[word] = tuple(PageSample(name, str(count)).count() for count in value)
        elif word in COUNTS:
            words[word] = PageSample(name, str(value)).count()
        else:
            words[word] = PageSample(name, str(value)).number() / (1e3 if name.endswith("_ms") else 1)
    notes = tuple(
        f"{name} is a name that is not known here; it was not read"
        for name in said
        if name.startswith(prefix) and name not in (*NAMES[source].values(), *beside, *LATER)
    )
    return _checked(Speculation(source, "request", **words, notes=notes))


def _in_first_names(meta: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang's ``meta_info`` with later names replaced by the first ones. Two names of one figure must agree."""
    found = dict(meta)
    for later, first in LATER.items():
        if later in meta:
            if first in found and found[first] != meta[later]:
                raise PageError(f"{later} is {meta[later]!r} and {first} is {found[first]!r}; expected one figure")
            found[first] = meta[later]
    return found


def _checked(said: Speculation) -> Speculation:
    """Refuse counts that no server could have counted; note where the server's own means disagree with its counts."""
    if said.accepted is not None and said.proposed is not None and said.accepted > said.proposed:
        raise PageError(f"{said.source}: {said.accepted} of {said.proposed} proposals accepted; look at the server")
    if said.histogram and said.drafts is not None:
        kept = sum(depth * count for depth, count in enumerate(said.histogram))
        if sum(said.histogram) != said.drafts or (said.accepted is not None and kept != said.accepted):
            raise PageError(
                f"{said.source}: a histogram of {sum(said.histogram)} steps and {kept} accepted tokens, beside "
                f"{said.drafts} and {said.accepted}; look at the server"
            )
    steps = list(zip(said.proposed_by_step, said.accepted_by_step, strict=False))
    if (len(said.proposed_by_step), len(said.accepted_by_step)) != (len(steps), len(steps)) or (
        steps and (len(steps), *map(sum, zip(*steps, strict=True))) != (said.drafts, said.proposed, said.accepted)
    ):
        raise PageError(
            f"{said.source}: steps that proposed {[*said.proposed_by_step]} and accepted {[*said.accepted_by_step]}, "
            f"beside {said.drafts} steps, {said.proposed} proposals and {said.accepted} accepted; look at the server"
        )
    notes = [*said.notes]
    if said.accepted_by_position and sum(said.accepted_by_position) != said.accepted:
        notes.append(f"{sum(said.accepted_by_position)} accepted by position, {said.accepted} in all")
    for what, theirs, ours in (
        ("acceptance rate", said.said_rate, said.acceptance_rate),
        ("mean acceptance length", said.said_length, said.mean_acceptance_length),
    ):
        other = _with_prefill(said, said.source) if what == "mean acceptance length" else None
        if theirs is None or ours is None or (other is not None and math.isclose(theirs, other, rel_tol=1e-3)):
            continue
        if not math.isclose(theirs, ours, rel_tol=1e-3):
            notes.append(f"the server's {what} is {theirs:g}; its counts make {ours:g}")
    return replace(said, notes=tuple(notes))


def _together(source: str, engines: Mapping[str, Speculation], notes: tuple[str, ...]) -> Speculation:
    every = [*engines.values()]
    if not any(engine.proposed is not None for engine in every):
        notes = (*notes, f"the page says nothing of speculation: {NAMES[source]['proposed']} is absent")
    elif not any(engine.proposed for engine in every):
        notes = (*notes, "nothing has been proposed since the server began")
    whole = added(every) or Speculation(source, "since start")
    began = [engine.began for engine in every if engine.began is not None]
    notes = tuple(dict.fromkeys((*whole.notes, *notes)))
    # One engine without labels is the whole.
    told = {} if set(engines) == {""} else engines
    return replace(whole, engines=told, began=max(began, default=None), notes=notes)


def _since(before: Speculation, after: Speculation, engine: str) -> Speculation:
    """The difference of two readings of one engine, or of all."""
    where = f" of engine {engine}" if engine else ""
    names = NAMES[after.source]
    changed: dict[str, Any] = {}
    for word in (*COUNTS, "decode_s"):
        old, new = getattr(before, word), getattr(after, word)
        if old is not None and (new is None or new < old):
            raise PageError(
                f"{names.get(word, word)}{where} fell from {old} to {new if new is not None else 'nothing'}: the "
                "server was started anew in between. Measure again"
            )
        changed[word] = None if new is None else new - (old or 0)
    if before.began is not None and after.began is not None and before.began != after.began:
        raise PageError(
            f"{_created(after.source)}{where} changed: the server was started anew in between. Measure again"
        )
    depths = max(len(before.accepted_by_position), len(after.accepted_by_position))
    old_by, new_by = (
        (*one.accepted_by_position, *[0] * (depths - len(one.accepted_by_position))) for one in (before, after)
    )
    fallen = [depth for depth in range(depths) if new_by[depth] < old_by[depth]]
    if fallen:
        raise PageError(f"{names['accepted_by_position']}{where}, position {fallen[0]}, fell: a restart. Measure again")
    notes, fresh = [*after.notes], before.said_length is None and before.scope == "since start"
    if after.said_length is not None and not fresh:
        notes.append("a mean since the server began, without counts, has no difference: read it on a fresh server")
    return _checked(
        replace(
            after,
            **changed,
            accepted_by_position=tuple(new - old for new, old in zip(new_by, old_by, strict=True)),
            said_length=after.said_length if fresh else None,
            said_rate=after.said_rate if fresh else None,
            notes=tuple(dict.fromkeys(notes)),
        )
    )


def _told(said: Speculation, word: str) -> float | int | None:
    """A figure as a server says it; TGI's steps are what is emitted beyond the accepted."""
    if word == "tgi_steps":
        return None if said.emitted is None or said.accepted is None else said.emitted - said.accepted
    value: float | int | None = (
        {
            "said_rate": said.acceptance_rate,
            "said_length": said.mean_acceptance_length,
        }.get(word)
        if word.startswith("said_")
        else getattr(said, word)
    )
    return value


def _with_prefill(said: Speculation, source: str) -> float | None:
    """SGLang's mean length of one request: its tokens, the prefill's among them, over its steps; None elsewhere."""
    if source != "sglang body" or said.emitted is None or not said.drafts:
        return None
    return said.emitted / said.drafts


def _gauge(sample: PageSample, where: str) -> float:
    try:
        return sample.number()
    except PageError as error:
        raise PageError(f"{error} ({where})") from None


def _position(sample: PageSample) -> int:
    text = sample.labels.get("position", "")
    if not text.isascii() or not text.isdecimal() or int(text) > 10_000:
        raise PageError(f"{sample.name} has the position {text!r}; expected a whole number")
    return int(text)


def _sum(values: Iterable[Any]) -> Any:
    """The sum; None if one is unknown."""
    every = [*values]
    return None if None in every else sum(every)


def _columns(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The sums of columns, of rows of any lengths; () if one row is unknown and another is not."""
    if not all(rows):
        return ()
    return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(max(map(len, rows))))


def _one_by_one(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The rows in a row; () if one of them is unknown."""
    return tuple(count for row in rows for count in row) if all(rows) else ()


def _write_labels(labels: Mapping[str, str]) -> str:
    return (
        write_samples([PageSample("engine", "0", dict(sorted(labels.items())))], {}).removeprefix("engine")[:-3].strip()
    )


def _read_labels(text: str) -> Mapping[str, str]:
    return read_samples(f"engine{text} 0\n")[0].labels
