"""Files that are logged, and what is logged as numbers."""

import pytest

from engine_core import Engine, Logger, LoggerDestination, State, Timestamp
from engine_core.errors import DestinationWarning
from engine_core.logger import MOST_FILE_BYTES
from engine_core.loggers import numbers
from engine_core.loggers.run_files import RunFiles
from engine_core_author import RecordingDestination


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
