"""The matrix of a run: every arm of every setting once, strategies by name, and the peers of each kind of device."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.measure.arms import Arm, arm_named
from benchsuite.run.matrix import build_matrix, default_peers, endpoint_peers, named_strategies, settings_of
from benchsuite.run.names import refuse_unknown_names, split_arms
from benchsuite.tests.rig import requested
from specdec import SpecdecError
from specdec_plugins.endpoints.named import parse_endpoints

ONE = {"target": "tiny", "workload": "chat", "peer": "none", "device": "cpu"}
"""One setting, and nothing beside ours."""

LISTS = {
    "target": ("tiny", "a/b"),
    "backend": ("auto", "reference"),
    "device": ("cpu", "cpu:0"),
    "dtype": ("float32", "int8"),
    "batch": (1, 3),
    "workload": ("chat", "reasoning"),
    "temperature": (0.0, 0.5),
    "top_k": (0, 7),
}


def test_settings_are_the_product_of_all_lists_in_the_order_of_their_texts() -> None:
    texts = {name: ",".join(map(str, values)) for name, values in LISTS.items()}
    found = settings_of(requested(seed="5", **texts))
    names = [name for name in LISTS if name != "workload"]
    products = {
        tuple(product.values())
        for product in (dict(zip(LISTS, values, strict=True)) for values in itertools.product(*LISTS.values()))
    }
    assert {tuple(setting.values[name] for name in LISTS) for setting in found} == products
    assert len(found) == len(products) == 2 ** len(LISTS)
    assert {setting.values["seed"] for setting in found} == {5}
    assert [found[0].values[name] for name in names] == [LISTS[name][0] for name in names]
    firsts = [setting.target for setting in found]
    assert firsts == sorted(firsts, key=LISTS["target"].index), "one target after the other"


def test_the_plain_decoding_of_a_server_is_another_server_of_the_run() -> None:
    servers = "endpoint(url=http://localhost:1, name=one), endpoint(url=http://localhost:2, name=two, plain={})"
    found = build_matrix(requested(**{**ONE, "peer": servers.format("one")}))
    assert [arm.label for arm in found if arm.peer] == ["endpoint one", "endpoint two"]
    for name in ("two", "three"):
        with pytest.raises(SpecdecError, match=f"unknown plain of the peer endpoint two '{name}'.*choices: one"):
            build_matrix(requested(**{**ONE, "peer": servers.format(name)}))


def ours(**given: str) -> list[Arm]:
    """The strategies among the arms of one setting, after plain decoding and plain decoding once more."""
    arms = build_matrix(requested(**{**ONE, **given}))
    assert arms[0].plain
    assert arms[1].again
    assert all(arm.draft for arm in arms[2:])
    return arms[2:]


def test_every_draft_meets_every_policy_controller_and_k() -> None:
    found = ours(draft="ngram,suffix", policy="match,rejection", controller="fixed,goodput", k="2,5")
    expected = itertools.product(["ngram", "suffix"], ["match", "rejection"], ["fixed", "goodput"], [2, 5])
    assert [(arm.draft, arm.policy, arm.controller, arm.k) for arm in found] == list(expected)
    assert len(set(found)) == 16


def test_without_k_a_controller_has_its_own() -> None:
    found = ours(draft="ngram", controller="fixed,fixed(k=7),goodput(maximum=9)")
    assert [(arm.controller, arm.k) for arm in found] == [("fixed", 4), ("fixed", 7), ("goodput", 9)]


def test_a_width_is_a_replay_of_one_proposal_less_and_plain_has_width_one() -> None:
    found = ours(width="1-3,16")
    assert [(arm.draft, arm.policy, arm.controller, arm.k) for arm in found] == [
        ("oracle(0.9)", "match", "fixed", k) for k in (1, 2, 15)
    ]
    assert ours(width="1") == []
    for name, text in {"draft": "ngram", "k": "4", "arm": "ngram", "policy": "match"}.items():
        with pytest.raises(SpecdecError, match=f"leave out --specdec-{name}, or --specdec-width"):
            requested(**ONE, width="1-3", **{name: text})


@pytest.mark.parametrize("text", ["0-3", "3-1", "1-", "-3", "1-x", "1-2-3", "2.5", ""])
def test_what_is_no_width_is_refused(text: str) -> None:
    if text:
        with pytest.raises(SpecdecError, match="--specdec-width is .*; expected whole numbers, 1 or more, or spans"):
            requested(width=text)
    else:
        assert requested(width=text).width is None


def test_every_workload_is_measured_at_every_depth() -> None:
    found = settings_of(requested(**{**ONE, "workload": "chat,json", "depth": "0,2k,300"}))
    assert [setting.workload for setting in found] == ["chat", "chat@2k", "chat@300", "json", "json@2k", "json@300"]
    assert [setting.workload for setting in settings_of(requested(**{**ONE, "workload": "chat@1k"}))] == ["chat@1k"]
    with pytest.raises(SpecdecError, match="chat@1k has a depth of its own"):
        settings_of(requested(**{**ONE, "workload": "json,chat@1k", "depth": "0,2k"}))


@pytest.mark.parametrize("text", ["-1", "100", "0.5k", "k", "2K", "2k-8k"])
def test_what_is_no_depth_is_refused(text: str) -> None:
    with pytest.raises(SpecdecError, match="--specdec-depth is .*; expected numbers of tokens, each 0 or 256 and more"):
        requested(depth=text)


def test_an_adaptive_k_is_the_most_and_begins_with_four_at_most() -> None:
    found = ours(draft="ngram,suffix", adaptive_k="2,4,5,16")
    expected = [("adaptive(maximum=2)", 2), *((f"adaptive(maximum={most})", 4) for most in (4, 5, 16))]
    for draft in ("ngram", "suffix"):
        assert [(arm.controller, arm.k) for arm in found if arm.draft == draft] == expected


PARTS = st.tuples(
    st.sampled_from(["ngram", "draft_model(model=a/b, layers=2)", "hybrid(sources='suffix, ngram')"]),
    st.sampled_from(["match", "topk_agree(k=3)"]),
    st.sampled_from(["fixed", "goodput"]),
    st.integers(0, 20),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), PARTS, st.integers(1, 4)), min_size=1, max_size=4))
def test_strategies_are_read_as_they_are_written_and_what_is_left_out_is_the_default(
    written: list[tuple[str | None, tuple[str, str, str, int], int]],
) -> None:
    names = [name for name, _, _ in written if name]
    texts, expected = [], []
    for name, parts, count in written:
        short = "/".join(map(str, parts[:count]))
        texts.append(f" {name} = {short}" if name else short)
        whole = (*parts[:count], *("", "match", "fixed")[count:])
        k = parts[3] if count == 4 else {"fixed": 4, "goodput": 15}[str(whole[2])]
        expected.append({"draft": whole[0], "policy": whole[1], "controller": whole[2], "k": k, "name": name})
    assert split_arms(", ".join(texts)) == [
        (name, [str(part) for part in parts[:count]]) for name, parts, count in written
    ]
    strategies = {tuple(one[part] for part in KEY) for one in expected}
    named = {(one["name"], *(one[part] for part in KEY)) for one in expected}
    if len(set(names)) < len(names):
        with pytest.raises(SpecdecError, match="^--specdec-arm has the names .*; give each arm a name of its own$"):
            named_strategies(", ".join(texts))
    elif len(named) > len(strategies):
        with pytest.raises(SpecdecError, match=" of --specdec-arm are one strategy, "):
            named_strategies(", ".join(texts))
    else:
        assert named_strategies(", ".join(texts)) == expected


KEY = ("draft", "policy", "controller", "k")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ngram/match/fixed/4/5", "cannot read the arm 'ngram/match/fixed/4/5'; expected draft, draft/policy, … or "),
        ("ngram//fixed", "cannot read the arm 'ngram//fixed'; expected draft, "),
        ("ngram, a=", "cannot read the arm 'a='; expected draft, "),
        ("/match", "cannot read the arm '/match'; expected draft, "),
        ("ngram/match/fixed/x", "the K of --specdec-arm is 'x'; expected whole numbers, 0 or more"),
        ("a=ngram, b=suffix, a=garbage", "--specdec-arm has the names a, b, a; give each arm a name of its own"),
        (
            "ngram, mine=ngram/match/fixed/4",
            "ngram and mine of --specdec-arm are one strategy, ngram/match/fixed/4, which is measured once: ",
        ),
        ("a=ngram, b=ngram/match", "a and b of --specdec-arm are one strategy, ngram/match/fixed/4, which is "),
        ("a=suffix/match/fixed/0, suffix/match/fixed/0", "a and suffix of --specdec-arm are one strategy, suffix/"),
    ],
)
def test_an_arm_that_cannot_be_read_or_has_two_names_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        build_matrix(requested(arm=text))
    assert str(refused.value).startswith(said)


def test_a_strategy_that_is_written_twice_is_one_arm_and_others_of_its_draft_are_their_own() -> None:
    again = "ngram/match/fixed/3"
    found = ours(arm=f"mine=ngram/match/fixed/2, {again}, ngram/rejection/fixed/3, ngram/match/goodput/3, {again}")
    assert [(arm.name, arm.strategy) for arm in found] == [
        ("mine", "ngram/match/fixed/2"),
        (None, "ngram/match/fixed/3"),
        (None, "ngram/rejection/fixed/3"),
        (None, "ngram/match/goodput/3"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "unknown"),
    [
        ("a=ngram, suffx/match/fixed/2", "draft 'suffx'"),
        ("ngram/mtch", "policy 'mtch'"),
        ("ngram/match/fixd", "controller 'fixd'"),
    ],
)
def test_the_names_of_a_strategy_are_looked_up_part_by_part(arm: str, unknown: str) -> None:
    with pytest.raises(SpecdecError, match=f"^unknown {unknown}; did you mean"):
        refuse_unknown_names(requested(arm=arm))


PEERS = ["transformers", "transformers_prompt_lookup"]


def test_peers_by_themselves_are_those_that_any_machine_runs_and_on_cuda_the_compiled_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [default_peers(kind) for kind in ("cpu", "mps", "cuda")] == [PEERS, PEERS, [*PEERS, "transformers_compiled"]]
    for name, text in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert default_peers("cuda") == PEERS, "collective calls are not compiled"


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_peers_stand_beside_batches_of_one_unless_they_batch(device: str) -> None:
    def names(peer: str, batch: str) -> list[str | None]:
        arms = build_matrix(
            requested(target="tiny", workload="chat", draft="ngram", device=device, peer=peer, batch=batch)
        )
        return [arm.peer and arm.peer.partition("(")[0] for arm in arms if arm.peer]

    compiled = ["transformers_compiled"] if device == "cuda:1" else []
    assert names("auto", "1") == [*PEERS, *compiled]
    assert names("auto", "2") == []
    assert names("none", "1") == []
    assert names("transformers,none", "1") == ["transformers"]
    assert names("transformers_prompt_lookup,auto", "1") == [PEERS[1], PEERS[0], *compiled]


@pytest.mark.parametrize(("device", "recorded"), [("cuda", True), ("cuda:1", True), ("cpu", False), ("mps", False)])
def test_where_steps_are_recorded_plain_decoding_runs_op_by_op_too_unless_all_do(device: str, recorded: bool) -> None:
    for graphs, eager in (("auto", recorded), ("off", False)):
        arms = build_matrix(requested(**{**ONE, "device": device}, draft="ngram", graphs=graphs))
        assert [arm for arm in arms if not arm.draft] == [
            Arm(arms[0].setting),
            Arm(arms[0].setting, again=True),
            *([Arm(arms[0].setting, eager=True)] if eager else []),
        ]


def test_the_baseline_by_itself_is_plain_decoding() -> None:
    arms = build_matrix(requested(**ONE))
    assert arm_named(requested().baseline, arms).plain


def test_servers_are_peers_beside_the_others() -> None:
    text = "plain=http://localhost:1, spec=http://localhost:2#org/m"
    servers = endpoint_peers(parse_endpoints(text))
    assert [server.count("model=org/m") for server in servers] == [0, 1]
    assert [f"name={name}" in server for name, server in zip(("plain", "spec"), servers, strict=True)] == [True, True]
    arms = build_matrix(requested(**{**ONE, "peer": "transformers", "draft": "ngram"}, endpoint=text))
    assert [arm.peer for arm in arms if arm.peer] == ["transformers", *servers]


def test_a_file_of_several_categories_is_as_many_workloads(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text('{"turns": ["one"], "category": "a"}\n{"turns": ["two"], "category": "b"}\n')
    found = settings_of(requested(target="tiny", workload=f"chat,{file}"))
    assert [one.workload for one in found] == ["chat", f"{file}:a", f"{file}:b"]
