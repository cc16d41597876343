"""Pins of test_endpoints_bodies.py: tests that read what is private."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec_plugins.endpoints import server_metrics
from specdec_plugins.endpoints.server_metrics import Speculation


@pytest.mark.parametrize(
    ("said", "notes"),
    [
        (Speculation("vllm body", "request", 4, 3, 3), ()),
        (Speculation("vllm body", "request", proposed=4), ()),
        (Speculation("vllm body", "request", accepted=4), ()),
        (Speculation("vllm body", "request", histogram=(1, 3)), ()),
        (Speculation("vllm body", "request", 4, histogram=(1, 3)), ()),
        (Speculation("vllm body", "request", 4, 9, 4, histogram=(1, 2, 1)), ()),
        (Speculation("vllm page", "request", 4, 9, 4, (3, 1)), ()),
        (Speculation("vllm page", "request", 4, 9, 4, (3,)), ("3 accepted by position, 4 in all",)),
        (Speculation("vllm body", "request", 3, 9, 1, said_rate=0.1112, said_length=1.3332), ()),
        (
            Speculation("vllm body", "request", 3, 9, 1, said_rate=0.112, said_length=1.335, notes=("first",)),
            (
                "first",
                "the server's acceptance rate is 0.112; its counts make 0.111111",
                "the server's mean acceptance length is 1.335; its counts make 1.33333",
            ),
        ),
        (
            Speculation("vllm body", "request", 3, 9, 1, said_length=1.5),
            ("the server's mean acceptance length is 1.5; its counts make 1.33333",),
        ),
        (Speculation("vllm body", "request", 0, 0, 0, said_rate=0.5, said_length=1.5), ()),
        (Speculation("vllm body", "request", said_rate=0.5, said_length=1.5), ()),
        # SGLang's own length has the prefill's token among those of the steps; its rate has not.
        (Speculation("sglang body", "request", 3, 9, 4, emitted=8, said_length=2.6667), ()),
        (Speculation("sglang body", "request", 3, 9, 4, emitted=8, said_length=2.3333), ()),
        (
            Speculation("vllm body", "request", 3, 9, 4, emitted=8, said_length=2.6667),
            ("the server's mean acceptance length is 2.6667; its counts make 2.33333",),
        ),
        (
            Speculation("sglang body", "request", 4, 8, 2, emitted=2, said_rate=0.5),
            ("the server's acceptance rate is 0.5; its counts make 0.25",),
        ),
    ],
)
def test_a_servers_means_are_compared_with_its_counts_to_a_thousandth(
    said: Speculation, notes: tuple[str, ...]
) -> None:
    assert server_metrics._checked(said) == replace(said, notes=notes)
