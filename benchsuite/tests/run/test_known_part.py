"""The part of a request that the installed plugins know: a base that is measured beside a checkout may lack names."""

from __future__ import annotations

from typing import Any

import pytest

from benchsuite.gate.launcher import OTHER
from benchsuite.run.matrix import build_matrix, known_part
from benchsuite.tests.rig import Run, requested

RUN = {"target": "tiny", "workload": "chat"}


def known_rows(**given: str) -> list[str]:
    """The strategies and peers of the known part of a request, without plain decoding."""
    arms = build_matrix(known_part(requested(**RUN, **given)))
    return [arm.strategy for arm in arms if arm.draft or arm.peer]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (
            {"draft": "ngram, new, ngram(n_max=3), ngram(newer=1)"},
            ["ngram/match/fixed/4", "ngram(n_max=3)/match/fixed/4"],
        ),
        ({"draft": "new"}, []),
        ({"draft": "ngram", "policy": "new"}, []),
        ({"draft": "ngram", "controller": "new,fixed,goodput(new=1)"}, ["ngram/match/fixed/4"]),
        (
            {"draft": "", "arm": "mine=ngram/match/fixed/2, new, ngram/new, ngram/match/new, suffix(x=1)"},
            ["ngram/match/fixed/2"],
        ),
        ({"arm": "new"}, []),
        (
            {"draft": "ngram", "peer": "transformers,new,transformers_prompt_lookup(new=1)"},
            ["ngram/match/fixed/4", "transformers"],
        ),
        ({"draft": "new", "peer": "none"}, []),
    ],
)
def test_what_no_plugin_has_or_takes_is_left_out_alone(given: dict[str, str], left: list[str]) -> None:
    own: dict[str, Any] = {name: text for name, text in given.items() if text}
    assert known_rows(**{"peer": "none", **own}) == left
    names = {arm.label for arm in build_matrix(known_part(requested(**RUN, **own)))}
    assert {"plain", "plain again"} <= names, "plain decoding needs no name"
    assert ("mine" in names) == ("mine=" in given.get("arm", ""))


@pytest.mark.slow
@pytest.mark.parametrize("other", ["/elsewhere", ""])
def test_a_launch_of_the_base_alone_leaves_out_what_it_lacks(run: Run, other: str) -> None:
    """Any other run refuses it, with the choices."""
    given = ("--specdec-target=tiny", "--specdec-workload=chat", "--specdec-draft=ngram,newer", "--specdec-peer=none")
    done = run(
        "-m", "pytest", "--pyargs", "benchsuite.test_speculation", *given, "--collect-only", "-q", **{OTHER: other}
    )
    if other:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "tiny-chat-ngram-match-k4]" in done.stdout
        assert "newer" not in done.stdout
    else:
        assert done.returncode == 4
        assert "unknown draft 'newer'" in done.stdout + done.stderr
