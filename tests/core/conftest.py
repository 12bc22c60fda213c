"""What several files of tests ask for."""

import pytest

from .watching import Stream


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
