"""Where a training forward does not repeat the scoring one, it is detected, and the step is exact all the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from sb_plugin.reuse import LinearOutputs, unsound

X = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
ROWS = torch.arange(0, 32, 2)


def net(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 512), *parts, nn.Linear(512, 512))


class Calls(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def step(model: nn.Module, x: torch.Tensor, rows: torch.Tensor, reuse: LinearOutputs | None) -> list[torch.Tensor]:
    """Return the outputs and gradients of a step, with a scoring forward that leaves the generator as it was."""
    if reuse is not None:
        with torch.random.fork_rng(), torch.no_grad(), reuse.recording(model, len(x)):
            torch.manual_seed(99)
            model(x)
        reuse.keep(rows)
        reuse.replay()
    model.zero_grad()
    outputs = model(x[rows])
    if reuse is not None:
        reuse.end()
    outputs.square().sum().backward()
    return [outputs.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_exact(model: nn.Module, reuse: LinearOutputs, rows: torch.Tensor = ROWS, x: torch.Tensor = X) -> None:
    torch.manual_seed(4)
    expected = step(model, x, rows, None)
    torch.manual_seed(4)
    found = step(model, x, rows, reuse)
    assert all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))


OTHER_INPUTS = "layer '2' gets other inputs for 16 rows than for the same rows among 32"
NOT_REPEATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F.dropout": lambda x: F.dropout(x, 0.1),
    "rare F.dropout": lambda x: F.dropout(x, 0.001),
    "statistics by hand": lambda x: x - x.mean(0),
    "F.batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "RReLU": nn.RReLU(),
    "random signs": lambda x: x * torch.randn(x.shape[1]).sign(),
    "noise of one bit": lambda x: x + 1e-7 * torch.rand(x.shape),
}


@pytest.mark.parametrize("function", NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_a_model_that_does_not_repeat_itself_is_found_and_the_step_is_exact(function: Any) -> None:
    reuse, model = LinearOutputs(), net(Calls(function))
    assert unsound(model) is None
    assert_exact(model, reuse)
    assert (reuse.fault or "").startswith(OTHER_INPUTS)


def test_a_model_that_stops_repeating_itself_is_found_in_that_step() -> None:
    reuse, drop = LinearOutputs(), [0.0, 0.0, 0.0, 0.1]
    model, faults = net(Calls(lambda x: F.dropout(x, drop[0]))), []
    for _ in range(4):
        assert_exact(model, reuse)
        faults.append(reuse.fault is not None)
        drop.pop(0)
    assert faults == [False, False, False, True]


def test_an_output_changed_in_place_is_found_and_the_step_is_exact() -> None:
    reuse = LinearOutputs()
    assert_exact(net(nn.ReLU(inplace=True)), reuse)
    assert (reuse.fault or "").startswith("the input or the output of layer '0' was changed in place")


WRITES: dict[str, Callable[[nn.Parameter], Any]] = {
    "in place": lambda weight: weight.mul_(2),
    "by .data": lambda weight: weight.data.clamp_(-0.01, 0.01),
    "other .data": lambda weight: setattr(weight, "data", weight.data.flip(0)),
}


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_weights_changed_after_scoring_are_found(write: Callable[[nn.Parameter], Any], name: str) -> None:
    reuse, model = LinearOutputs(), net()
    with torch.no_grad(), reuse.recording(model, 32):
        model(X)
    with torch.no_grad():
        write(getattr(model[0], name))
    reuse.keep(ROWS)
    reuse.replay()
    assert torch.equal(model(X[ROWS]), model[1](F.linear(X[ROWS], model[0].weight, model[0].bias)))
    assert reuse.fault == "the weights of layer '0' were changed between scoring and training"


def test_a_batch_changed_after_scoring_is_found() -> None:
    reuse, model = LinearOutputs(), net()
    with torch.no_grad(), reuse.recording(model, 32):
        model(X)
    reuse.keep(ROWS)
    reuse.replay()
    model(X[ROWS + 1])
    assert (reuse.fault or "").startswith("layer '0' gets other inputs")


def test_a_kernel_that_rounds_by_the_number_of_rows_is_left_alone_for_these_numbers() -> None:
    reuse, model, found = LinearOutputs(), net(), []
    x = torch.randn(32, 64) * torch.logspace(-3, 3, 64)
    for k in (1, 1, 16, 16, 1):
        assert_exact(model, reuse, torch.arange(k), x)
        found.append((reuse.fault, reuse.rounding, reuse.reused))
    layer = "layer '0' gives other bits for 1 rows than for 32"
    if torch.equal(model[0](x[:1]), model[0](x)[:1]):
        pytest.skip("the kernels of this machine round one row as they round many")
    assert found == [(None, layer, 0), (None, layer, 0), (None, None, 2), (None, None, 2), (None, layer, 0)]


class Sides(nn.Module):
    """A layer that sees rows, and one that sees something else."""

    def __init__(self, other: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.rows, self.side, self.other = nn.Linear(64, 512), nn.Linear(64, 512), other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(x) + self.other(self.side, x)


def _in_bf16(side: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return side(x)


def _in_inference_mode(side: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return side(x).clone() * 0 + 1


def _dual(side: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(side(forward_ad.make_dual(x, x))).primal


ASIDE: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "as many features and no rows": lambda side, x: side(torch.ones(64)),
    "other rows": lambda side, x: side(torch.ones(5, 64)).sum(0),
    "as many rows by chance": lambda side, x: side(torch.ones(64, 64)).sum(0),
    "rows second": lambda side, x: side(x.expand(3, *x.shape).contiguous()).sum(0),
    "not contiguous": lambda side, x: side(x.t().contiguous().t()),
    "autocast": _in_bf16,
    "torch.func": lambda side, x: torch.func.vjp(side, x)[0],
    "dual numbers": _dual,
    "only while training": lambda side, x: side(x) if torch.is_grad_enabled() else x.sum(),
    "only while scoring": lambda side, x: x[:, :1] if torch.is_grad_enabled() else side(x),
    "twice while scoring": lambda side, x: side(x) if torch.is_grad_enabled() else side(x) + side(x),
    "in inference mode": _in_inference_mode,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # of torch, at its first dual number
@pytest.mark.parametrize("other", ASIDE.values(), ids=ASIDE)
def test_calls_that_do_not_fit_or_come_once_are_left_alone_beside_others(other: Any) -> None:
    reuse, model, x = LinearOutputs(), Sides(other), torch.randn(64, 64)
    for _ in range(3):
        assert_exact(model, reuse, ROWS, x)
        assert reuse.fault is None
        assert reuse.reused >= 1


class Doubled(nn.Linear):
    """A layer that returns something else than its base does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def test_layers_of_derived_classes_are_left_alone() -> None:
    reuse, model = LinearOutputs(), net(Doubled(512, 512))
    for _ in range(2):
        assert_exact(model, reuse)
        assert (reuse.reused, reuse.fault) == (2, None)


