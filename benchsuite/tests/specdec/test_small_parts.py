"""Small parts that everything uses: unknown names, the cache folder, peers' checks, threads, counted ops."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from benchsuite.conformance.models.tiny import registry
from specdec import SamplingParams, SpecdecError, acceptance
from specdec.cache import cache_root
from specdec.decoder import Cells, DecoderWeights, decode
from specdec.errors import folded, unknown
from specdec.interfaces import OPS, Backend
from specdec.ops import Ops
from specdec.peer import absent, refuse_params, require_whole
from specdec.threads import kernel_threads, one_torch_thread


@pytest.mark.parametrize(
    ("got", "choices", "hint", "message"),
    [
        ("ngrm", ["oracle", "ngram"], "", "unknown draft 'ngrm'; did you mean 'ngram'? choices: ngram, oracle"),
        ("zzz", ["oracle", "ngram"], "", "unknown draft 'zzz'; choices: ngram, oracle"),
        ("zzz", ["b"], "Look again.", "unknown draft 'zzz'; choices: b. Look again."),
        ("ab", ["abd", "abc"], "", "unknown draft 'ab'; did you mean 'abd' or 'abc'? choices: abc, abd"),
        (
            "abcd",
            ["axxbc", "abcdxxx", "abcdx3", "abcd3"],
            "",
            "unknown draft 'abcd'; did you mean 'abcd3', 'abcdx3' or 'abcdxxx'? choices: abcd3, abcdx3, abcdxxx, axxbc",
        ),
        ("zzz", [], "", "unknown draft 'zzz'; choices: none"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_all_choices_in_order(
    got: str, choices: list[str], hint: str, message: str
) -> None:
    error = unknown("draft", got, iter(choices), *([hint] if hint else []))
    assert type(error) is SpecdecError
    assert str(error) == message


@hypothesis.given(
    st.lists(st.lists(st.sampled_from(["a", "word", "co-operate", "x" * 30]), min_size=1), min_size=1),
    st.integers(10, 60),
)
def test_a_message_has_lines_of_the_terminals_width_and_its_own_words(lines: list[list[str]], width: int) -> None:
    text = "\n".join(map(" ".join, lines))
    shown = folded(text, width)
    assert shown.split() == text.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in shown.splitlines())
    assert shown.replace("\n  ", " ") == text, "more is only indented"


def test_a_message_is_folded_at_the_terminals_width(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (40, 70, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert folded("word " * 100) == folded("word " * 100, width)


def test_the_cache_is_where_it_is_said_to_be_or_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for unset in (False, True):
        monkeypatch.setenv("SPECDEC_CACHE", "")
        if unset:
            monkeypatch.delenv("SPECDEC_CACHE")
        assert cache_root() == Path("/home/me/.cache/specdec-bench")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_root() == Path("/home/me/.cache/specdec-bench")
    monkeypatch.setenv("XDG_CACHE_HOME", "/other")
    assert cache_root() == Path("/other/specdec-bench")
    monkeypatch.setenv("SPECDEC_CACHE", "/mine")
    assert cache_root() == Path("/mine")


def test_a_package_that_is_not_there_says_how_to_install_it_and_nothing_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    says = "the package no_such_package is not installed; pip install 'specdec-bench[extra-name]'"
    assert absent("no_such_package", "extra-name") == says
    monkeypatch.setitem(sys.modules, "no_such_package", SimpleNamespace())
    assert absent("no_such_package", "extra-name") is None
    monkeypatch.delitem(sys.modules, "this", raising=False)
    assert absent("this", "extra-name") is None, "it could be found"
    assert "this" not in sys.modules


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_a_number_of_a_peer_is_whole_and_at_least_one(value: object) -> None:
    require_whole("it")
    require_whole("it", k=1, ngram=2)
    with pytest.raises(SpecdecError) as refused:
        require_whole("it", k=1, ngram=value)
    assert str(refused.value) == f"ngram of the peer it is {value!r}; expected a whole number, 1 or more"


def test_a_peer_refuses_the_parameters_that_it_does_not_know() -> None:
    usual = SamplingParams(max_new_tokens=3, eos=(5,), seed=7)
    refuse_params("it", usual, ())
    refuse_params("it", SamplingParams(temperature=0.5, top_k=3), ("temperature", "top_k"))
    refuse_params("it", SamplingParams(top_p=1.0, min_p=0.0), ())
    with pytest.raises(SpecdecError) as refused:
        refuse_params("it", SamplingParams(top_k=3, temperature=0.5, stop=("a",), max_new_tokens=3), ("top_k", "top_p"))
    assert str(refused.value) == (
        "the peer it cannot decode with stop, temperature; it takes top_k, top_p. Leave the option out, or the peer "
        "(--specdec-peer)"
    )


def test_torch_has_one_thread_where_that_is_wanted_and_as_many_as_before_afterwards() -> None:
    usual = torch.get_num_threads()
    try:
        for threads in (3, 2):
            torch.set_num_threads(threads)
            assert kernel_threads() == threads
            with one_torch_thread(wanted=False):
                assert (torch.get_num_threads(), kernel_threads()) == (threads, threads)
            for _ in range(2):
                with one_torch_thread():
                    assert (torch.get_num_threads(), kernel_threads()) == (1, threads)
                    with one_torch_thread(True):
                        assert (torch.get_num_threads(), kernel_threads()) == (1, threads)
                    with one_torch_thread(False):
                        assert (torch.get_num_threads(), kernel_threads()) == (1, threads)
                    assert (torch.get_num_threads(), kernel_threads()) == (1, threads)
                assert (torch.get_num_threads(), kernel_threads()) == (threads, threads)
    finally:
        torch.set_num_threads(usual)


def noting(name: str, taken: Callable[[str], bool], noted: list[Any], **more: Any) -> Any:
    """A backend that takes what ``taken`` says; each op returns the backend's name."""

    def takes(op: str, *deciding: Any) -> bool:
        noted.append((name, op, deciding))
        return taken(op)

    ops = {op: lambda *given: (name, given) for op in (*OPS, "linear_of_slots", "sample_of_slots")}
    return SimpleNamespace(**ops, name=name, priority=7, takes=takes, devices=("cpu",), pack=lambda w: w, **more)


