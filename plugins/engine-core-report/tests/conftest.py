"""What several files of tests ask for, and a shell without habits."""

import signal

import pytest

from .watching import Stream

HABITS = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "PYTHONWARNINGS")


@pytest.fixture(autouse=True, scope="session")
def _a_shell_without_habits():
    """Hide from the tests and their children what changes what is printed, and let the children receive Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        for name in HABITS:
            patch.delenv(name, raising=False)
        yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def listen():
    """Make streams that are closed at the end."""
    streams = []

    def start(*arguments, **more):
        streams.append(Stream(*arguments, **more))
        return streams[-1]

    yield start
    for stream in streams:
        stream.close()
