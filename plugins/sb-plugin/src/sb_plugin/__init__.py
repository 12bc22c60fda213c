"""Selective Backprop: train on the hard rows of each batch (Jiang et al. 2019, arXiv 1910.00762)."""

from .algorithm import SelectiveBackprop
from .functional import select_using_loss
from .indexed import WithIndex
from .schedule import should_selective_backprop

__all__ = ["SelectiveBackprop", "WithIndex", "select_using_loss", "should_selective_backprop"]
