"""Outputs of made-up servers compared: what they are asked, what is judged, and the numbers and lines that follow.

Every sign is a token. After a text of n signs the n-th letter is the likeliest, 3 nats before Y and 8 before Z, unless
``gaps`` says otherwise of that text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import comb, log
from random import Random
from string import ascii_lowercase
from typing import Any

import pytest

from benchsuite.benches.serving.asked import Read
from benchsuite.benches.serving.certificate import (
    Certificate,
    GreedyEvidence,
    PlainOfItsOwn,
    SampledEvidence,
    UnsteadyPlain,
)
from benchsuite.benches.serving.certified import certify
from benchsuite.benches.serving.echoes import echoed
from benchsuite.benches.serving.timed_texts import AskedFor
from benchsuite.judge.transforms import read_tokens
from benchsuite.tests.made_up_servers import MadeUpServer, MadeUpServers, made_up_reply
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token

BASE, SPEC = Endpoint("base", "http://x"), Endpoint("spec", "http://y")
greedy_of_six = partial(GreedyEvidence, asked_for=AskedFor(6, 4))
sampled_of_six = partial(SampledEvidence, asked_for=AskedFor(6, 4))
"""Evidence of answers of at most six tokens to four prompts, of which none was timed."""

PROMPTS = ("p:", "q:", "r:", "s:")

Top = tuple[tuple[str, float], ...]


def likeliest(text: str) -> str:
    return ascii_lowercase[len(text) % 26]


def top_of(text: str, gaps: Mapping[str, float], first: float = -0.1) -> Top:
    """The list after a text."""
    return (likeliest(text), first), ("Y", first - gaps.get(text, 3.0)), ("Z", first - 8.0)


def read_after(prompt: str, said: str, gaps: Mapping[str, float], named: bool = True) -> tuple[Token, ...]:
    """The tokens of what was said after a prompt, with their lists."""
    found = []
    for place, sign in enumerate(said):
        top = top_of(prompt + said[:place], gaps)
        found.append(Token(sign, ord(sign) if named else None, dict(top).get(sign, -12.0), top))
    return tuple(found)


def as_text(prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def speaking(
    says: Mapping[str, str] | None = None,
    *,
    gaps: Mapping[str, float] | None = None,
    silent: Sequence[str] = (),
    fails: Sequence[str] = (),
    echoes: bool = True,
    named: bool = True,
) -> MadeUpServer:
    """A server that says the likeliest sign after each text, or what ``says`` has for a prompt.

    ``silent``: prompts whose answers have no log-probabilities; ``fails``: those that it refuses; ``echoes``: it reads
    texts; ``named``: it names tokens by their numbers.
    """

    def answer(ask: Ask) -> Reply:
        prompt = as_text(ask.prompt)
        if prompt in fails or (ask.echo and not echoes):
            raise EndpointFailure("refused_request", "no")
        said = (says or {}).get(prompt)
        if said is None or ask.echo:
            said = ""
            for _ in range(ask.max_tokens):
                said += likeliest(prompt + said)
        before, whole = ("", prompt + said) if ask.echo else (prompt, said)
        tokens = () if prompt in silent else read_after(before, whole, gaps or {}, named)
        return made_up_reply(whole, tokens, len(whole))

    return MadeUpServer(answer)


def certified(
    plain: MadeUpServer,
    *others: MadeUpServer,
    prompts: Sequence[str] = PROMPTS,
    dtype: str = "float32",
    read: Read | None = None,
    **ask: Any,
) -> list[Certificate]:
    """A certificate for each of the others, which are ``spec``, ``spec1``, …"""
    names = ["base", *("spec" + (str(n) if n else "") for n in range(len(others)))]
    servers = MadeUpServers(dict(zip(names, (plain, *others), strict=True)))
    endpoints = [Endpoint(name, f"http://{name}") for name in names]
    found = certify(endpoints, prompts, Ask("", **{"max_tokens": 6, **ask}), dtype, servers.connect, read)
    assert [one.endpoint for one in found] == names[1:]
    assert not any(one.open for one in (plain, *others)), "clients are closed"
    return found


def one_in(judged: int) -> Any:
    """The N for which one changed token in N is missed by so many judged ones once in a hundred times."""
    return pytest.approx(1 / (1 - 0.01 ** (1 / judged)))


def share_of(places: int) -> Any:
    """The share of so many places that is found with 99 %."""
    return pytest.approx(1 - 0.01 ** (1 / places))


def lone_tie(seen: int) -> Any:
    """The p-value of a tie at the only near place, where plain agrees with itself to the bit at so many places."""
    shares = (0.02, 0.05, 0.1, 0.2, 0.45)
    return pytest.approx(len(shares) / sum(max(1.0, (1 + seen) * one) for one in shares))


NEAR = {"q:cd": 0.004}
OTHERWISE = {"q:": "cdYfYh", "r:": "Ydefgh"}
"""Plain says cdefgh. Y is a tie in its third place after q, and a bug in the fifth, and in the first after r."""


def test_with_echo_every_token_is_judged_and_without_it_those_up_to_a_first_difference() -> None:
    """Of four prompts: equal, a tie with a bug behind it, a bug, and a text without log-probabilities."""
    spec = speaking(OTHERWISE, gaps={"q:cd": -0.004}, silent=["s:"])
    [whole] = certified(speaking(gaps=NEAR), spec)
    assert whole.evidence == greedy_of_six(
        "plain", 4, 4, 2, tokens=3 * 6, wrong=2, ties=1, near=1, one_in=one_in(3 * 6 - 1), close=1, ties_p=lone_tie(48)
    )
    bound, *lines = whole.details
    assert bound.startswith("two tokens within 0.01 nats may change places")
    starts = ("prompt 2, token 0: plain 'c', here 'Y': bug, 3 nats", "prompt 1, token 4: plain 'g', here 'Y': bug")
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == [*starts]
    assert [line.rpartition("; ")[2] for line in lines] == ["the prompt: 'r:'", "the prompt: 'q:'", "the prompt: 'q:'"]
    assert lines[2] == "prompt 1, token 2: plain 'e', here 'Y': tie, 0.004 nats; the prompt: 'q:'"

    [first] = certified(speaking(gaps=NEAR, echoes=False), spec)
    assert first.evidence == greedy_of_six(
        "plain",
        4,
        4,
        2,
        tokens=6 + 3 + 1,
        wrong=1,
        ties=1,
        near=1,
        one_in=one_in(6 + 3 + 1 - 1),
        close=1,
        ties_p=lone_tie(24),
    )


def test_tokens_of_plains_numbers_whose_text_is_another_are_not_certified() -> None:
    """A text in which a proxy had changed a token passed before vLLM, which numbers the tokens of an answer."""
    plain, spec = speaking(), speaking()
    [found] = certified(plain, MadeUpServer(lambda ask: _written_otherwise(spec.answer(ask))))
    assert found.state == "differs, not judged"
    assert f"{len(PROMPTS)} differences not judged" in found.lines[0]


def _written_otherwise(reply: Reply) -> Reply:
    first, *rest = reply.tokens
    return replace(reply, text="#" + reply.text[1:], tokens=(replace(first, text="#"), *rest))


def test_a_text_without_log_probabilities_is_compared_as_a_text() -> None:
    """By its first sixty signs, whoever says them; where all of a server's are, its certificate is of texts alone."""
    said, shown = {"p:": "long " * 20}, repr("long " * 12)
    for plain, spec, texts in (
        (speaking(), speaking(said, silent=["p:"]), f"plain 'cdefgh', here {shown}"),
        (speaking(said, silent=["p:"]), speaking(), f"plain {shown}, here 'cdefgh'"),
    ):
        [found] = certified(plain, spec)
        assert found.state == "differs, not judged"
        assert isinstance(found.evidence, GreedyEvidence)
        assert (found.evidence.reader, found.evidence.equal, found.evidence.unjudged) == ("plain", 3, 1)
        assert found.details[1].startswith(f"prompt 0, token 0: {texts}: not judged, no list")
    for plain, spec in (
        (speaking(), speaking(OTHERWISE, silent=PROMPTS)),
        (speaking(silent=PROMPTS), speaking(OTHERWISE)),
        (speaking(silent=PROMPTS), speaking(OTHERWISE, silent=PROMPTS)),
    ):
        [alone] = certified(plain, spec)
        assert alone == Certificate(
            "spec",
            greedy_of_six("none", 4, 4, 2, unjudged=2),
            ("the texts of prompts 1, 2 are not plain's",),
        )
    [same] = certified(speaking(silent=PROMPTS), speaking(silent=PROMPTS, fails=["r:"]))
    assert same == Certificate("spec", greedy_of_six("none", 4, 3, 3, ("refused_request",)))
    [none] = certified(speaking(fails=PROMPTS), speaking())
    assert none.evidence == greedy_of_six("none", 4, 0, 0, ("refused_request",) * 4)