def test_where_no_call_fits_the_reason_says_so() -> None:
    reuse = LinearOutputs()
    model = nn.Sequential(Calls(lambda x: x.flatten()[None]), nn.Linear(64 * 32, 8))
    with torch.no_grad(), reuse.recording(model, 32):
        model(X)
    assert (reuse.fault or "").startswith("no nn.Linear of more than one output feature gets contiguous inputs of 32")


def test_parts_of_the_kept_rows_are_computed_as_without() -> None:
    reuse, model = LinearOutputs(), net()
    with torch.no_grad(), reuse.recording(model, 32):
        model(X)
    reuse.keep(ROWS)
    reuse.replay()
    half = model(X[ROWS[:8]])
    reuse.end()
    assert torch.equal(half, model(X[ROWS[:8]]))
    assert (reuse.reused, reuse.fault) == (0, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [63, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_inputs_of_any_width_and_place_in_memory_are_compared(dtype: torch.dtype, width: int, sign: int) -> None:
    reuse, layer = LinearOutputs(), nn.Linear(width, 512, dtype=dtype)
    x = torch.randn(32 * width + 1, dtype=dtype)[1:].view(32, width)
    with torch.no_grad(), reuse.recording(layer, 32):
        layer(x)
    reuse.keep(ROWS)
    reuse.replay()
    layer(x[ROWS] * sign)
    assert (reuse.fault is None) == (sign == 1)


def test_rows_that_are_not_finite_are_compared_by_their_bits() -> None:
    reuse, x = LinearOutputs(), X.clone()
    x[0], x[2] = torch.nan, torch.inf
    for _ in range(3):
        with torch.no_grad(), reuse.recording(model := nn.Linear(64, 512), 32):
            model(x)
        reuse.keep(ROWS)
        reuse.replay()
        model(x[ROWS])
        reuse.end()
        assert (reuse.reused, reuse.fault, reuse.rounding) == (1, None, None)
