"""Algorithms of engine-core in Hugging Face's Trainer. Imports transformers only when a trainer is asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trainer import EngineTrainer, EngineTrainerMixin

__all__ = ["EngineTrainer", "EngineTrainerMixin"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import trainer  # noqa: PLC0415  what the loop offers is read without transformers

    return getattr(trainer, name)
