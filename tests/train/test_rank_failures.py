"""What a rank learns of the others' failures, with torch's own store within one process."""

import itertools
import json

import pytest
import torch.distributed as dist

from engine_core.parallel import group
from engine_core.parallel.group import Failures

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
TIMED_OUT = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("_LOOK_S", "_LEAVE_S", "_CLOSE_S"):
        monkeypatch.setattr(group, name, 0.05)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")


@pytest.fixture
def made():
    """Return what makes the failures of a rank of two; they are closed at the end."""
    store, found = dist.HashStore(), []

    def make(rank, *, leave=lambda: None, end=lambda code: None, of=store):
        found.append(Failures(of, rank, 2, "10m", leave, end))
        return found[-1]

    yield make
    for each in found:
        each.close()


def test_the_first_failure_is_the_one_that_all_learn_of(made):
    second, first = made(1), made(0)
    assert str(second.ends_with(ValueError("first"))) == "first"
    first.ends_with(ValueError("second"))
    assert {each._told().what for each in (first, second)} == {"rank 1 failed: ValueError: first"}


HERE, THERE = ["a.py:1 in f", True], ["b.py:2 in g", False]
APART = "the ranks waited 10m for different messages: rank 0 is at a.py:1 in f, rank 1 is at a.py:1 in f"


@pytest.mark.parametrize(
    ("places", "error", "expected"),
    [
        ([HERE, None], CLOSED, "rank 1 is gone"),
        ([HERE, None, None], TIMED_OUT, "ranks 1, 2 are gone"),
        ([HERE, THERE], CLOSED, f"a message between the ranks failed: {CLOSED}"),
        ([HERE, THERE], TIMED_OUT, "rank 1 is late by more than 10m: rank 1 is at b.py:2 in g"),
        ([HERE, HERE], TIMED_OUT, APART),
    ],
)
def test_who_is_to_blame_follows_from_where_the_ranks_are(places, error, expected):
    assert group._in_words(places, 0, "10m", error) == expected


def test_a_failure_is_told_and_recorded_and_the_group_left(made, tmp_path, monkeypatch):
    record, left = tmp_path / "error.json", []
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(record))
    own = made(0, leave=lambda: left.append(True))
    error = ValueError("boom")
    clock = itertools.count(100.8, 0.4)  # each look at it is in another second
    monkeypatch.setattr(group.time, "time", lambda: next(clock))
    assert own.ends_with(error) is error
    assert own.ends_with(error) is error  # from the loop, then from the Trainer
    assert left == [True]
    told = made(1)._told()
    assert told.what == "rank 0 failed: ValueError: boom"
    written = json.loads(record.read_text())["message"]
    assert written["message"] == "ValueError: boom"
    # What the others record is a second later than what they were told, and torchrun shows the earliest.
    assert written["extraInfo"]["timestamp"] == str(int(told.at))


def test_an_error_before_the_group_is_joined_is_recorded_for_torchruns_summary(tmp_path, monkeypatch):
    record = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(record))
    monkeypatch.setattr(group, "_of_groups", [])
    error = ValueError("boom")
    assert group.ends_with(error) is error
    assert json.loads(record.read_text())["message"]["message"] == "ValueError: boom"
