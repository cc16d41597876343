"""A server as a row of the main job: its tokens are found, its pieces timed, and what cannot be known is refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchsuite.conformance.models.tiny import requests
from benchsuite.judge.sources import EngineSource
from benchsuite.measure.peers import PeerRunner, parse_peer
from benchsuite.run.matrix import build_matrix, endpoint_peers
from benchsuite.tests.faulty import DONE, STREAM, Fault, FaultyServer, event, plain_answer
from benchsuite.tests.our_server import Bugs, OurServer
from benchsuite.tests.rig import Make, Run, peer_runner, requested, slow_after
from specdec import Registry, Request, SamplingParams, SpecdecError, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_plugins.endpoints.named import parse_endpoints
from specdec_plugins.engines.endpoint import EndpointPeer

PROMPT = (3, 4, 5)
IDS = tuple(catalog.byte_tokenizer()("abcd")["input_ids"])


Build = Callable[..., PeerRunner]
"""The fixture ``runner_of``."""


@pytest.fixture
def runner_of(assemble: Make) -> Iterator[Build]:
    """Runners of the peer on tiny, closed at the end."""
    made: list[PeerRunner] = []
    twin = assemble().target.twin()

    def build(url: str, **options: str) -> PeerRunner:
        shown = ", ".join([f"url={url}", *(f"{name}={value}" for name, value in options.items())])
        made.append(peer_runner(f"endpoint({shown})", twin))
        return made[-1]

    yield build
    for one in made:
        one.peer.close()


def at_once(text: str = "abcd", *, usage: int | None = 4, prompt: int = 3, reason: str = "length") -> Fault:
    """An answer without log-probabilities, in one piece of JSON."""
    used = {"prompt_tokens": prompt} | ({} if usage is None else {"completion_tokens": usage})
    choice = {"index": 0, "text": text, "finish_reason": reason}
    return Fault((plain_answer("200 OK", json.dumps({"choices": [choice], "usage": used})),))


def streamed(*pieces: str, usage: int | None = 4, reason: str = "length") -> Fault:
    """The same in pieces."""
    used = {"prompt_tokens": 3} | ({} if usage is None else {"completion_tokens": usage})
    return Fault((STREAM, *map(event, pieces), event("", reason=reason, usage=used), DONE))


def script(*timed: Fault, usage: int | None = 4) -> list[Fault]:
    """What is asked of a server for a new prompt: a token, the timed answer, the names of its tokens."""
    return [at_once("a", usage=1), *timed, at_once(usage=usage)]


def bodies_of(server: FaultyServer) -> list[dict[str, object]]:
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]


ONE = [Request(0, PROMPT, SamplingParams(max_new_tokens=4))]
ENDING = [Request(0, PROMPT, SamplingParams(max_new_tokens=8, eos=(256,)))]


@pytest.mark.slow
@pytest.mark.parametrize(("draft", "k"), slow_after(1, [(None, 0), ("ngram", 4)]))
def test_a_server_of_our_engine_has_our_tokens(draft: str | None, k: int, assemble: Make, runner_of: Build) -> None:
    build = assemble()
    work = requests(count=3)
    expected = EngineSource(build.engine(None)).tokens(work)
    with OurServer(assemble().engine(draft, k=k)) as server:
        runner = runner_of(server.url)
        outcome = runner.run(work)
        assert outcome.tokens == expected
        assert [sum(count for _, count in one) for one in outcome.emissions] == [len(one) for one in expected]
        assert server.asked == 9, "each prompt for a token, timed, and for the names of its tokens"
        runner.run(work)
        assert server.asked == 12, "a known prompt is asked once"


@pytest.mark.slow
def test_an_answer_in_one_piece_has_no_decoding_speed(assemble: Make, runner_of: Build) -> None:
    with OurServer(assemble().engine(None), Bugs(one_chunk=True)) as server:
        outcome = runner_of(server.url).run(requests(count=1))
    assert len(outcome.emissions[0]) == 1
    assert outcome.decoded == 0
    assert outcome.decode_s == 0


@pytest.mark.slow
def test_a_row_has_what_the_server_counts_of_its_drafts(assemble: Make, runner_of: Build) -> None:
    """They are the server's, of this answer alone: the difference of its page before and after."""
    work = requests(count=2)
    with OurServer(assemble().engine("ngram", k=4)) as server:
        runner = runner_of(server.url)
        outcomes = [runner.run([one]) for one in work]
    engine = assemble().engine("ngram", k=4)
    for request, outcome in zip(work, outcomes, strict=True):
        EngineSource(engine).tokens([request])
        counted, said = engine.stats.counters(), outcome.counts
        assert said is not None
        assert (said.drafts, said.proposed, said.accepted) == tuple(
            counted[name] for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        )