def test_an_empty_output_is_no_text_without_log_probabilities() -> None:
    """It ended at once: where plain goes on, its end is a bug, and not a text that nobody can judge."""
    [found] = certified(speaking(), speaking({"p:": ""}))
    assert found.state == "bug"
    assert "here '(end)'" in found.details[1]


def test_prompts_that_one_server_leaves_unanswered_are_left_out_and_counted() -> None:
    [found] = certified(speaking(fails=["p:"]), speaking(fails=["q:"]))
    assert found.evidence == greedy_of_six(
        "plain", 4, 2, 2, ("refused_request", "refused_request"), 12, one_in=one_in(12)
    )


def changing(first: Mapping[str, str], then: Mapping[str, str], after: int, **other: Any) -> MadeUpServer:
    """A server that says something else after so many answers."""
    runs = [speaking(first, **other), speaking(then, **other)]
    found = MadeUpServer(lambda ask: runs[len(found.heard) > after].answer(ask))
    return found


def test_a_plain_server_whose_second_answers_are_another_text_judges_nobody() -> None:
    for one in certified(changing({}, {"q:": "cdYfgh"}, 4), speaking(), speaking(OTHERWISE)):
        assert one.evidence == UnsteadyPlain("base")
        [line] = one.details
        assert line.startswith("prompt 1, token 2: plain 'e', here 'Y': bug")
    [tie] = certified(changing({}, {"q:": "cdYfgh"}, 4, gaps=NEAR), speaking(gaps=NEAR))
    assert tie.state == "certified", "rounding excuses its own difference"


