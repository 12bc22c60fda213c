"""What each run's process would import first, imported once by the process that they are forked from.

torch imports a second's worth of modules when the first optimizer is made, which no public import does.
"""

import torch

from . import job

__all__ = ["job"]

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
