"""What is read out of a loss function: torch's own within partials and compiled modules, and settings."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core.losses import base_loss, is_torch_loss, loss_setting, with_reduction

CROSS_ENTROPY = {nn.CrossEntropyLoss: F.cross_entropy}


class Own(nn.CrossEntropyLoss):
    """Has its own formula."""

    def forward(self, outputs, targets):
        return (outputs - targets).square().mean()


class OwnCall(nn.CrossEntropyLoss):
    """Has its own formula around torch's."""

    def __call__(self, outputs, targets):
        return super().__call__(outputs, targets).square()


class OwnModule(nn.Module):
    """A module without a reduction."""

    def forward(self, outputs, targets):
        return (outputs - targets).square().mean()


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
    ("loss", "base"),
    [
        (F.cross_entropy, F.cross_entropy),
        (partial(partial(F.cross_entropy, weight=None), reduction="sum"), F.cross_entropy),
        (partial(MODULE), MODULE),
        (COMPILED, MODULE),
        (partial(COMPILED), MODULE),
        (COMPILED_FUNCTION, plain),
        (COMPILED_PARTIAL, F.cross_entropy),
        (partial(COMPILED_FUNCTION), plain),
        (MODULE.forward, MODULE),
        (SCRIPTED, SCRIPTED),
        (AROUND, AROUND),
        (None, None),
    ],
)
def test_the_base_is_the_wrapped_loss(loss, base):
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
        (Own().forward, False),
        (OwnCall(), False),
        (PATCHED, False),
        (SCRIPTED, False),
        (AROUND, False),
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
        (partial(COMPILED_FUNCTION, reduction="sum"), "sum"),
        (COMPILED_PARTIAL, "sum"),
        (MODULE.forward, "sum"),
        (partial(named), "sum"),
        (None, None),
    ],
)
def test_a_setting_is_the_outermost_that_was_given(loss, reduction):
    assert loss_setting(loss, "reduction") == reduction


class Meter:
    """A loss function that is a method of something else."""

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs, targets)


def test_a_method_of_anything_but_a_module_is_the_loss_itself():
    loss = Meter().forward
    assert base_loss(loss) is loss


@pytest.mark.parametrize(
    "loss",
    [
        plain,
        partial(plain),
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        F.cross_entropy,
        partial(F.cross_entropy, size_average=False),
        partial(nn.CrossEntropyLoss(), target=torch.tensor([0, 1, 3])),
    ],
)
@pytest.mark.filterwarnings("ignore:size_average and reduce args:UserWarning")
def test_another_reduction_gives_the_loss_of_each_row_and_leaves_the_loss_as_it_is(loss):
    targets = torch.tensor([0, 1, 3])
    given = (torch.randn(3, 4), targets)[: 1 if "target" in getattr(loss, "keywords", ()) else 2]
    before = loss(*given)
    rows = with_reduction(loss, "none")(*given)
    torch.testing.assert_close(rows, F.cross_entropy(given[0], targets, reduction="none"))
    assert torch.equal(loss(*given), before)


@pytest.mark.parametrize("loss", [Own().forward, lambda outputs, targets: outputs, OwnModule(), partial(OwnModule())])
def test_a_loss_that_takes_no_reduction_has_no_other(loss):
    assert with_reduction(loss, "none") is None
