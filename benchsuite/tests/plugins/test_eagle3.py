"""eagle3 over a target: every proposal is that of the head run over the whole text, after prefill and rejections."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import ask, requests
from benchsuite.tests.eagle3_heads import eagle3_chain, eagle3_written
from benchsuite.tests.proposed_windows import proposed_windows
from benchsuite.tests.rig import Make, slow_after
from specdec import SamplingParams, SpecdecError
from specdec.assembly import Assembly
from specdec_kernels.reference import Reference
from specdec_plugins.published import read_published
from specdec_plugins.published.reading import Reading, TargetSizes


class Unrolled:
    """A head run over a text without any state that is kept, on states that transformers computes."""

    def __init__(self, build: Assembly, folder: Path, reading: Reading = Reading()) -> None:  # noqa: B008  # frozen
        published = read_published(folder, TargetSizes.of(build.target), reading)
        self._model, self._parts, self.layers = build.target.twin(), published.head, published.reading.layers
        assert self._parts.ids is not None
        self.ids = self._parts.ids

    @torch.no_grad()
    def logits(self, text: Tensor, path: list[int]) -> Tensor:
        """Logits [D] of the proposal that follows a whole text and the proposals ``path``."""
        tokens = torch.cat([text[1:], torch.tensor(path, dtype=torch.int64)])
        outputs: list[Tensor] = []
        layers = self._model.base_model.layers
        handles = [
            layers[one].register_forward_hook(lambda m, g, out: outputs.append(out)) for one in self.layers or ()
        ]
        self._model(text[None, :-1], use_cache=False)
        for handle in handles:
            handle.remove()
        found = dict(zip(sorted(self.layers or ()), outputs, strict=True))
        states = torch.cat([found[layer][0] for layer in self.layers or ()], dim=-1)
        own = self._parts.embedding
        embedding = self._model.get_input_embeddings().weight if own is None else own
        return eagle3_chain(self._parts, Reference(), states, tokens, embedding)[-1]


CHAINS = [
    ("eagle3", "", Reading()),
    ("eagle31", "layers=1-0-2", Reading(layers=(1, 0, 2))),
    ("two_layers", "embedding=target", Reading(embedding="target")),
    ("window", "window=5", Reading(window=5)),
    ("one_norm", "states=after, ids=offset", Reading(states="after", ids="offset")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "options", "reading"), slow_after(1, CHAINS))
def test_every_proposal_is_the_heads_own_over_the_whole_text(
    case: str, options: str, reading: Reading, assemble: Make, tmp_path: Path
) -> None:
    """Ragged rows, which move; steps without proposals, whose entries wait; and almost every proposal is rejected."""
    build = assemble("smollm2", max_rows=3)
    folder = eagle3_written(tmp_path / "head", TargetSizes.of(build.target), (0, 1, 2), case)
    head = Unrolled(build, folder, reading)
    engine = build.engine(f"eagle3(head={str(folder)!r}{', ' * bool(options)}{options})", k=3)
    found = proposed_windows(engine, [3, 3, 0, 1, 0, 0, 3, 2], SamplingParams(max_new_tokens=16))
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"
    assert len(found) > 40
    for text, window in found[::3]:
        proposals = window.tokens[0, 1:].tolist()
        for depth, token in enumerate(proposals):
            logits = head.logits(text, proposals[:depth])
            place = (head.ids == token).nonzero()
            assert logits[place[0, 0]] > logits.max() - 1e-3, (depth, token)


@pytest.mark.slow
def test_every_node_of_a_tree_is_a_likely_child_on_its_own_path(assemble: Make, tmp_path: Path) -> None:
    build = assemble("smollm2", max_rows=3)
    folder = eagle3_written(tmp_path / "head", TargetSizes.of(build.target), (0, 1, 2))
    head = Unrolled(build, folder)
    engine = build.engine(f"eagle3(head={str(folder)!r}, beam=3, depth=3)", "tree_rejection", k=9)
    depths = set[int]()
    for text, window in proposed_windows(engine, [9, 0, 9, 9], SamplingParams(max_new_tokens=16))[::5]:
        tokens, parents = window.tokens[0].tolist(), window.parents[0].tolist()
        paths: list[list[int]] = [[]]
        for slot in range(1, len(tokens)):
            before = paths[parents[slot]]
            paths.append([*before, tokens[slot]])
            depths.add(len(before) + 1)
            logits = head.logits(text, before)
            assert logits[(head.ids == tokens[slot]).nonzero()[0, 0]] > logits.topk(3).values[-1] - 1e-3
    assert depths == {1, 2, 3}


@pytest.mark.parametrize(
    ("policy", "temperature"), slow_after(1, [("match", 0.0), ("match", 1.0), ("rejection", 1.0), ("block", 0.7)])
)
def test_the_head_changes_no_output_that_is_promised(
    policy: str, temperature: float, assemble: Make, tmp_path: Path
) -> None:
    build = assemble("llama", max_rows=2)
    folder = eagle3_written(tmp_path / "head", TargetSizes.of(build.target), (0, 1), "one_norm")
    engine = build.engine(f"eagle3(head={str(folder)!r})", policy, k=3)
    params = SamplingParams(temperature=temperature, seed=4, max_new_tokens=12)
    ask(engine, cycle([3, 0, 2]))
    done = engine.run(requests(params, count=3))
    if engine.policy.contract(params) == "exact":
        assert [one.tokens for one in done] == [build.plain(request) for request in requests(params, count=3)]
    assert engine.stats.counts["num_draft_tokens"] > 20


@pytest.mark.slow
def test_a_head_in_codes_reads_fewer_bytes_and_the_text_is_plain(assemble: Make, tmp_path: Path) -> None:
    build, params = assemble("llama", max_rows=2), SamplingParams(max_new_tokens=12)
    folder = eagle3_written(tmp_path / "head", TargetSizes.of(build.target), (0, 1), "one_norm")
    read = list[int]()
    for weights in ("float", "int8"):
        engine = build.engine(f"eagle3(head={str(folder)!r}, weights={weights})", k=3)
        done = engine.run(requests(params, count=3))
        assert [one.tokens for one in done] == [build.plain(request) for request in requests(params, count=3)]
        assert engine.draft is not None
        read.append(engine.draft.weight_bytes)
    assert read[1] < 0.8 * read[0], "a head in bfloat16 has two bytes a number, one in codes little more than one"


def test_a_head_or_an_option_that_cannot_be_read_is_refused(assemble: Make, tmp_path: Path) -> None:
    build = assemble("llama")
    folder = eagle3_written(tmp_path / "head", TargetSizes.of(build.target), (0, 1), "one_norm")
    for options, sentence in (
        ("", r"none is named: eagle3\(head='path/to/head'\)"),
        ("head=nowhere", r"there is no head 'nowhere'"),
        (f"head={str(folder)!r}, beam=0", r"beam=0.*; expected beam and depth 1 or more"),
        (f"head={str(folder)!r}, weights=int7", r"weights is 'int7'; expected float, int8 or int4"),
        (f"head={str(folder)!r}, ids=offsets", r"ids is 'offsets'; expected offset or id"),
        (
            f"head={str(folder)!r}, layers=0-1-1",
            r"names 3 layers \(layers=0-1-1 \(option layers\)\), and its fc fuses 2",
        ),
    ):
        with pytest.raises(SpecdecError, match=sentence):
            build.engine(f"eagle3({options})", k=2)
