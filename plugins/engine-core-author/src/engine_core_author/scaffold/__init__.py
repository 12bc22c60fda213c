"""Create a plugin: write a complete new distribution. Knows no engine and imports no plugin."""

from .creating import TEST_REQUIREMENTS, create_plugin

__all__ = ["TEST_REQUIREMENTS", "create_plugin"]
