"""An event goes in, its listeners run: algorithms in order, then callbacks and logger destinations."""

from .engine import Engine
from .host import Host, listeners_of, misspelt_hooks, refuse_to_copy
from .members import admit, problems_of, warn_of_idle
from .pipeline import is_bool

__all__ = [
    "Engine",
    "Host",
    "admit",
    "is_bool",
    "listeners_of",
    "misspelt_hooks",
    "problems_of",
    "refuse_to_copy",
    "warn_of_idle",
]
