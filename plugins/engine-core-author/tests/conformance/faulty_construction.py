"""Algorithms whose constructor takes nonsense, or whose `repr` says the wrong thing."""

import itertools

import torch

from engine_core.errors import ArgumentError

from .subjects import AtLoss, caught_by


@caught_by("test_arguments")
class TakesNaN(AtLoss):
    def __init__(self, scale=0.5):
        if scale <= 0:
            raise ArgumentError(f"scale={scale!r} has to be positive")
        self.scale = scale


@caught_by("test_repr")
class ShowsItsAddress(AtLoss):
    __repr__ = object.__repr__


@caught_by("test_repr")
class ShowsHowOftenItWasShown(AtLoss):
    shown = 0

    def __repr__(self):
        self.shown += 1
        return f"ShowsHowOftenItWasShown({self.shown})"


@caught_by("test_repr")
class ShowsItsNumber(AtLoss):
    made = itertools.count()

    def __init__(self):
        self.number = next(self.made)

    def __repr__(self):
        return f"ShowsItsNumber({self.number})"


@caught_by("test_repr")
class ShowsTooMuch(AtLoss):
    def __repr__(self):
        return f"ShowsTooMuch({[*range(1000)]})"


@caught_by("test_repr")
class ShowsWhatItHasSeen(AtLoss):
    seen = ""

    def factor(self, state):
        self.seen = str([float(state.loss.detach())] * 100)
        return 0.5

    def __repr__(self):
        return f"ShowsWhatItHasSeen({self.seen})"


@caught_by("test_arguments")
class ComparesTensors(AtLoss):
    weights = torch.ones(2)

    def __eq__(self, other):
        return self.weights == getattr(other, "weights", 0)

    def __hash__(self):
        return 1