DECIDING: dict[str, tuple[int, ...]] = {
    **{"process": (0,), "sample": (0,), "noise_keys": (1,), "accept": (0,), "verify_prefix": (1,)},
    **{"rejection_sample": (0,), "block_sample": (0,), "tree_sample": (0,), "emit": (2,), "kv_plan": (1,)},
    **{"kv_append": (0, 2), "kv_compact": (0,), "tree_attention": (0, 1), "linear": (0, 1), "rms_norm": (0,)},
    **{"rotary": (0, 2), "silu_mul": (0,)},
}
"""Which arguments of each op decide who runs it."""
GIVEN = {"kv_append": 5, "kv_compact": 4, "tree_attention": 6, "linear": 3, "rms_norm": 4, "rotary": 4, "kv_plan": 7}
SIZES = {op: GIVEN.get(op, 5) for op in DECIDING} | {
    **{"process": 3, "sample": 2, "noise_keys": 3, "accept": 2, "verify_prefix": 2, "emit": 4, "silu_mul": 2},
}
ADDED = {"linear": (False,), "tree_attention": (None, None)}
"""The defaults of arguments that are left out."""


def test_each_op_goes_to_the_first_backend_that_takes_its_deciding_arguments_and_is_counted() -> None:
    assert set(OPS) == {*DECIDING, "decoder_layers"}
    noted: list[Any] = []
    second = noting("second", lambda op: True, noted)
    for first_takes in (True, False):
        ops = Ops([noting("first", lambda op, takes=first_takes: takes, noted), second])  # type: ignore[misc]
        runs = "first" if first_takes else "second"
        for op, places in DECIDING.items():
            noted.clear()
            given: Any = tuple(f"{op} {place}" for place in range(SIZES[op]))
            if op in ("block_sample", "tree_sample") and not first_takes:
                continue
            for count in (1, 2):
                before = ops.ran()
                found = getattr(ops, op)(*given)
                whole = (*given, *ADDED.get(op, ()))
                assert found == (None if op in ("kv_append", "kv_compact") else (runs, whole))
                assert ops.ran() - before == {(op, runs): 1}
                assert ops.ran()[op, runs] == count
            deciding = tuple(given[place] for place in places)
            asked = [("first", op, deciding)] if first_takes else [(name, op, deciding) for name in ("first", "second")]
            assert noted == asked * 2
            assert ops.pick(op, *deciding).name == runs
        before, given = ops.ran(), ("x", "weight", None, "width", True)
        assert ops.linear_of_slots(*given) == (runs, given)
        assert ops.sample_of_slots(*given[:3]) == (runs, given[:3])
        assert ops.ran() - before == {("linear", runs): 1, ("sample", runs): 1}


