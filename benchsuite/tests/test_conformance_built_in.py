"""Every built-in plugin passes the checks of the conformance kit."""

from __future__ import annotations

from typing import TypeVar

import pytest

from benchsuite import conformance
from benchsuite.conformance.claims import Checks
from specdec.interfaces import OPS

C = TypeVar("C", bound=type[Checks])


def slow(checks: C) -> C:
    """Mark as slow: the kit of a drafting model takes ten seconds, of a policy two; some of each kind stay quick."""
    checks.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
    return checks


TestNgram = conformance.draft("ngram(n_min=1)")
TestNgramTree = slow(conformance.draft("ngram(n_min=1, branches=3)", trees=True))
TestSuffix = slow(conformance.draft("suffix(min_match=1)", remembers=True))
TestSuffixAlone = slow(conformance.draft("suffix(min_match=1, earlier=False)"))
TestHybrid = slow(conformance.draft("hybrid(sources='suffix(min_match=1, earlier=False), draft_model')", sampled=True))
TestCustomClass = slow(
    conformance.draft(
        "custom_class(path='benchsuite.tests.vllm_rig:TheirLookup', settings='{\"num_speculative_tokens\": 3}')"
    )
)
TestCustomClassThatLearns = slow(
    conformance.draft("custom_class(path='benchsuite.tests.vllm_rig:TheirMemory', learns=True)", remembers=True)
)
TestDraftModel = slow(conformance.draft("draft_model", sampled=True))
TestTree = slow(conformance.draft("tree(beam=2, depth=3)", trees=True, k=6))
TestMedusa = slow(conformance.draft("medusa(head_init=random)", sampled=True, hidden=True))
TestMedusaTree = slow(conformance.draft("medusa(head_init=random, beam=2)", trees=True, hidden=True, k=6))
TestEagle = slow(conformance.draft("eagle(reset=False)", sampled=True, hidden=True))
TestEagleThatResets = slow(conformance.draft("eagle", sampled=True, hidden=True, memoryless=False))
TestOracle = slow(conformance.draft("oracle(0.8)", replays=True))
TestGarbage = slow(conformance.draft("garbage"))

TestTransformers = slow(conformance.engine("transformers", refuses=["cache=sttic", "cache=4"]))
TestTransformersStatic = slow(conformance.engine("transformers(cache=static)"))
TestTransformersLookup = slow(
    conformance.engine("transformers_prompt_lookup(k=3)", refuses=["k=0", "ngram=0", "k=2.5"])
)
TestLlamaCpp = slow(conformance.engine("llama_cpp", own_arithmetic=True, refuses=["threads=0", "threads=many"]))
TestLlamaCppLookup = slow(
    conformance.engine("llama_cpp_prompt_lookup(k=3)", own_arithmetic=True, refuses=["k=0", "ngram=0", "threads=0"])
)

TestMatch = slow(conformance.policy("match", greedy="exact", sampled="exact", trees=True, coupled=True))
TestRejection = conformance.policy("rejection", greedy="exact", sampled="distribution")
TestBlock = slow(conformance.policy("block", greedy="exact", sampled="distribution"))
TestTreeRejection = slow(conformance.policy("tree_rejection", greedy="exact", sampled="distribution", trees=True))
TestLongestPrefix = slow(conformance.policy("longest_prefix", greedy="exact", sampled="lossy", trees=True))
TestConfThreshold = slow(
    conformance.policy("conf_threshold", greedy="lossy", sampled="lossy", trees=True, coupled=True)
)
TestTopkAgree = slow(conformance.policy("topk_agree", greedy="lossy", sampled="lossy", trees=True, coupled=True))
TestTypical = slow(conformance.policy("typical", greedy="lossy", sampled="lossy", trees=True, coupled=True))
TestTreeAgree = slow(conformance.policy("tree_agree", greedy="lossy", sampled="lossy", trees=True, coupled=True))

TestFixed = conformance.controller("fixed")
TestAdaptive = slow(conformance.controller("adaptive(window=2)"))
TestGoodput = slow(conformance.controller("goodput(maximum=4)", deterministic=False))

TestReference = conformance.backend("reference", ops=sorted({*OPS} - {"decoder_layers", "block_sample", "tree_sample"}))
TestCpu = conformance.backend(
    "cpu", ops=sorted({*OPS} - {"accept", "noise_keys", "block_sample", "tree_sample", "emit", "kv_plan"})
)