@pytest.mark.slow
def test_a_server_of_other_weights_has_other_tokens(runner_of: Build, assemble: Make) -> None:
    """They are that server's, whatever ours would say."""
    work = requests(count=2)
    ours, theirs = (EngineSource(assemble(family).engine(None)).tokens(work) for family in ("llama", "qwen2"))
    with OurServer(assemble("qwen2").engine(None)) as server:
        outcome = runner_of(server.url).run(work)
    assert outcome.tokens == theirs
    assert outcome.tokens != ours


@pytest.mark.parametrize(
    ("pieces", "counts"),
    slow_after(
        2, [(("a", "b", "c", "d"), [1, 1, 1, 1]), (("ab", "", "cd"), [2, 2]), (("abcd",), [4]), (("a", "bcd"), [1, 3])]
    ),
)
def test_tokens_come_with_the_piece_that_completes_their_text(
    pieces: tuple[str, ...], counts: list[int], runner_of: Build
) -> None:
    with FaultyServer(script(streamed(*pieces))) as server:
        [made] = runner_of(server.url).peer.generate(ONE)
    assert made.tokens == IDS
    assert [count for _, count in made.emissions] == counts


@pytest.mark.parametrize(
    ("said", "forwards"),
    [
        (None, None),
        ({"predicted_n": 4}, None),  # a llama-server that does not speculate
        ({"predicted_n": 4, "draft_n": 4, "draft_n_accepted": 2}, 1),
        ({"predicted_n": 4, "draft_n": 4, "draft_n_accepted": 0}, 3),
        ({"predicted_n": 4, "draft_n": 9, "draft_n_accepted": 5}, 0),  # two of them behind the end
        ({"predicted_n": 4, "draft_n": 1, "draft_n_accepted": 2}, None),  # no server has counted this
    ],
)
def test_forwards_of_an_answer_are_its_tokens_without_those_that_the_server_accepted(
    said: dict[str, int] | None, forwards: int | None, runner_of: Build
) -> None:
    *pieces, done = streamed("a", "b", "c", "d").pieces
    body = [] if said is None else [b"data: " + json.dumps({"choices": [], "timings": said}).encode() + b"\n\n"]
    with FaultyServer(script(Fault((*pieces, *body, done)))) as server:
        [made] = runner_of(server.url).peer.generate(ONE)
    assert made.forwards == forwards


