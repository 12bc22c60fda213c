"""Replace modules by type, and all that the model and its optimizers keep of them. Knows no engine."""

from .plan import Policy
from .replace import replace_modules, warn_of_nothing

__all__ = ["Policy", "replace_modules", "warn_of_nothing"]