def test_a_second_answer_that_failed_sets_no_bound_and_costs_nothing() -> None:
    steady, failing = speaking(), speaking(fails=["q:"])
    plain = MadeUpServer(lambda ask: (failing if 4 < len(plain.heard) <= 8 else steady).answer(ask))
    [found] = certified(plain, speaking())
    assert found.state == "certified"


def test_at_most_three_differences_of_a_kind_are_shown_each_with_the_end_of_its_prompt() -> None:
    prompts = [f"{n}{'-' * 80}end of {n}" for n in range(5)]
    said = dict.fromkeys(prompts, "Y")
    [found] = certified(speaking(), speaking(said), prompts=prompts, max_tokens=1)
    assert isinstance(found.evidence, GreedyEvidence)
    assert found.evidence.wrong == 5
    assert [line.rpartition("; ")[2] for line in found.details[1:]] == [
        f"the prompt: {prompt[-60:]!r}" for prompt in prompts[:3]
    ]


def test_lists_of_equal_texts_that_are_apart_are_named_with_the_furthest() -> None:
    """By 0.5 nats in the second place of the first prompt, and by 0.2 in the first place of the last."""
    apart = {"p:c": 2.5, "s:": 2.8}
    [found] = certified(speaking(), speaking(gaps=apart))
    assert found.state == "certified"
    assert found.details[1].startswith(
        "2 lists of equal texts are further apart than the bound, by up to 0.5 nats at prompt 0, token 1: "
    )
    [none] = certified(speaking(), speaking())
    assert len(none.details) == 1


def test_each_different_prompt_is_asked_once_with_lists_of_five_and_plain_twice_in_two_ways() -> None:
    plain, spec = speaking(), speaking()
    prompts = [*"abcdef", "a"]
    ask = Ask("", 6, seed=7, stop=("!",))
    certified(plain, spec, prompts=prompts, seed=7, stop=("!",))
    expected = [replace(ask, prompt=sign, seed=7 + 6 + n, logprobs=5, stream=False) for n, sign in enumerate("abcdef")]
    assert spec.asked == plain.asked[:6] == expected
    assert sorted(plain.asked[6:12], key=lambda one: str(one.prompt)) == expected
    assert (spec.most, plain.most) == (1, 4), "its batches are others the second time"
    certified(plain, spec, prompts=prompts)
    assert {one.seed for one in spec.asked[6:]} == {None}