def test_whole_ops_are_made_of_the_chains_ops_where_no_backend_but_the_last_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[Any] = []
    last = noting("last", lambda op: True, noted)
    layers: Any = [SimpleNamespace(qkv="qkv"), SimpleNamespace(qkv="other")]
    composed: list[Any] = []

    def composing(name: str) -> Callable[..., str]:
        def compose(*given: Any) -> str:
            composed.append((name, *given))
            return name

        return compose

    for name in ("block_verdict", "tree_verdict"):
        monkeypatch.setattr(acceptance, name, composing(name))
    monkeypatch.setattr("specdec.ops.decode", composing("decode"))
    for takes in (True, False):
        ops = Ops([noting("first", lambda op, takes=takes: takes, noted), last])  # type: ignore[misc]
        for op, name, given, deciding in (
            ("block_sample", "block_verdict", ("d", "w", "a", "r", "b"), ("d",)),
            ("tree_sample", "tree_verdict", ("d", "w", "a", "r", "b"), ("d",)),
            ("decoder_layers", "decode", ("x", layers, "turn", "at"), ("x", "qkv")),
            ("decoder_layers", "decode", ("x", layers[:1], "turn", "at"), ("x", "qkv")),
        ):
            noted.clear()
            composed.clear()
            before = ops.ran()
            found = getattr(ops, op)(*given)
            assert noted == [("first", op, deciding)]
            if takes:
                assert (found, composed, ops.ran() - before) == (("first", given), [], {(op, "first"): 1})
            else:
                assert (found, composed, ops.ran() - before) == (name, [(name, ops, *given)], {})
        if takes:
            assert ops.ran()["decoder_layers", "first"] == 2


def test_counts_are_a_copy_calls_of_a_replay_are_added_and_the_first_other_form_of_a_weight_is_taken() -> None:
    noted: list[Any] = []
    first, second, third = (noting(name, lambda op: False, noted) for name in ("first", "second", "third"))
    second.pack, third.pack = (lambda weight: "packed"), (lambda weight: "packed otherwise")
    unfit = noting("unfit", lambda op: True, noted)
    unfit.devices = ("cuda", "mps")
    ops = Ops([first, second, third], [(unfit, "no GPU"), (first, "too old")])
    assert (ops.name, ops.priority, ops.chain) == ("first", 7, (first, second, third))
    weight: Any = "weight"
    assert ops.pack(weight) == "packed"
    assert Ops([first]).pack(weight) == "weight"
    assert ops.absent("cpu") == ["first: too old"]
    assert ops.absent("mps") == ["unfit: no GPU"]
    ops.ran()["sample", "first"] = 5
    assert ops.ran() == Counter()
    ops.add(Counter({("sample", "first"): 3}))
    ops.add(Counter({("sample", "first"): 4}))
    assert ops.ran() == {("sample", "first"): 7}
    with pytest.raises(AssertionError, match="^no backend takes accept; the last of a chain must take everything$"):
        ops.accept(weight, weight)
    assert ops.takes("sample") is True


