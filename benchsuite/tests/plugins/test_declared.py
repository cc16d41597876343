"""What every built-in plugin takes and declares is what users and the engine were told: a changed default is a changed
plugin, and is changed here too."""

from __future__ import annotations

import pytest

from benchsuite.conformance.models.tiny import assembly, policy_named, registry
from specdec import SamplingParams

OPTIONS = {
    "draft": {
        "arctic_suffix": "factor=1.0, offset=0.0, least=0.1, depth=64, cached=-1, tree=False",
        "custom_class": "path='', settings='{}', learns=False",
        "dflash": "head='', layers='', ids='', window='', embedding='', inside='', first='', max_draft=0, "
        "weights='float'",
        "draft_model": "model=None, layers=None, vocabulary='same'",
        "dspark": "head='', layers='', ids='', window='', embedding='', inside='', first='', max_draft=0, "
        "weights='float'",
        "eagle": "head='lite', alpha=0.5, max_draft=0, reset=True, beam=1, depth=5, least=0.0, leaves=0, "
        "weights='float'",
        "eagle3": "head='', layers='', states='', ids='', window='', embedding='', pickle=False, max_draft=0, "
        "beam=1, depth=5, least=0.0, leaves=0, weights='float'",
        "flashspec_drafter": "drafter='flashspec.engine:NgramDrafter', settings='{}'",
        "garbage": "none",
        "hybrid": "sources='suffix, ngram', model_k=4, extend=False, merge=False, slots=0",
        "medusa": "num_heads=None, head_init='tie', temperature=1.0, top_p=1.0, beam=1, least=0.0, head='', "
        "final='', pickle=False",
        "mtp": "head='target', states='', final='', order='', embedding='', max_draft=0, beam=1, depth=5, least=0.0, "
        "leaves=0",
        "ngram": "n_max=4, n_min=2, branches=1",
        "oracle": "rate=None, cost='', length=None, rates='', histogram=''",
        "peagle": "head='', layers='', ids='', window='', embedding='', mask='', max_draft=0, weights='float'",
        "rest": "datastore=''",
        "suffix": "factor=2.0, least=0.3, min_match=2, earlier=True, branches=1",
        "transformers_candidates": "generator='PromptLookupCandidateGenerator', model=None, settings='{}'",
        "tree": "model=None, layers=None, beam=4, depth=4, least=0.0, widths=''",
    },
    "policy": {
        "block": "none",
        "conf_threshold": "tau=0.3",
        "longest_prefix": "none",
        "match": "none",
        "rejection": "none",
        "topk_agree": "k=3",
        "tree_agree": "m=2, k=3",
        "tree_rejection": "none",
        "typical": "p=0.0, epsilon=0.3, delta=0.09",
    },
    "controller": {
        "adaptive": "start=4, window=8, step=1, target=0.6, minimum=1, maximum=8",
        "fixed": "k=4",
        "budget": "maximum=15, probe=8, price=0.0",
        "goodput": "maximum=15, probe=8",
    },
    "peer": {
        "endpoint": "url='', name='server', model='', server='other', prompt='ids', plain=''",
        "llama_cpp": "threads=None",
        "llama_cpp_prompt_lookup": "k=10, ngram=2, threads=None",
        "onnxruntime": "threads=None",
        "onnxruntime_speculative": "k=4, ngram=2, chained=False, model=None, threads=None",
        "openvino": "threads=None",
        "openvino_draft": "model=None, k=4, threads=None",
        "openvino_prompt_lookup": "k=5, ngram=3, threads=None",
        "transformers": "cache='dynamic'",
        "transformers_assisted": "model=None, k=4",
        "transformers_compiled": "none",
        "transformers_early_exit": "layers=4, k=4",
        "transformers_prompt_lookup": "k=10, ngram=2",
        "vllm": "memory=None, eager=False",
        "vllm_speculative": "method='ngram', k=4, ngram=4, shortest=2, model=None, draft=None, "
        "memory=None, eager=False",
    },
}