def test_a_drawn_token_behind_a_list_of_five_is_none_of_the_likeliest() -> None:
    """It would be excused as one of plain's list, within half a nat of its likeliest."""
    top = tuple((sign, -1.0) for sign in "abcde")
    plain = MadeUpServer(lambda ask: made_up_reply("a", [Token("a", None, -1.0, (*top, ("x", -1.1)))]))
    spec = MadeUpServer(lambda ask: made_up_reply("x", [Token("x", None, -1.1, (*top, ("x", -1.1)))]))
    [found] = certified(plain, spec, prompts=["p"], dtype="unknown")
    assert found.state == "differs, not judged"
    five = "plain's list: 'a' -1.000, 'b' -1.000, 'c' -1.000, 'd' -1.000, 'e' -1.000; the other's"
    assert five in found.details[1]


@pytest.mark.parametrize(("temperature", "top_p", "fits"), [(0, 0.9, True), (1, 1, True), (2, 1, False), (1, 2, False)])
def test_outputs_are_compared_at_temperatures_0_and_1_and_sampled_ones_without_a_filter(
    temperature: float, top_p: float, fits: bool
) -> None:
    def run() -> list[Certificate]:
        return certified(speaking(), speaking(), temperature=temperature, top_p=top_p)

    if fits:
        run()
    else:
        with pytest.raises(ValueError, match=r"^got (temperature|top_p) 2; a certificate .*needs"):
            run()


def test_a_precision_that_nobody_names_has_the_least_floor_and_the_most_doubt() -> None:
    servers = MadeUpServers({"base": speaking(), "spec": speaking()})
    [found] = certify([BASE, SPEC], PROMPTS, Ask("", 6), connect=servers.connect)
    assert found.details[0].startswith("two tokens within 0.01 nats")
    assert "up to 0.5 is not judged" in found.details[0]


@pytest.mark.parametrize(("dtype", "state"), [("unknown", "differs, not judged"), ("float32", "bug")])
def test_a_server_that_takes_the_second_likeliest_token_within_half_a_nat_is_not_certified(
    dtype: str, state: str
) -> None:
    """Relaxed acceptance at 45 % of such places changed 4.9 % of all tokens and read "certified: 0 of 18 outputs are
    plain's"; plain agrees with itself to the bit."""
    dice, letters, relaxed = Random(0), "cdefghijklmnopqrstuvwx", ""
    gaps = dict[str, float]()
    for n, letter in enumerate(letters):
        close = n % 2 == 0
        for said in (letters[:n], relaxed):
            gaps["p:" + said] = 0.3 if close else 3.0
        relaxed += "Y" if close and dice.random() < 0.45 else letter
    assert relaxed != letters
    spec = speaking({"p:": relaxed}, gaps=gaps)
    [found] = certified(speaking(gaps=gaps), spec, prompts=["p:"], dtype=dtype, max_tokens=len(letters))
    assert found.state == state
    assert " judged tokens differ (" in found.lines[0]


def test_a_local_judge_leaves_half_a_nat_open_where_the_precision_is_not_known() -> None:
    gaps = {"q:c": 0.2}
    for dtype, state in (("unknown", "differs, not judged"), ("float32", "bug"), ("bfloat16", "certified")):
        [found] = certified(speaking(), speaking({"q:": "cYefgh"}), dtype=dtype, read=judging(gaps))
        assert found.state == state, dtype


def judging(gaps: Mapping[str, float], unread: Sequence[str] = (), first: float = -0.1) -> Read:
    """A local model whose lists have these gaps; it cannot read what is in ``unread``."""

    def read(ask: Ask, reply: Reply) -> tuple[Token, ...] | None:
        if reply.text in unread:
            return None
        found = read_after(str(ask.prompt), reply.text, gaps)
        return tuple(
            replace(one, logprob=(one.logprob or 0) - -0.1 + first, top=tuple((t, v + 0.1 + first) for t, v in one.top))
            for one in found
        )

    return read


