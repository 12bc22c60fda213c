"""Algorithms and passes on which the conformance kit is proved: honest ones, and each fault once."""
