"""A step on several processes sends few and short messages, which never wait for a device."""

from pathlib import Path

import pytest

from .starting import written_by

pytestmark = [pytest.mark.ranks, pytest.mark.full]

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "ranks.py"


def test_a_step_sends_few_messages_below_1_kb():
    written = written_by(str(BENCHMARK), 2, "messages")
    expected = {
        **dict.fromkeys(["plain", "microbatches", "a dict of losses", "a saver"], 1),
        **dict.fromkeys(["a listener at after_train_batch", "a listener at batch_end"], 2),
        "a listener at each event": 3,
        "selective_backprop": 6,
    }
    sent = {what: value for what, value, _ in written if what.startswith("messages")}
    assert sent == {f"messages a step, {what}": number for what, number in expected.items()}
    lengths = {what: value for what, value, _ in written if what.startswith("bytes")}
    assert lengths.pop("bytes of the longest, selective_backprop") < 10_000  # the rows that change ranks
    assert all(0 < value < 1000 for value in lengths.values())