def llama_layer(joins: bool) -> DecoderWeights:
    """A layer of two heads of queries and one of keys, of four numbers each, over inputs of six."""
    dice = torch.Generator().manual_seed(3)

    def some(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=dice)

    return DecoderWeights(
        *(some(6), 1e-5, some(16, 6), some(16), some(6, 8), some(6), some(6), 1e-3),
        *(some(10, 6), some(10), some(6, 5), some(6)),
        norm_offset=0.5,
        heads=2,
        heads_kv=1,
        head_dim=4,
        scaling=0.3,
        join_out=(lambda part: part * 2) if joins else None,
        join_down=(lambda part: part * 3) if joins else None,
    )


@pytest.mark.parametrize("joins", [False, True])
def test_a_layer_is_the_sum_that_llama_describes(joins: bool) -> None:
    """Over three cells, of which the last two are written by a window of two tokens."""
    layer, ops = llama_layer(joins), registry().backend("reference")
    dice = torch.Generator().manual_seed(5)
    x = torch.randn(1, 2, 6, generator=dice)
    cos, sin = torch.randn(1, 2, 4, generator=dice), torch.randn(1, 2, 4, generator=dice)
    keys, values = torch.randn(1, 1, 5, 4, generator=dice), torch.randn(1, 1, 5, 4, generator=dice)
    before = keys.clone(), values.clone()
    mask = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]])[None, None]
    found = decode(ops, x, [layer], (cos, sin), [Cells(keys, values, torch.tensor([[1, 2]]), mask)])

    def norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rows / torch.sqrt((rows * rows).mean(-1, keepdim=True) + eps) * (0.5 + weight)

    def turned(row: torch.Tensor, place: int) -> torch.Tensor:
        half = torch.cat([-row[2:], row[:2]])
        return row * cos[0, place] + half * sin[0, place]

    weights: Any = layer
    product = norm(x[0], layer.norm_before, 1e-5) @ weights.qkv.T + weights.qkv_bias
    for place in range(2):
        before[0][0, 0, 1 + place] = turned(product[place, 8:12], place)
        before[1][0, 0, 1 + place] = product[place, 12:16]
    torch.testing.assert_close(keys, before[0])
    torch.testing.assert_close(values, before[1])
    rows = []
    for place in range(2):
        heads = []
        for head in range(2):
            query = turned(product[place, 4 * head : 4 * head + 4], place)
            seen = keys[0, 0, : 2 + place]
            share = torch.softmax(seen @ query * 0.3, dim=0)
            heads.append(share @ values[0, 0, : 2 + place])
        rows.append(torch.cat(heads))
    out = torch.stack(rows) @ weights.out.T + weights.out_bias
    middle = x[0] + out * (2 if joins else 1)
    both = norm(middle, layer.norm_after, 1e-3) @ weights.gate_up.T + weights.gate_up_bias
    gate, up = both[:, :5], both[:, 5:]
    down = (gate * torch.sigmoid(gate) * up) @ weights.down.T + weights.down_bias
    torch.testing.assert_close(found[0], middle + down * (3 if joins else 1), rtol=1e-4, atol=1e-4)


def test_all_four_matrices_of_a_layer_are_packed_and_nothing_else() -> None:
    layer = llama_layer(True)
    packing: Any = SimpleNamespace(pack=lambda weight: ("packed", weight))
    packed = layer.packed(packing)
    for name, value in vars(layer).items():
        kept = getattr(packed, name)
        if name in ("qkv", "out", "gate_up", "down"):
            assert kept[0] == "packed"
            assert kept[1] is value
        else:
            assert kept is value, name


def test_products_are_rounded_to_their_inputs_dtype_unless_they_are_asked_for_wide() -> None:
    for kind in (Backend, Ops):
        assert inspect.signature(kind.linear).parameters["wide"].default is False
