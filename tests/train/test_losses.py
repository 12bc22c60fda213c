"""What is read out of a loss function: torch's own within partials and compiled modules, and settings."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core.losses import is_torch_loss, loss_setting, with_reduction

CROSS_ENTROPY = {nn.CrossEntropyLoss: F.cross_entropy}


class Own(nn.CrossEntropyLoss):
    """Has its own formula."""

    def forward(self, outputs, targets):
        return (outputs - targets).square().mean()


class OwnCall(nn.CrossEntropyLoss):
    """Has its own formula around torch's."""

    def __call__(self, outputs, targets):
        return super().__call__(outputs, targets).square()


class Around(nn.Module):
    """Has torch's loss under the name that torch.compile gives it, and its own formula."""

    def __init__(self):
        super().__init__()
        self._orig_mod = nn.CrossEntropyLoss()

    def forward(self, outputs, targets):
        return 2 * self._orig_mod(outputs, targets)


class Renamed(nn.CrossEntropyLoss):
    """Has torch's formula."""


def plain(outputs, targets, reduction="mean"):
    return F.cross_entropy(outputs, targets, reduction=reduction)


PATCHED = nn.CrossEntropyLoss()
PATCHED.forward = lambda outputs, targets: (outputs - targets).square().mean()
AROUND, MODULE = Around(), nn.CrossEntropyLoss(reduction="sum")
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # torch's own, where it imports the compiler
    SCRIPTED = torch.jit.script(nn.CrossEntropyLoss())
    COMPILED = torch.compile(MODULE)
    COMPILED_FUNCTION = torch.compile(plain, backend="eager")  # torch 2.4 can't compile cross_entropy itself
    COMPILED_PARTIAL = torch.compile(partial(F.cross_entropy, reduction="sum"), backend="eager")


@pytest.mark.parametrize(
    ("loss", "is_torchs", "reduction"),
    [
        (F.cross_entropy, True, None),
        (partial(partial(F.cross_entropy, reduction="sum"), weight=None), True, "sum"),
        (partial(MODULE, reduction="none"), True, "none"),
        (COMPILED, True, "sum"),
        (partial(COMPILED_FUNCTION, reduction="sum"), False, "sum"),
        (COMPILED_PARTIAL, True, "sum"),
        (MODULE.forward, True, "sum"),
        (Renamed(), True, "mean"),
        (Own(), False, "mean"),
        (OwnCall(), False, "mean"),
        (PATCHED, False, "mean"),
        (SCRIPTED, False, "mean"),
        (AROUND, False, None),
        (F.nll_loss, False, None),
        (lambda outputs, targets: 2 * F.cross_entropy(outputs, targets), False, None),
        (None, False, None),
    ],
)
def test_a_loss_is_torchs_unless_its_formula_is_its_own_and_its_outermost_setting_counts(loss, is_torchs, reduction):
    assert (is_torch_loss(loss, CROSS_ENTROPY), loss_setting(loss, "reduction")) == (is_torchs, reduction)


LABELS = torch.tensor([0, 1, 3])
REDUCED = [plain, nn.CrossEntropyLoss(reduction="sum"), F.cross_entropy, partial(F.cross_entropy, size_average=False)]


@pytest.mark.parametrize("loss", [*REDUCED, partial(nn.CrossEntropyLoss(), target=LABELS)])
@pytest.mark.filterwarnings("ignore:size_average and reduce args:UserWarning")
def test_another_reduction_gives_the_loss_of_each_row_and_leaves_the_loss_as_it_is(loss):
    given = (torch.randn(3, 4), LABELS)[: 1 if "target" in getattr(loss, "keywords", ()) else 2]
    before = loss(*given)
    rows = with_reduction(loss, "none")(*given)
    torch.testing.assert_close(rows, F.cross_entropy(given[0], LABELS, reduction="none"))
    assert torch.equal(loss(*given), before)


@pytest.mark.parametrize("loss", [Own().forward, lambda outputs, targets: outputs])
def test_a_loss_that_takes_no_reduction_has_no_other(loss):
    assert with_reduction(loss, "none") is None
