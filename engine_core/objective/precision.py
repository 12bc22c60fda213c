"""The number format in which a model runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

REDUCED = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


def autocast_of(precision: str, device: torch.device | str) -> AbstractContextManager[Any]:
    """Return the context in which a forward of this precision runs."""
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=REDUCED[precision]) if precision in REDUCED else nullcontext()
