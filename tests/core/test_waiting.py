"""What waits to be sent: together, in order, with a bound, and not too often to a place that fails."""

import time
import warnings

import pytest

from engine_core import Engine, Logger, State
from engine_core.callback import continues_itself
from engine_core.errors import DestinationWarning
from engine_core.loggers import Waiting, orders, values

from .parts import made


class Place:
    """Takes what is sent unless it fails."""

    def __init__(self, **settings):
        self.sent, self.fails, self.asked = [], False, 0
        self.waiting = Waiting("Place", self.take, **{"interval_s": 3600, **settings})

    def take(self, items):
        self.asked += 1
        if self.fails:
            raise ConnectionError("no route")
        self.sent.append(items)


def test_what_waits_is_sent_when_there_is_enough_or_after_a_while_and_not_before_it_is_open():
    place = Place(at_once=3)
    for item in "abcd":
        place.waiting.add(item)
    assert place.sent == []
    place.waiting.open("12")
    place.waiting.add("e")
    assert place.sent == [["1", "2", "a"], ["b", "c", "d"], ["e"]]
    soon = Place(interval_s=0)
    soon.waiting.open()
    soon.waiting.add("a", "b")
    assert soon.sent == [["a", "b"]]


def test_what_could_not_be_sent_waits_and_keeps_its_order():
    place = Place(at_once=2)
    place.waiting.open()
    place.fails = True
    with pytest.raises(ConnectionError):
        place.waiting.add("a", "b", "c")
    place.waiting.add("d")  # not tried again at once
    assert (place.asked, place.waiting.kept(), place.asked) == (1, ["a", "b", "c", "d"], 1)
    place.fails = False
    place.waiting.flush()
    assert place.sent == [["a", "b"], ["c", "d"]]


def test_a_place_that_hangs_is_asked_the_more_seldom(monkeypatch):
    now_s, asked = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])

    def hang(items):
        now_s[0] += 60
        asked.append(items)
        raise TimeoutError

    slow = Waiting("Place", hang, interval_s=1)
    slow.open()
    slow.add("a")
    with pytest.raises(TimeoutError):
        slow.flush()
    for _ in range(590):
        now_s[0] += 1
        slow.add("a")
        slow.kept()
    assert len(asked) == 1
    now_s[0] += 20
    with pytest.raises(TimeoutError):
        slow.add("a")


def test_of_too_much_the_oldest_are_dropped_and_both_is_told(monkeypatch):
    monkeypatch.setattr(values, "MOST_WAITING", 10)
    place = Place()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        place.waiting.add(*range(8))
        place.waiting.add("file", weight=5)
        place.waiting.add(8, 9)
        assert place.waiting.kept() == [5, 6, 7, "file", 8, 9]
        place.waiting.close()
    assert [str(warning.message) for warning in caught] == [
        "logger destination Place: more than 10 values wait to be sent, and the oldest are dropped",
        "logger destination Place: 11 entries are lost, as no fit began",
    ]


def test_what_is_left_at_the_end_is_sent_or_told():
    place = Place()
    place.waiting.open()
    place.waiting.add("a")
    place.waiting.close()
    assert place.sent == [["a"]]
    place.waiting.open()
    place.waiting.add("b")
    place.fails = True
    with pytest.warns(DestinationWarning, match="logger destination Place: 1 entry is lost, as nothing could be sent"):
        place.waiting.close()
    assert place.waiting.kept() == []


def at_batch_end(class_name, **metadata):
    return made(class_name, events=("batch_end",), **metadata)


def test_a_logger_explains_the_order_of_its_engine_and_holds_no_engine():
    logger = Logger()
    assert (logger.explain("batch_end"), orders(logger)) == ([], {})
    engine = Engine(State(algorithms=[at_batch_end("Late"), at_batch_end("Early", before=("late",))]), logger)
    assert logger.explain("batch_end") == engine.explain("batch_end")
    assert orders(logger) == {
        "batch_end": "1. Early: before Late: declared by Early (before='late')\n"
        "2. Late: after Early: declared by Early (before='late')"
    }
    del engine
    assert orders(logger) == {}


def test_a_run_continues_itself_unless_its_savers_have_another_folder(tmp_path):
    class Saver:
        checkpoint_folder = tmp_path / "mine"

    def loaded(path, *savers):
        return continues_itself(State(callbacks=savers, loaded_from=path))

    assert loaded(None, Saver()) and loaded(tmp_path / "other" / "ep1-ba1")
    assert loaded(tmp_path / "x" / ".." / "mine" / "ep1-ba1", Saver())
    assert not loaded(tmp_path / "other" / "ep1-ba1", Saver())
