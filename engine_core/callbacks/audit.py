"""Alias of a module that has moved."""

from ..moved import moved

__getattr__ = moved(__name__, extra="author")
