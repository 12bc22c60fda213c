import pytest

from engine_core import Engine, Logger, LoggerDestination, State, Timestamp, Traces
from engine_core.errors import DestinationWarning
from engine_core.logger import MOST_FILE_BYTES
from engine_core.loggers import numbers
from engine_core.loggers.run_files import RunFiles
from engine_core_author import RecordingDestination


def test_what_is_logged_reaches_each_destination():
    first, second = RecordingDestination(), RecordingDestination()
    logger = Logger([first, LoggerDestination(), second])
    logger.log_metrics({"loss": 0.5}, step=3)
    logger.log_hyperparameters({"lr": 0.1})
    logger.log_traces(Traces())
    recorded = ([(3, {"loss": 0.5})], [{"lr": 0.1}], [Traces()])
    assert [(d.metrics, d.hyperparameters, d.traces) for d in (first, second)] == [recorded, recorded]


def test_without_destinations_no_value_is_even_looked_at():
    class Untouchable:
        def __getattribute__(self, name):
            raise AssertionError(name)

    logger = Logger()
    logger.log_metrics({"loss": Untouchable()})
    logger.log_hyperparameters({"lr": Untouchable()})
    logger.log_traces(Untouchable())


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
