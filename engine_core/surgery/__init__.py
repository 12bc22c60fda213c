"""Surgery: replace modules by type, and all that the model and its optimizers keep of them. Knows no engine."""

from .optimizers import follow_parameters
from .plan import Policy
from .replace import replace_modules, warn_of_nothing

__all__ = ["Policy", "follow_parameters", "replace_modules", "warn_of_nothing"]
