"""Replace modules by type, or let some join, with all that model and optimizers keep of them. Knows no engine."""

from .growth import grow, made_alike, take_out
from .plan import Policy
from .replace import replace_modules, warn_of_nothing

__all__ = ["Policy", "grow", "made_alike", "replace_modules", "take_out", "warn_of_nothing"]