def test_pieces_that_are_read_at_once_are_one(runner_of: Build) -> None:
    """A whole answer in one packet was decoded in no time at all, which ended the run by a division by zero."""
    packet = Fault((b"".join(streamed("a", "b", "cd").pieces),))
    with FaultyServer(script(packet)) as server:
        outcome = runner_of(server.url).run(ONE)
    assert [count for _, count in outcome.emissions[0]] == [4]
    assert (outcome.decoded, outcome.decode_s, outcome.tpot_s, outcome.gaps_s) == (0, 0.0, [], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("logprobs", "ids"),
    [
        ({"content": [{"token": "a", "id": 7, "logprob": -1.0}, {"token": "b", "id": 9, "logprob": -1.0}]}, (7, 9)),
        ({"tokens": ["token_id:7", "token_id:9"], "token_logprobs": [-1.0, -1.0]}, (7, 9)),
        ({"tokens": ["a", "b"], "token_logprobs": [-1.0, -1.0]}, IDS[:2]),
        ({"tokens": ["ab", ""], "token_logprobs": [-1.0, -1.0]}, IDS[:2]),
    ],
    ids=["numbers", "numbers as text", "texts", "a text of two tokens"],
)
def test_log_probabilities_name_the_tokens_of_a_text(
    logprobs: dict[str, object], ids: tuple[int, ...], runner_of: Build
) -> None:
    """They are not read from the text, which has the last of these ids, unless they cannot be told apart."""
    choice = {"index": 0, "text": "ab", "finish_reason": "length", "logprobs": logprobs}
    answer = {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    named = Fault((plain_answer("200 OK", json.dumps(answer)),))
    with FaultyServer([*script(streamed("a", "b", usage=2))[:2], named]) as server:
        assert runner_of(server.url).run(ONE).tokens == [ids]


@pytest.mark.slow
@pytest.mark.parametrize("usage", [4, 5, None])
def test_the_end_token_is_there_whether_or_not_the_server_counts_it(usage: int | None, runner_of: Build) -> None:
    with FaultyServer(script(streamed("ab", "cd", usage=usage, reason="stop"), usage=usage)) as server:
        [made] = runner_of(server.url).peer.generate(ENDING)
    assert made.tokens == (*IDS, 256)
    assert [count for _, count in made.emissions] == [2, 3]


def test_a_usage_that_the_text_does_not_have_is_refused(runner_of: Build) -> None:
    with (
        FaultyServer(script(streamed("abcd", usage=3), usage=3)) as server,
        pytest.raises(SpecdecError, match=r"which is 4 of the target's tokens, and says 3: its tokens are not known"),
    ):
        runner_of(server.url).run(ONE)


def test_a_prompt_that_the_server_read_otherwise_is_refused(runner_of: Build) -> None:
    """For example with a token of its own in front."""
    with (
        FaultyServer([at_once("a", usage=1, prompt=4)]) as server,
        pytest.raises(SpecdecError, match=r"read 4 tokens, the target has 3 for the prompt; serve the target's model"),
    ):
        runner_of(server.url).run(ONE)


def test_an_answer_after_a_retry_is_not_timed(runner_of: Build) -> None:
    busy = Fault((plain_answer("429 Too Many Requests", "{}", "Retry-After: 0"),))
    with FaultyServer(script(busy, streamed("abcd"), streamed("ab", "cd"))) as server:
        [made] = runner_of(server.url).peer.generate(ONE)
        assert len(server.requests) == 5
    assert [count for _, count in made.emissions] == [2, 2], "of the answer that came at the first try"


def test_a_server_that_never_answers_at_the_first_try_is_not_timed(runner_of: Build) -> None:
    busy = Fault((plain_answer("429 Too Many Requests", "{}", "Retry-After: 0"),))
    with (
        FaultyServer(script(*[busy, streamed("abcd")] * 3)) as server,
        pytest.raises(SpecdecError, match="3 answers, none at the first try"),
    ):
        runner_of(server.url).run(ONE)


@pytest.mark.parametrize("server_name", ["vllm", "llama_cpp", "other"])
def test_no_prompt_meets_its_own_cache_where_the_server_can_be_asked(server_name: str, runner_of: Build) -> None:
    answers = [*script(streamed("abcd"))[server_name != "other" :], streamed("abcd")]
    with FaultyServer(answers) as server:
        runner = runner_of(server.url, server=server_name)
        runner.run(ONE)
        runner.run(ONE)
        bodies = bodies_of(server)
    salts = {body.get("cache_salt") for body in bodies}
    assert len(salts) == (3 if server_name == "vllm" else 1)
    assert {body.get("cache_prompt") for body in bodies} == {False if server_name == "llama_cpp" else None}
    assert ("may be in its cache" in runner.described()) == (server_name == "other")


@pytest.mark.parametrize(("server_name", "warm"), [("vllm", False), ("llama_cpp", False), ("other", True)])
def test_a_server_that_may_have_a_prompt_in_its_cache_has_no_time_to_the_first_token(
    server_name: str, warm: bool, runner_of: Build
) -> None:
    """Every other arm reads the prompt anew: 14 ms stood beside 209."""
    with FaultyServer(script(streamed("a", "bcd"))[not warm :]) as server:
        outcome = runner_of(server.url, server=server_name).run(ONE)
    assert (outcome.warm, outcome.ttft_s == []) == (warm, warm)
    assert sum(count for _, count in outcome.emissions[0]) == 4


@pytest.mark.parametrize(
    ("cached", "warm"), [({}, False), ({"cached_tokens": 0}, False), ({"cached_tokens": 2}, True), (None, False)]
)
def test_a_server_that_says_a_prompt_was_cached_is_warm_whatever_it_was_asked(
    cached: dict[str, int] | None, warm: bool, runner_of: Build
) -> None:
    """A server that is called vllm and is none, or an old one, does not know that it should pass by its cache."""
    used: dict[str, object] = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": cached}
    answer = Fault((STREAM, event("abcd"), event("", reason="length", usage=used), DONE))
    with FaultyServer([answer, at_once()]) as server:
        assert runner_of(server.url, server="vllm").run(ONE).warm is warm


def test_a_new_prompt_is_timed_before_a_server_can_learn_its_answer(runner_of: Build) -> None:
    with FaultyServer(script(streamed("abcd"))) as server:
        runner_of(server.url).run(ONE)
        assert [(body["max_tokens"], body["stream"]) for body in bodies_of(server)] == [
            (1, False),
            (4, True),
            (4, False),
        ]


def test_the_model_that_was_named_is_asked_or_else_the_servers_only_one(runner_of: Build) -> None:
    for options, asked in (({}, "m"), ({"model": "large"}, "large")):
        with FaultyServer(script(streamed("abcd"))) as server:
            runner_of(server.url, **options).run(ONE)
            assert {body["model"] for body in bodies_of(server)} == {asked}


def test_prompts_go_as_ids_or_as_text(runner_of: Build) -> None:
    for prompt, expected in (("ids", list(PROMPT)), ("text", catalog.byte_tokenizer().decode(list(PROMPT)))):
        with FaultyServer(script(streamed("abcd"))) as server:
            runner_of(server.url, prompt=prompt).run(ONE)
            assert [body["prompt"] for body in bodies_of(server)] == [expected] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoint", "the peer endpoint has no address"),
        ("endpoint(url=localhost)", r"expected http://host:port"),
        ("endpoint(url=http://localhost:1, server=vlm)", "unknown server of the peer endpoint 'vlm'; did you mean"),
        ("endpoint(url=http://localhost:1, prompt=tokens)", "unknown prompt of the peer endpoint 'tokens'"),
        ("endpoint(url='http://me:secret@localhost:1')", "the API key into the environment variable"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_before_anything_is_loaded(text: str, message: str) -> None:
    with pytest.raises(SpecdecError, match=message):
        parse_peer(text)


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer_at_first_is_closed(assemble: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop of events is left behind, of which Python would warn at its end."""
    closed: list[EndpointPeer] = []

    def closes(peer: EndpointPeer, close: Callable[[EndpointPeer], None] = EndpointPeer.close) -> None:
        closed.append(peer)
        close(peer)

    monkeypatch.setattr(EndpointPeer, "close", closes)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # a port that nobody listens at, and nobody else can take
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(SpecdecError):
            peer_runner(f"endpoint(url={url})", assemble().target.twin())
    assert len(closed) == 1


def test_parameters_that_completions_lack_are_refused(runner_of: Build) -> None:
    with FaultyServer([at_once()]) as server:
        peer = runner_of(server.url).peer
        peer.check_params(SamplingParams(temperature=0.7, top_p=0.9))
        with pytest.raises(SpecdecError, match="cannot decode with top_k"):
            peer.check_params(SamplingParams(temperature=0.7, top_k=5))


def test_endpoints_are_peers_of_every_setting() -> None:
    texts = endpoint_peers(parse_endpoints("plain=http://localhost:1, spec=http://localhost:2#m"))
    assert [parse_peer(text).text for text in texts] == texts
    arms = build_matrix(requested(endpoint="spec=http://localhost:2#m", peer="none"))
    assert {arm.peer for arm in arms if arm.peer} == {texts[1]}
    assert endpoint_peers([]) == []


@pytest.mark.slow
def test_servers_are_rows_of_the_main_table_and_compared_with_the_one_named_first(run: Run, tmp_path: Path) -> None:
    """Whichever row pytest runs first, which --failed-first and other plugins change."""
    (tmp_path / "backwards.py").write_text("def pytest_collection_modifyitems(items):\n    items.reverse()\n")
    device = torch.device("cpu")
    loaded = catalog.load("tiny", device, torch.float32, rows=1, max_length=512, seed=0)
    target = ArenaModel(loaded.model, Registry().backend("auto"))
    build = Assembly(Registry(), target, loaded.tokenizer, max_rows=1, max_length=512)
    eos = catalog.end_tokens(loaded.model)
    with (
        OurServer(build.engine(None, k=0), eos=eos) as plain,
        OurServer(build.engine("ngram", k=4), eos=eos) as spec,
    ):
        done = run(
            *("-m", "pytest", "--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny"),
            *("--specdec-endpoint", f"plain={plain.url},spec={spec.url}", "--specdec-peer", "none"),
            *("--specdec-draft", "ngram", "--specdec-prompts", "2", "--specdec-max-new-tokens", "8"),
            *("--specdec-workload", "chat", "--specdec-results", str(tmp_path / "kept"), "-p", "backwards"),
            path=str(tmp_path),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("endpoint ")]
    for name in ("plain", "spec"):
        assert sum(line.startswith(f"endpoint {name} ") for line in rows) == 5, "once in each table"
    assert sum(line.startswith("spec ") for line in done.stdout.splitlines()) == 1, "and over its own plain one"
    assert max(map(len, rows)) <= 100
    assert "own: 2/2 equal" in done.stdout
    [table] = (tmp_path / "kept").glob("*/table.md")
    compared = [line for line in table.read_text().splitlines() if "; with " in line]
    assert len(compared) == 1
    assert "| endpoint spec" in compared[0]
    assert "2/2 equal; with endpoint plain 2/2 equal" in compared[0]
    said = " ".join(done.stdout.split())
    assert "name=spec), all: its prompts may have been in its cache: it has no TTFT, and no e2e" in said
    assert f"peer endpoint spec at {spec.url}: prompts sent as token ids, prompts may be in its cache" in said
    [page] = (tmp_path / "kept").rglob("report.html")
    assert spec.url in page.read_text()


@pytest.mark.slow
def test_a_server_that_fails_in_the_middle_ends_its_own_row(run: Run) -> None:
    down = Fault((plain_answer("400 Bad Request", "out of order"),))
    with FaultyServer([down]) as server:
        done = run(
            *("-m", "pytest", "--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny"),
            *("--specdec-endpoint", f"spec={server.url}", "--specdec-peer", "none", "--specdec-draft", "ngram"),
            *("--specdec-prompts", "1", "--specdec-max-new-tokens", "4", "--specdec-workload", "chat"),
        )
    assert done.returncode == 1, done.stdout
    assert "could not be measured: refused_request: spec" in " ".join(done.stdout.split())
    assert "3 of 4 rows were measured and kept their contract" in done.stdout


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_named_before_anything_is_measured_and_fails_its_row(run: Run) -> None:
    done = run(
        *("-m", "pytest", "--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny", "-rf"),
        *("--specdec-endpoint", "spec=http://127.0.0.1:1/v1", "--specdec-workload", "chat", "--specdec-peer", "none"),
        *("--specdec-draft", "ngram", "--specdec-prompts", "1", "--specdec-max-new-tokens", "8"),
    )
    assert done.returncode == 1, done.stdout
    assert "not measured: endpoint(url=http://127.0.0.1:1, name=spec): refused: spec" in done.stdout
    assert done.stdout.index("not measured") < done.stdout.index("measured read bandwidth")
    assert "1 failed, 3 passed" in done.stdout
