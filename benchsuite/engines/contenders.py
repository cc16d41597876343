"""The ways in which engines speculate that ``engines bench`` runs, each with the K that are tried."""

from __future__ import annotations

from dataclasses import dataclass

from benchsuite.engines.launches import OURS


@dataclass(frozen=True)
class Contender:
    """One row of an engine's server.

    ``name``: the row's. ``speculation`` in the words of ``engines serve``, empty for plain decoding. ``ks``: the K that
    are tried; () where the engine's own is the only one. ``settings``: further ones in the engine's own words, each of
    which is tried with each K. ``drafts``: it proposes by a second model, for which the
    target itself is the only one at hand: what that costs is real, and its acceptance is not one of a smaller model.
    """

    engine: str
    name: str
    speculation: str = ""
    ks: tuple[int, ...] = ()
    drafts: bool = False
    settings: tuple[tuple[str, ...], ...] = ((),)


def _of_three(kind: str) -> tuple[tuple[str, ...], ...]:
    """Lookups of llama.cpp match twelve tokens by default, which short texts seldom have; three are tried too."""
    return (), (f"speculative.{kind}.size_n=3",)


_MOD = ("speculative.ngram_mod.n_match=3", "speculative.ngram_mod.n_min=1")

CONTENDERS = (
    Contender("vllm", "vllm"),
    Contender("vllm", "vllm ngram", "ngram", (2, 4, 8)),
    Contender("vllm", "vllm our suffix", f"{OURS}suffix", (4, 8)),
    Contender("vllm", "vllm our ngram", f"{OURS}ngram", (4, 8)),
    Contender("vllm", "vllm draft", "draft_model", (2, 4), drafts=True),
    Contender("llama_cpp", "llama"),
    Contender("llama_cpp", "llama simple", "ngram-simple", (4, 8, 16), settings=_of_three("ngram_simple")),
    Contender("llama_cpp", "llama map-k", "ngram-map-k", (4, 8, 16), settings=_of_three("ngram_map_k")),
    Contender("llama_cpp", "llama map-k4v", "ngram-map-k4v", (4, 8, 16), settings=_of_three("ngram_map_k4v")),
    Contender("llama_cpp", "llama mod", "ngram-mod", (8, 16), settings=((), _MOD)),
    Contender("llama_cpp", "llama draft", "draft-simple", (2, 4), drafts=True),
    Contender(
        "llama_cpp",
        "llama chained",
        "ngram-simple,draft-simple",
        (4,),
        drafts=True,
        settings=_of_three("ngram_simple"),
    ),
)
"""Plain decoding of each engine stands before what speculates."""

PEERS = (
    "transformers",
    "transformers_prompt_lookup(k=4)",
    "transformers_prompt_lookup(k=10)",
    "transformers_assisted(model={model}, k=4)",
    "transformers_early_exit",
    "openvino",
    "openvino_prompt_lookup(k=3)",
    "openvino_prompt_lookup(k=5)",
    "openvino_prompt_lookup(k=8)",
    "openvino_draft(model={model}, k=4)",
    "onnxruntime",
    "onnxruntime_speculative(k=4)",
    "onnxruntime_speculative(k=8)",
    "onnxruntime_speculative(model={model}, k=4)",
)
"""Engines with an interface of Python, each K a row: their best is seen in the table itself. One that is not installed
is left out by name. ``{model}``: the target, as the only draft model at hand."""

OURS_HERE = "ngram/match/goodput/15, suffix/match/goodput/15, hybrid/match/goodput/15"
"""The strategies of ours beside them, as ``--specdec-arm`` has them."""