def test_a_judge_excuses_what_is_as_near_to_its_likeliest_as_plains_own_tokens() -> None:
    """Plain's lie up to 0.3 nats below: another at 0.2 is excused, and one at 0.5 is not."""
    gaps = {"p:": 0.3, "q:c": 0.2, "r:cd": 0.5}
    plain, spec = speaking({"p:": "Ydefgh"}), speaking({"q:": "cYefgh", "r:": "cdYfgh"})
    for _ in range(2):
        [found] = certified(plain, spec, read=judging(gaps))
        assert found.evidence == greedy_of_six(
            "judge", 4, 4, 1, tokens=24, wrong=1, one_in=one_in(24 - 2), close=3, relaxed=share_of(1)
        )
        near, line = found.details
        assert (
            near == "a token within 0.3 nats of the judge's likeliest may be chosen: plain's own lie up to 0.3 from it"
        )
        assert line.startswith("prompt 2, token 2: plain 'e', here 'Y': bug, 0.5 nats")
        assert (plain.most, spec.most) == (1, 1)


def test_a_judge_far_from_plain_excuses_one_nat_and_accuses_beyond_plains_distance() -> None:
    """Plain's lie up to 3 nats below the judge's: at 2.5 nothing is said, at 3.5 it is a bug."""
    gaps = {"p:": 3.0, "q:": 2.5, "r:": 3.5}
    plain = speaking({"p:": "Ydefgh"})
    for prompt, wrong in (("q:", 0), ("r:", 1)):
        [found] = certified(plain, speaking({prompt: "Ydefgh"}), read=judging(gaps))
        assert isinstance(found.evidence, GreedyEvidence)
        assert found.evidence.wrong == wrong
        assert found.details[0].startswith("a token within 1 nats")
    for dtype, nats in (("float32", "0.01"), ("bfloat16", "0.5")):
        for first in (-0.1, 0.0):
            [same] = certified(speaking(), speaking(), read=judging({}, first=first), dtype=dtype)
            assert same.details == (
                f"a token within {nats} nats of the judge's likeliest may be chosen: plain's own lie up to 0 from it",
            )


def test_a_judge_says_what_it_could_not_read_and_of_whom_it_could_read_nothing() -> None:
    prompts = [f"{n}:" for n in range(5)]
    plain, spec = speaking(), speaking(dict.fromkeys(prompts[:4], "Ydefgh") | {prompts[4]: "unread"})
    [found] = certified(plain, spec, prompts=prompts, read=judging({}, ["unread"]))
    assert found.evidence == greedy_of_six(
        "judge", 5, 5, 0, tokens=24, wrong=4, unread=1, one_in=one_in(24), asked_for=AskedFor(6, 5)
    )
    assert len(found.details) == 1 + 3
    for unread, name in (
        (["cdefgh"], "base"),
        (["Ydefgh", "unread"], "spec"),
        (["cdefgh", "Ydefgh", "unread"], "base"),
    ):
        [nothing] = certified(plain, spec, prompts=prompts, read=judging({}, unread))
        unreadable = greedy_of_six("judge", 5, 5, 0, unreadable=name, asked_for=AskedFor(6, 5))
        assert nothing == Certificate("spec", unreadable)


def sampled_text(rare: int) -> str:
    """120 signs: four times so many are the second likeliest of lists of 0.7 and 0.255, and four are not listed."""
    return "Y" * 4 * rare + "zzzz" + "c" * (116 - 4 * rare)


def sampled_lists(text: str) -> tuple[Token, ...]:
    return tuple(Token(sign, None, None, (("c", log(0.7)), ("Y", log(0.255)))) for sign in text)


