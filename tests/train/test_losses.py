"""What is read out of a loss function: torch's own within partials and compiled modules, and settings."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core.losses import base_loss, is_torch_loss, loss_setting

CROSS_ENTROPY = {nn.CrossEntropyLoss: F.cross_entropy}


class Own(nn.CrossEntropyLoss):
    """Has a formula of its own."""

    def forward(self, outputs, targets):
        return (outputs - targets).square().mean()


class Renamed(nn.CrossEntropyLoss):
    """Has torch's formula."""


MODULE = nn.CrossEntropyLoss(reduction="sum")
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # torch's own, where it imports the compiler
    COMPILED = torch.compile(MODULE)


@pytest.mark.parametrize(
    ("loss", "base"),
    [
        (F.cross_entropy, F.cross_entropy),
        (partial(partial(F.cross_entropy, weight=None), reduction="sum"), F.cross_entropy),
        (partial(MODULE), MODULE),
        (COMPILED, MODULE),
        (partial(COMPILED), MODULE),
        (None, None),
    ],
    ids=["function", "partials", "partial module", "compiled", "partial compiled", "none"],
)
def test_the_base_is_what_is_within(loss, base):
    assert base_loss(loss) is base


@pytest.mark.parametrize(
    ("loss", "is_torchs"),
    [
        (F.cross_entropy, True),
        (partial(F.cross_entropy, reduction="sum"), True),
        (MODULE, True),
        (COMPILED, True),
        (Renamed(), True),
        (Own(), False),
        (F.nll_loss, False),
        (lambda outputs, targets: 2 * F.cross_entropy(outputs, targets), False),
        (None, False),
    ],
)
def test_a_loss_is_torchs_unless_its_formula_is_its_own(loss, is_torchs):
    assert is_torch_loss(loss, CROSS_ENTROPY) is is_torchs


def named(outputs, targets):
    """A partial's function may have attributes of any name."""


named.reduction = "sum"


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        (F.cross_entropy, None),
        (partial(F.cross_entropy, reduction="sum"), "sum"),
        (MODULE, "sum"),
        (partial(MODULE, reduction="none"), "none"),
        (partial(partial(F.cross_entropy, reduction="sum"), weight=None), "sum"),
        (COMPILED, "sum"),
        (partial(named), "sum"),
        (None, None),
    ],
)
def test_a_setting_is_the_outermost_that_was_given(loss, reduction):
    assert loss_setting(loss, "reduction") == reduction
