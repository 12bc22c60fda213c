"""Something of everything that hook API 1 of engine-core offers; all of it writes into one journal."""

from .algorithms import Anywhere, DoubleLoss, KeepFirst, ScaleInputs
from .callbacks import Bystander, Ledger, Witness
from .hooks import Hooks
from .journal import journal

__all__ = [
    "Anywhere",
    "Bystander",
    "DoubleLoss",
    "Hooks",
    "KeepFirst",
    "Ledger",
    "ScaleInputs",
    "Witness",
    "journal",
]