@pytest.mark.slow
@pytest.mark.parametrize(("rare", "lost", "state"), [(5, 0, "certified"), (5, 2, "inconclusive"), (20, 2, "bug")])
def test_p_values_of_samples_are_multiplied_by_the_ways_to_leave_so_many_out(rare: int, lost: int, state: str) -> None:
    """Of eight outputs some are not read, and one of a prompt that failed is not there."""
    said = {f"{n}:": sampled_text(rare + n) for n in range(8)}
    spec = speaking(said, fails=["7:"] if lost else [])
    unread = said["6:"] if lost else ""

    def read(ask: Ask, reply: Reply) -> tuple[Token, ...] | None:
        return None if reply.text == unread else sampled_lists(reply.text)

    plain = speaking({prompt: sampled_text(8) for prompt in said})
    [found] = certified(plain, spec, prompts=list(said), read=read, temperature=1.0)
    assert len(plain.asked) == 8, "for the control; the reader reads in its place"
    sample = read_tokens([sampled_lists(text) for text in list(said.values())[: 8 - lost]])
    ways = comb(8, lost)
    assert found.evidence == sampled_of_six(
        "the local judge",
        8,
        lost,
        120 * (8 - lost),
        min(1.0, sample.evenness * ways),
        min(1.0, sample.ratio_p * ways),
        sample.heat_found(),
        (sample.tokens_for(1.1), sample.tokens_for(1.2), 2 * sample.tokens_for_nucleus(0.95)),
        ("refused_request",) if lost else (),
        asked_for=AskedFor(6, 8),
    )
    assert found.state == state


def test_a_plain_server_that_samples_otherwise_than_it_says_is_named_and_judges_nobody() -> None:
    """A llama-server without any speculation was called a bug: it samples with filters of its own."""
    said = {f"{n}:": sampled_text(0) for n in range(8)}
    reading: Read = lambda ask, reply: sampled_lists(reply.text)  # noqa: E731
    [found] = certified(speaking(said), speaking(said), prompts=list(said), read=reading, temperature=1.0)
    assert isinstance(found.evidence, PlainOfItsOwn)
    assert found.state == "inconclusive"
    assert found.lines[0].startswith(
        "spec: INCONCLUSIVE: base itself, without a draft, samples otherwise than the local judge says, so that "
        "nothing can be compared with it"
    )
    assert "960 tokens under the local judge's lists of the likeliest" in found.lines[0]


def test_samples_are_read_by_plain_unless_a_reader_is_given() -> None:
    [found] = certified(speaking(), speaking(), temperature=1.0)
    assert isinstance(found.evidence, SampledEvidence)
    assert (found.evidence.left, found.evidence.tokens) == (0, 24)
    [none] = certified(speaking(echoes=False), speaking(), temperature=1.0)
    assert none.evidence == sampled_of_six("base", 4, 4, 0)


def test_an_answer_that_ended_at_once_is_no_output_that_could_not_be_read() -> None:
    """A sampled model of chats ends some raw prompts with nothing: seven of sixteen outputs were "missing"."""
    said = {f"{n}:": sampled_text(5 + n) if n else "" for n in range(8)}
    reading: Read = lambda ask, reply: sampled_lists(reply.text) or None  # noqa: E731
    [found] = certified(speaking(said), speaking(said), prompts=list(said), read=reading, temperature=1.0)
    assert isinstance(found.evidence, SampledEvidence)
    assert (found.evidence.left, found.evidence.tokens, found.state) == (0, 7 * 120, "certified")


def reading(server: MadeUpServer, ask: Ask, reply: Reply) -> tuple[Token, ...] | None:
    return echoed(MadeUpServers({"base": server}).connect, BASE, ask, reply)


ASKED = Ask("p:", 6, temperature=1.0, seed=3, logprobs=5, stop=("h",), stream=False)
IDS = (112, 58)
"""The numbers of the prompt's tokens."""


def said_after(prompt: str, text: str = "cYefgh", named: bool = True) -> Reply:
    return made_up_reply(text, read_after(prompt, text, {}, named))


def test_an_output_is_read_by_the_numbers_of_its_tokens_where_servers_name_them() -> None:
    """The plain server is asked for the numbers of the prompt, and then to read these with the output's."""
    plain = speaking()
    assert reading(plain, ASKED, said_after("p:")) == read_after("p:", "cYefgh", {})
    numbers = (*IDS, *map(ord, "cYefgh"))
    asked = replace(ASKED, max_tokens=1, echo=True, temperature=0.0, stop=())
    assert plain.asked == [asked, replace(asked, prompt=numbers)]
    known = speaking()
    assert reading(known, replace(ASKED, prompt=IDS), said_after("p:")) == read_after("p:", "cYefgh", {})
    assert known.asked == [replace(asked, prompt=numbers)], "whoever gave numbers is not asked for them"


