"""What a rank learns of the others' failures, with torch's own store within one process."""

import itertools
import json
import threading

import pytest
import torch.distributed as dist

from engine_core.errors import RankError
from engine_core.parallel import failures
from engine_core.parallel.board import Board, Place, in_words
from engine_core.parallel.failures import Failures

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
TIMED_OUT = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv")


@pytest.fixture
def boards():
    store = dist.HashStore()
    return [Board(store, rank, 2) for rank in range(2)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("_LOOK_S", "_LEAVE_S", "_CLOSE_S"):
        monkeypatch.setattr(failures, name, 0.05)


def test_the_first_failure_is_the_one_that_all_learn_of(boards):
    boards[1].tell("rank 1 failed: ValueError: first", "", 0.0)
    boards[0].tell("rank 0 failed: ValueError: second", "", 0.0)
    assert [board.told().what for board in boards] == ["rank 1 failed: ValueError: first"] * 2


def test_a_store_that_is_gone_tells_nothing():
    class Gone:
        def check(self, *_):
            raise dist.DistNetworkError("Broken pipe")

        compare_set = get = check

    board = Board(Gone(), 0, 2)
    board.tell("rank 0 failed", "", 0.0)
    assert board.told() is None
    assert not board.is_asked()


@pytest.mark.parametrize(
    ("places", "error", "expected"),
    [
        ([Place("a.py:1 in f", waits=True), None], CLOSED, "rank 1 is gone"),
        ([Place("a.py:1 in f", waits=True), None, None], TIMED_OUT, "ranks 1, 2 are gone"),
        ([None, None], CLOSED, "the store that the ranks share is gone, with the process that holds it"),
        (
            [Place("a.py:1 in f", waits=True), Place("b.py:2 in g", waits=False)],
            TIMED_OUT,
            "rank 1 is late by more than 10m: rank 1 is at b.py:2 in g",
        ),
        (
            [Place("a.py:1 in f", waits=True), Place("b.py:2 in g", waits=True)],
            TIMED_OUT,
            "the ranks waited 10m for different messages: rank 0 is at a.py:1 in f, rank 1 is at b.py:2 in g",
        ),
    ],
)
def test_who_is_to_blame_follows_from_where_the_ranks_are(places, error, expected):
    assert in_words(places, 0, "10m", error) == expected


def test_a_failure_is_told_and_recorded_and_the_group_left(boards, tmp_path, monkeypatch):
    record, left = tmp_path / "error.json", []
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(record))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    own = Failures(0, boards[0], lambda: left.append(True), "10m")
    error = ValueError("boom")
    clock = itertools.count(100.8, 0.4)  # each look at it is in another second
    monkeypatch.setattr(failures.time, "time", lambda: next(clock))
    assert own.ends_with(error) is error
    assert own.ends_with(error) is error  # from the loop, then from the Trainer
    own.close()
    assert left == [True]
    assert boards[1].told().what == "rank 0 failed: ValueError: boom"
    written = json.loads(record.read_text())["message"]
    assert written["message"] == "ValueError: boom"
    # What the others record is a second later than what they were told, and torchrun shows the earliest.
    assert written["extraInfo"]["timestamp"] == str(int(boards[1].told().at))


def test_an_error_before_the_group_is_joined_is_recorded_for_torchruns_summary(tmp_path, monkeypatch):
    record = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(record))
    monkeypatch.setattr(failures, "_of_group", None)
    error = ValueError("boom")
    assert failures.ends_with(error) is error
    assert json.loads(record.read_text())["message"]["message"] == "ValueError: boom"


def test_an_error_of_a_collective_is_the_failure_of_another_rank(boards):
    own = Failures(0, boards[0], lambda: None, "10m")
    boards[1].tell("rank 1 failed: ValueError: boom", "", 0.0)

    def communicate():
        raise CLOSED

    with pytest.raises(RankError, match=r"^rank 0 ends because rank 1 failed: ValueError: boom$"):
        own.guard(communicate)
    own.close()


def test_a_process_whose_main_thread_does_not_hear_of_it_is_ended(boards, capfd):
    codes, ended = [], threading.Event()
    own = Failures(0, boards[0], lambda: None, "10m", end=lambda code: (codes.append(code), ended.set()))
    boards[1].tell("rank 1 failed: ValueError: boom", "", 0.0)
    assert ended.wait(10)
    own.close()
    assert codes == [1]
    told = capfd.readouterr().err
    assert "RankError: rank 0 ends because rank 1 failed: ValueError: boom" in told
    assert "assert ended.wait(10)" in told  # where it was


def test_a_rank_that_fails_itself_may_take_its_time_to_close(boards, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    codes = []
    own = Failures(0, boards[0], lambda: None, "10m", end=codes.append)
    own.ends_with(ValueError("boom"))
    own._thread.join(10)
    assert not own._thread.is_alive()
    assert codes == []


def test_a_rank_that_is_asked_says_where_it_is(boards):
    own, places, answered = Failures(1, boards[1], lambda: None, "10m"), [], threading.Event()

    def ask():
        boards[0].answer(Place("", waits=True))
        places.extend(boards[0].ask())
        answered.set()

    threading.Thread(target=ask).start()
    answered.wait(10)
    own.close()
    assert not places[1].waits
    assert places[1].name.startswith(f"{__file__}:")
