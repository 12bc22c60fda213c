"""An event goes in, its listeners run: algorithms in order, then callbacks and logger destinations."""

from .engine import Engine
from .host import Host
from .lint import doubts_about
from .listeners import misspelt_hooks
from .members import problems_of, take_in

__all__ = ["Engine", "Host", "doubts_about", "misspelt_hooks", "problems_of", "take_in"]
