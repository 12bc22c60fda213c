"""Surgery: modules replaced by type, with all that the model and its optimizers keep of them. Knows no engine."""

from .following import follow_parameters
from .replacement import Policy
from .replacing import replace_modules, warn_of_nothing

__all__ = ["Policy", "follow_parameters", "replace_modules", "warn_of_nothing"]