def test_an_output_is_read_as_a_text_where_one_of_the_two_names_no_numbers() -> None:
    for plain, reply in (
        (speaking(), said_after("p:", named=False)),
        (speaking(named=False), said_after("p:")),
        (speaking(fails=["p:"]), said_after("p:")),
    ):
        found = reading(plain, ASKED, reply)
        assert found is not None
        assert [(one.text, one.top) for one in found] == [(one.text, one.top) for one in read_after("p:", "cYefgh", {})]
        assert plain.asked[-1].prompt == "p:cYefgh"


@pytest.mark.parametrize(("counted", "is_read"), [(None, True), (6, True), (7, True), (8, False), (5, False)])
def test_a_text_without_tokens_is_read_where_it_is_as_many_as_the_server_counted(
    counted: int | None, is_read: bool
) -> None:
    """Or one less: an end token has no text. What was timed comes without log-probabilities."""
    plain = speaking()
    found = reading(plain, ASKED, made_up_reply("cYefgh", (), counted))
    assert found == (read_after("p:", "cYefgh", {}) if is_read else None)
    assert {one.prompt for one in plain.asked} == {"p:cYefgh", "p:"}


def test_a_text_whose_prompt_is_read_as_other_tokens_before_it_is_not_read() -> None:
    """A token may reach over the end of the prompt: whose place it has is not known."""

    def answer(ask: Ask) -> Reply:
        texts = {"p:": ["p", ":", "c"], "p:cYefgh": ["p", ":c", *"Yefgh", "i"]}[str(ask.prompt)]
        return made_up_reply("".join(texts), [Token(text, None, -0.1, ((text, -0.1),)) for text in texts])

    assert reading(MadeUpServer(answer), ASKED, made_up_reply("cYefgh")) is None


def test_one_token_of_a_prompt_without_a_number_makes_it_a_text() -> None:
    def answer(ask: Ask) -> Reply:
        tokens = [replace(one, id=one.id if one.text != ":" else None) for one in read_after("", "p:cYefghi", {})]
        shown = tokens[:3] if ask.prompt == "p:" else tokens
        return made_up_reply("".join(one.text for one in shown), shown)

    plain = MadeUpServer(answer)
    assert reading(plain, ASKED, said_after("p:")) is not None
    assert [one.prompt for one in plain.asked] == ["p:", "p:cYefgh"]


@pytest.mark.parametrize(
    ("ask", "reply"),
    [
        (replace(ASKED, chat=True), said_after("p:")),
        (ASKED, made_up_reply("")),
        (replace(ASKED, chat=True), made_up_reply("cYefgh")),
        (replace(ASKED, prompt=IDS), said_after("p:", named=False)),
    ],
    ids=["a chat", "no text", "neither", "a prompt of numbers before a text"],
)
def test_an_output_that_cannot_be_sent_back_is_not_read_and_nobody_is_asked(ask: Ask, reply: Reply) -> None:
    plain = speaking()
    ids = replace(ask, prompt=ask.prompt)
    assert reading(plain, ids, reply) is None
    assert not [one for one in plain.asked if one.prompt != IDS]


@pytest.mark.parametrize(
    ("shown", "is_read"),
    [
        ("p:cYefghi", True),
        ("cYefghi", False),  # of the prompt nothing came back: whose places these are is not known
        ("p:cYeghi", False),  # another token, and fewer
        ("p:cYeggghi", False),
        ("p:cYefghij", False),
        ("hi", False),
        ("i", False),
        ("", False),
    ],
)
def test_an_echo_of_other_tokens_is_not_the_output(shown: str, is_read: bool) -> None:
    """It has the prompt, the output and one more token."""
    plain = MadeUpServer(lambda ask: made_up_reply(shown, read_after("", shown, {}, named=False)))
    found = reading(plain, ASKED, said_after("p:", named=False))
    assert (found is not None) == is_read
    assert found is None or "".join(one.text for one in found) == "cYefgh"


def test_a_server_that_does_not_echo_reads_nothing() -> None:
    assert reading(speaking(echoes=False), ASKED, said_after("p:")) is None
