"""Alias of a package that has moved."""

from .moved import moved

__getattr__ = moved(__name__, extra="author")
