"""An event goes in, its listeners run: algorithms in order, then callbacks and logger destinations."""

from .combination import problems_of
from .engine import Engine
from .host import Host
from .lifetime import refuse_to_copy
from .lint import doubts_about, warn_of_idle
from .listeners import listeners_of, misspelt_hooks
from .members import admit
from .pipeline import is_bool

__all__ = [
    "Engine",
    "Host",
    "admit",
    "doubts_about",
    "is_bool",
    "listeners_of",
    "misspelt_hooks",
    "problems_of",
    "refuse_to_copy",
    "warn_of_idle",
]
