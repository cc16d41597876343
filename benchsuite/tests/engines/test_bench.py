"""``engines bench``: the best K of each server is searched for, and what is left out is named and fails it."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.engines.bench import CERTIFIED, EnginesPlan, bench_engines, known_settings, tables_that_fit
from benchsuite.engines.contenders import CONTENDERS, Contender
from benchsuite.engines.search import ServerSetting, TriedSetting, best_settings, search_settings
from specdec.errors import SpecdecError

PLAIN, ONE, TWO = (Contender("llama_cpp", name) for name in ("plain", "one", "two"))


def test_the_best_setting_is_that_of_the_most_speed_and_none_where_nothing_ran() -> None:
    speeds = {2: 0.5, 4: 0.7, 8: None, 16: 0.6}
    tried = [TriedSetting(ServerSetting(ONE, k), speed) for k, speed in speeds.items()]
    assert best_settings([*tried, TriedSetting(ServerSetting(TWO))]) == [ServerSetting(ONE, 4)]
    slow, tuned = ServerSetting(TWO), ServerSetting(TWO, 4, ("speculative.ngram_mod.n_min=1",))
    both = [TriedSetting(slow, 0.1), *reversed(tried), TriedSetting(tuned, 0.2)]
    assert best_settings(both) == [tuned, ServerSetting(ONE, 4)]
    assert tuned.name == "two K = 4, n_min=1"


def test_every_engine_decodes_plainly_before_it_speculates_and_every_row_has_its_name() -> None:
    for engine in {one.engine for one in CONTENDERS}:
        first, *others = [one for one in CONTENDERS if one.engine == engine]
        assert not first.speculation
        assert all(one.speculation for one in others)
    assert len({one.name for one in CONTENDERS}) == len(CONTENDERS)


def test_each_table_has_as_many_servers_as_fit_and_the_plain_one_of_each() -> None:
    big, small = ([ServerSetting(Contender(e, f"{e}{n}", n * "x")) for n in range(4)] for e in ("vllm", "llama_cpp"))
    every = [*big, *small]
    for gigabytes in (0.0, 7.0, 9.0, 15.0, 100.0):
        tables = tables_that_fit(every, gigabytes)
        rows = [one for table in tables for one in table if one.contender.speculation]
        assert rows == [one for one in every if one.contender.speculation], "each once, in order"
        for table in tables:
            assert {one.contender.engine for one in table} == {
                one.contender.engine for one in table if not one.contender.speculation
            }
    assert len(tables_that_fit(every, 100.0)) == 1
    assert [len(table) for table in tables_that_fit(big, 7.0)] == [2, 2, 2]
    assert [len(table) for table in tables_that_fit(big, 10.6)] == [3, 2]


def test_settings_are_read_as_a_search_writes_them_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"llama simple": [4, ["a.b=3"]], "vllm ngram": [null, []]}')
    assert known_settings(file) == {"llama simple": (4, ("a.b=3",)), "vllm ngram": (None, ())}
    for text in ("[]", '{"a": 4}', '{"a": ["x", []]}', "{", '{"a": [1, 2]}'):
        file.write_text(text)
        with pytest.raises(SpecdecError, match=r"--settings .*expected the engines-settings\.json"):
            known_settings(file)


def free_ports(count: int) -> int:
    """The first of so many ports that nothing listens at."""
    for first in range(20000 + os.getpid() % 10000, 32000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")


def our_command(setting: ServerSetting, port: int) -> str:
    """Our own server over the tiny model in the place of an engine's; for a draft of its own a command that ends."""
    if setting.contender.drafts:
        return f"{sys.executable} -c 'raise SystemExit(3)'"
    draft = f" --draft ngram --k {setting.k or 4}" if setting.contender.speculation else ""
    return f"{sys.executable} -m benchsuite.tests.our_server --target tiny --port {port}{draft}"


@pytest.mark.slow
def test_each_k_is_measured_beside_the_plain_server_and_one_that_does_not_start_says_why() -> None:
    speculates, broken = (
        Contender("llama_cpp", "fast", "ngram-simple", (2, 4)),
        Contender("llama_cpp", "d", "d", (), True),
    )
    said: list[str] = []
    prompts = [("chat", f"Say {word}") for word in ("one", "two")]
    found = search_settings([PLAIN, speculates, broken], our_command, prompts, 6, free_ports(2), said.append)
    cases = [ServerSetting(speculates, 2), ServerSetting(speculates, 4), ServerSetting(broken)]
    assert [one.setting for one in found] == cases
    assert all(one.speed and one.speed > 0 for one in found[:2])
    assert found[2].speed is None
    assert "ended with 3" in found[2].why
    assert [line.partition(":")[0] for line in said] == ["fast K = 2", "fast K = 4", "d"]


@pytest.mark.slow
def test_servers_are_rows_over_their_own_plain_one_and_certified_in_every_way(tmp_path: Path) -> None:
    ran: list[Sequence[str]] = []
    said: list[str] = []

    def run(command: Sequence[str]) -> int:
        ran.append(command)
        return 0

    mine = (PLAIN, Contender("llama_cpp", "fast", "ngram-simple"), Contender("llama_cpp", "a draft", "d", (), True))
    plan = EnginesPlan(("llama_cpp",), "tiny", tmp_path, tmp_path, sys.executable, ("chat",), 1, 4, known={})
    plan = replace(plan, contenders=mine, port=free_ports(3))
    assert bench_engines(plan, our_command, said.append, run) == 1, "what drafts by a model did not start"
    table, *certificates = ran
    text = shlex.join(table)
    assert "name=plain, server=llama_cpp)" in text
    assert "name=fast, server=llama_cpp, plain=plain)" in text
    assert "a-draft" not in text
    assert any(line.startswith("a draft: left out: the server of a-draft ended with 3") for line in said), said
    assert len(certificates) == len(CERTIFIED)
    for command, (how, options) in zip(certificates, CERTIFIED, strict=True):
        assert set(options) <= set(command), how
        assert command[command.index("--specdec-endpoint") + 1].startswith("plain=http://127.0.0.1:")
