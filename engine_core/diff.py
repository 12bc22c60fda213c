"""Alias of a module that has moved."""

from __future__ import annotations

from .moved import moved

__getattr__ = moved(__name__, extra="report")
