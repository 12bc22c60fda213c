"""Algorithms that are named but never act, against the plain loop."""

from __future__ import annotations

import subprocess
import sys

from sides import Case

from augmentation_plugin import ProgressiveResizing
from engine_core import Algorithm
from labels_plugin import LabelSmoothing
from optim_plugin import SAM, GradientPenalty, LayerFreezing

PLAIN = """
import sys, torch
from engine_core import Trainer
model, data = torch.nn.Linear(2, 2), [(torch.zeros(2, 2), torch.zeros(2, 2))]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.MSELoss()
Trainer(model, data, max_duration="2ba", loss_fn=loss_fn, optimizers=optimizer, progress_bar=False).fit()
print(*(name for name in sys.modules if name.endswith("_plugin")))
"""


def imported_unnamed() -> list[str]:
    """Return the plugin packages that are imported by a training run that names no algorithm."""
    done = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, check=True, text=True)
    return done.stdout.split()


def never_acting() -> list[Algorithm]:
    """Return those that can be configured never to act."""
    return [
        LabelSmoothing(smoothing=0),
        ProgressiveResizing(initial_scale=1),
        GradientPenalty(weight=0),
        LayerFreezing(start=0.9999),
        SAM(interval=10**9),
    ]


CASES = {"five_inactive": Case(never_acting)}
