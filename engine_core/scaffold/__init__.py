"""Begin a plugin: write a complete distribution of a new one. Knows no engine and imports no plugin."""

from .creating import create_plugin

__all__ = ["create_plugin"]
