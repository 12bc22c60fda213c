"""A step on several processes sends few and short messages, which never wait for a device."""

from pathlib import Path

import pytest

from .starting import written_by

pytestmark = [pytest.mark.ranks, pytest.mark.full]

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "ranks.py"


def test_a_step_sends_few_messages_below_1_kb():
    written = written_by(str(BENCHMARK), 2, "messages")
    sent = {what: value for what, value, _ in written if what.startswith("messages")}
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
    lengths = {what: value for what, value, _ in written if what.startswith("bytes")}
    assert lengths.pop("bytes of the longest, selective_backprop") < 10_000  # the rows that change ranks
    assert all(0 < value < 1000 for value in lengths.values())
