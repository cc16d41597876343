"""Conversations turn by turn, ``pytest -m conversations --specdec-workload multi_turn``: no time is asserted."""

from __future__ import annotations

import pytest

from benchsuite.benches.conversations.bench import ConversationBench

pytestmark = [pytest.mark.conversations, pytest.mark.slow]


def test_conversations(specdec_conversations: ConversationBench) -> None:
    rows = specdec_conversations.measure()
    assert rows
    wrong = specdec_conversations.wrong()
    assert not wrong, "\n".join(wrong)
