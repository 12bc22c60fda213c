"""Create a plugin: write a complete new distribution. Knows no engine and imports no plugin."""

from .creating import create_plugin

__all__ = ["create_plugin"]