FLAGS: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "draft": (
        ("needs_hidden", "needs_logits", "branches", "looks_up", "extends", "learns", "small_ops"),
        {
            "arctic_suffix": ("looks_up", "small_ops"),
            "dflash": ("small_ops",),
            "dspark": ("small_ops",),
            "garbage": ("small_ops",),
            "medusa": ("needs_hidden",),
            "ngram": ("looks_up", "extends", "small_ops"),
            "rest": ("branches", "looks_up", "small_ops"),
            "suffix": ("looks_up", "small_ops"),
            "tree": ("branches",),
        },
    ),
    "policy": (
        ("coupled", "trees", "raw", "chooses"),
        {
            "conf_threshold": ("coupled", "trees", "raw"),
            "longest_prefix": ("trees",),
            "match": ("coupled", "trees", "chooses"),
            "topk_agree": ("coupled", "trees", "raw"),
            "tree_agree": ("coupled", "trees", "raw"),
            "tree_rejection": ("trees",),
            "typical": ("coupled", "trees", "raw"),
        },
    ),
    "controller": (("deterministic",), {"adaptive": ("deterministic",), "fixed": ("deterministic",)}),
    "peer": (
        ("batches", "needs_gguf", "own_arithmetic"),
        {
            "endpoint": ("own_arithmetic",),
            "llama_cpp": ("needs_gguf", "own_arithmetic"),
            "llama_cpp_prompt_lookup": ("needs_gguf", "own_arithmetic"),
            "openvino": ("batches", "own_arithmetic"),
            "openvino_draft": ("batches", "own_arithmetic"),
            "openvino_prompt_lookup": ("batches", "own_arithmetic"),
            "vllm": ("batches", "own_arithmetic"),
            "vllm_speculative": ("batches", "own_arithmetic"),
        },
    ),
}
"""Of each kind, what can be declared, and of each plugin what is; nothing else is. A draft may decide when it is built
(``draft_model``, ``eagle``, ``hybrid``)."""


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_option_has_the_default_that_is_documented(kind: str) -> None:
    found = {name: registry().entry(kind, name) for name in registry().names(kind)}
    assert {name: entry.described for name, entry in found.items() if not entry.alias} == OPTIONS[kind]


ELSEWHERE = (
    *("custom_class", "arctic_suffix", "flashspec_drafter", "rest"),
    *("dflash", "dspark", "eagle3", "mtp", "peagle"),
)
"""Drafts of a class without which there is none, of a package that is not here, or of a head's file."""

BUILT = [
    pytest.param(kind, name, id=name)
    for kind in ("draft", "policy", "controller")
    for name, options in OPTIONS[kind].items()
    if options != "none" and name not in ELSEWHERE
]
"""Plugins with options that can be built here; peers are programs of their own."""


@pytest.mark.parametrize(("kind", "name"), BUILT)
def test_a_plugin_without_options_is_built_as_with_those_that_are_said(kind: str, name: str) -> None:
    def held(text: str) -> dict[str, object]:
        given = {"draft": text if kind == "draft" else "ngram", "policy": text if kind == "policy" else "match"}
        controller = text if kind == "controller" else "fixed"
        if kind == "draft":
            given["policy"] = "tree_rejection"  # takes trees and chains
        engine = assembly(max_rows=2, max_length=64).engine(given["draft"], given["policy"], controller)
        plain = (bool, int, float, str, tuple)
        return {name: value for name, value in vars(getattr(engine, kind)).items() if isinstance(value, plain)}

    without = held(name)
    assert without == held(f"{name}({OPTIONS[kind][name]})")
    assert without, "nothing of it would show an option"


@pytest.mark.parametrize("kind", FLAGS)
def test_every_plugin_declares_what_it_is_and_no_more(kind: str) -> None:
    flags, declared = FLAGS[kind]
    for name in OPTIONS[kind]:
        factory = registry().entry(kind, name).factory
        if isinstance(factory, type):
            held = tuple(flag for flag in flags if getattr(factory, flag) is True)
            assert held == declared.get(name, ()), name


def test_controllers_name_the_option_that_k_sets_and_peers_what_they_are_compared_with() -> None:
    of = registry().entry
    assert {name: of("controller", name).k_option for name in OPTIONS["controller"]} == {
        "adaptive": "start",
        "fixed": "k",
        "budget": "maximum",
        "goodput": "maximum",
    }
    references = {name: getattr(of("peer", name).factory, "reference", None) for name in OPTIONS["peer"]}
    assert {name: other for name, other in references.items() if isinstance(other, str)} == {
        "llama_cpp_prompt_lookup": "llama_cpp",
        "onnxruntime_speculative": "onnxruntime",
        "openvino_draft": "openvino",
        "openvino_prompt_lookup": "openvino",
        "transformers_assisted": "transformers",
        "transformers_compiled": "transformers",
        "transformers_early_exit": "transformers",
        "transformers_prompt_lookup": "transformers",
        "vllm_speculative": "vllm",
    }


CONTRACTS = {
    "block": ("exact", "distribution"),
    "conf_threshold": ("lossy", "lossy"),
    "longest_prefix": ("exact", "lossy"),
    "match": ("exact", "exact"),
    "rejection": ("exact", "distribution"),
    "topk_agree": ("lossy", "lossy"),
    "tree_agree": ("lossy", "lossy"),
    "tree_rejection": ("exact", "distribution"),
    "typical": ("lossy", "lossy"),
}
"""What each policy promises of greedy requests, and of sampled ones: docs/strategies.md."""


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_policy_promises_what_the_documents_say_greedy_and_sampled(name: str) -> None:
    greedy, *sampled = (policy_named(name).contract(SamplingParams(temperature=heat)) for heat in (0.0, 0.1, 1.0, 2.0))
    assert (greedy, *sampled) == (CONTRACTS[name][0], *[CONTRACTS[name][1]] * 3)
