"""The logger: what reaches each destination, files too, and what waits to be sent."""

import time
import warnings

import pytest

from engine_core import Engine, Logger, LoggerDestination, State, Timestamp, Traces
from engine_core.callback import continues_itself
from engine_core.errors import DestinationWarning
from engine_core.logger import MOST_FILE_BYTES
from engine_core.loggers import Waiting, numbers, orders, values
from engine_core.loggers.run_files import RunFiles
from engine_core_author import RecordingDestination

from .parts import made


def test_what_is_logged_reaches_each_destination_and_without_one_is_not_even_looked_at():
    class Untouchable:
        def __getattribute__(self, name):
            raise AssertionError(name)

    logger = Logger()
    logger.log_metrics({"loss": Untouchable()})
    logger.log_hyperparameters({"lr": Untouchable()})
    logger.log_traces(Untouchable())
    logger.destinations = first, _, second = RecordingDestination(), LoggerDestination(), RecordingDestination()
    logger.log_metrics({"loss": 0.5}, step=3)
    logger.log_hyperparameters({"lr": 0.1})
    logger.log_traces(Traces())
    recorded = ([(3, {"loss": 0.5})], [{"lr": 0.1}], [Traces()])
    assert [(d.metrics, d.hyperparameters, d.traces) for d in (first, second)] == [recorded, recorded]


def test_the_step_is_the_number_of_complete_batches_unless_it_is_given():
    destination = RecordingDestination()
    state = State()
    logger = Logger([destination])
    Engine(state, logger)
    logger.log_metrics({"a": 1})
    state.timestamp = Timestamp(batch=7)
    logger.log_metrics({"b": 2})
    logger.log_metrics({"c": 3}, step=5)
    assert destination.metrics == [(0, {"a": 1}), (7, {"b": 2}), (5, {"c": 3})]


def test_a_destination_without_the_methods_is_refused_by_the_engine():
    destination = type("OnlyMetrics", (), {"log_metrics": LoggerDestination.log_metrics})()
    with pytest.raises(TypeError, match="has no log_hyperparameters and no log_traces; a destination is a Logger"):
        Engine(State(), Logger([destination]))


class Kept(LoggerDestination):
    def __init__(self):
        self.files = []

    def log_file(self, name, content, step):
        self.files.append((name, content, step))


class Old:
    """A destination that was written before there were files."""

    def log_metrics(self, metrics, step):
        pass

    log_hyperparameters = log_traces = lambda self, given: None


class Fails(Kept):
    def log_file(self, name, content, step):
        raise OSError("no space")


def test_a_file_reaches_each_destination_that_takes_files_with_the_step_of_the_clock():
    kept, state = Kept(), State(timestamp=Timestamp(batch=3))
    logger = Logger([Old(), Fails(), kept, LoggerDestination()])
    Engine(state, logger)
    with pytest.warns(DestinationWarning, match="Fails failed in log_file.*no space"):
        logger.log_file("a-b_c.1.png", b"1")
    logger.destinations.pop(1)
    logger.log_file("note.txt", "two", step=7)
    assert kept.files == [("a-b_c.1.png", b"1", 3), ("note.txt", "two", 7)]


def test_another_name_and_what_is_no_content_or_too_large_are_refused():
    logger, seen = Logger([Kept()]), RecordingDestination()
    names = ["", ".png", "../a.png", "a/b.png", "a\\b.png", "a.PNG", "a.html", "a b.txt", "a.txt\n", "ä.txt"]
    for name in (*names, "x" * 300 + ".txt"):
        said = r"give it a name of letters, digits, .* the ending \.png, \.svg, \.json or "
        with pytest.raises(ValueError, match=said):
            logger.log_file(name, b"")
    for given in [("a.txt", None), ("a.txt", {"a": 1}), (3, b"")]:
        with pytest.raises(TypeError, match="log_file takes a name and bytes or text, not "):
            logger.log_file(*given)
    Logger([seen]).log_file("a.txt", b"x" * MOST_FILE_BYTES, step=3)
    assert len(seen.files) == 1
    with pytest.raises(ValueError, match=r"'a.txt' has 8,388,610 bytes, and 8,388,608 are the most"):
        logger.log_file("a.txt", "ä" * (MOST_FILE_BYTES // 2 + 1))


def test_run_files_keeps_them_by_step_and_a_resumed_run_replaces_its_own(tmp_path):
    files = RunFiles(tmp_path)
    logger = Logger([files])
    for content in ("one", "two"):
        logger.log_file("note.txt", content, step=5)
    logger.log_file("picture.png", b"\x89PNG", step=10)
    files.close()
    found = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert found == {"files/5/note.txt": b"two", "files/10/picture.png": b"\x89PNG"}


def test_numbers_are_what_a_tracker_can_draw():
    class OneElement:
        def tolist(self):
            return [[2.5]]

    class Several:
        def tolist(self):
            return [1, 2]

    logged = {"loss": 0.5, "rows": 3, "one": OneElement(), "several": Several(), "who": "me", "none": None}
    assert numbers(logged) == {"loss": 0.5, "rows": 3, "one": 2.5}
    assert [*numbers({"loss": float("nan")})] == ["loss"]


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
