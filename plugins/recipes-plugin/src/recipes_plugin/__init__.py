"""Training recipes: YAML files beside this one, each of which `engine-core train --recipe NAME` adds to a config."""

from pathlib import Path

__all__ = ["FAST_FINETUNE", "FAST_IMAGES", "FAST_TEXT"]

FAST_FINETUNE = Path(__file__).with_name("fast_finetune.yaml")
"""The recipe `fast-finetune`."""
FAST_IMAGES = Path(__file__).with_name("fast_images.yaml")
"""The recipe `fast-images`."""
FAST_TEXT = Path(__file__).with_name("fast_text.yaml")
"""The recipe `fast-text`."""
