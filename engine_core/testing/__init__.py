"""Honest fakes for the tests of plugins: real classes with real signatures that remember what happened."""

from .recording import RecordingDestination

__all__ = ["RecordingDestination"]
