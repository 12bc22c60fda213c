"""A step on several processes sends few and short messages, which never wait for a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from .starting import start

pytestmark = [pytest.mark.ranks, pytest.mark.full]

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "ranks.py"


def test_a_step_sends_few_messages_below_1_kb() -> None:
    ended = start(BENCHMARK, 2, "messages")
    assert ended.rc == 0, ended.output
    sent = {what: value for what, value, _ in ended.written if what.startswith("messages")}
    assert sent == {
        "messages a step, plain": 1,
        "messages a step, microbatches": 1,
        "messages a step, a dict of losses": 1,
        "messages a step, a saver": 1,
        "messages a step, a listener at after_train_batch": 2,
        "messages a step, a listener at batch_end": 2,
        "messages a step, a listener at each event": 3,
        "messages a step, selective_backprop": 6,
    }
    lengths = {what: value for what, value, _ in ended.written if what.startswith("bytes")}
    assert lengths.pop("bytes of the longest, selective_backprop") < 10_000  # the rows that change ranks
    assert all(0 < value < 1000 for value in lengths.values())
