"""Data selection: Selective Backprop (Jiang et al. 2019) and InfoBatch (Qin et al. 2024)."""

from .algorithm import SelectiveBackprop
from .functional import select_using_loss
from .indexed import WithIndex
from .info_batch import InfoBatch
from .schedule import should_selective_backprop

__all__ = ["InfoBatch", "SelectiveBackprop", "WithIndex", "select_using_loss", "should_selective_backprop"]
