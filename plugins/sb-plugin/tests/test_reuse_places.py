"""What reuse compares: each value of a row in its place, each place of a row in a product, each call, each number."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sb_plugin.reuse import LinearOutputs

ROWS = torch.arange(0, 32, 2)


def given_again(
    model: nn.Module, x: torch.Tensor, rows: torch.Tensor, reuse: LinearOutputs, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """Return what a step's training forward gives for `kept`, by default the rows that were scored."""
    with torch.no_grad(), reuse.recording(model, len(x)):
        model(x)
    reuse.keep(rows)
    reuse.replay()
    output: torch.Tensor = model(x[rows] if kept is None else kept)
    reuse.end()
    return output


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flipped": lambda x: x.flip(1),
    "two swapped": lambda x: x[:, [2, 1, 0, *range(3, 64)]],
    "negative": torch.neg,
    "two negative": lambda x: torch.cat([-x[:, :1], x[:, 1:3], -x[:, 3:4], x[:, 4:]], 1),
    "zeros negative": lambda x: x.where(x != 0, -0.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_values_in_other_places_or_of_other_sign_are_other_inputs(change: Any) -> None:
    """Rows of halves that are each other's negative, whose sums show nothing."""
    half = torch.randn(32, 32).round()
    x, reuse, layer = torch.cat([half, -half], 1), LinearOutputs(), nn.Linear(64, 512)
    for _ in range(2):
        given_again(layer, x, ROWS, reuse)
    given_again(layer, x, ROWS, reuse, change(x[ROWS]))
    assert (reuse.fault or "").startswith("layer '' gets other inputs")


def test_a_single_output_feature_is_left_alone() -> None:
    """A product with a vector rounds the last rows otherwise."""
    model, reuse, x = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)), LinearOutputs(), torch.randn(97, 97, 8)
    for _ in range(6):
        rows = torch.randperm(97)[:48].sort().values
        assert torch.equal(given_again(model, x, rows, reuse), model(x[rows]))
        assert (reuse.reused, reuse.fault, reuse.rounding) == (1, None, None)


def test_each_place_of_a_row_is_compared_before_anything_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that rounds the last row of a product otherwise, which the rows that are kept first don't show."""
    true = nn.Linear.forward

    def rounds_its_last_row(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        output = true(layer, inputs)
        return output.index_add(0, torch.tensor([len(output) - 1]), output[-1:] * (len(output) == 32), alpha=1e-6)

    monkeypatch.setattr(nn.Linear, "forward", rounds_its_last_row)
    layer, reuse, x = nn.Linear(64, 512), LinearOutputs(), torch.randn(32, 64)
    for rows in (ROWS, ROWS, ROWS + 1):
        assert torch.equal(given_again(layer, x, rows, reuse), layer(x[rows]))
    assert reuse.rounding == "layer '' gives other bits for 16 rows than for 32"


class Two(nn.Module):
    """One that rounds arbitrarily next to one that does not, and one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.uneven, self.after = nn.Linear(64, 512), nn.Linear(64, 64), nn.Linear(64, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.after(self.uneven(x)) + self.even(x)
        return output


def uneven(monkeypatch: pytest.MonkeyPatch, is_uneven: Callable[[nn.Linear, torch.Tensor], bool]) -> None:
    """Let some products of 16 rows round otherwise."""
    true = nn.Linear.forward

    def forward(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        output = true(layer, inputs)
        return output * (1 + 1e-6) if len(inputs) == 16 and is_uneven(layer, inputs) else output

    monkeypatch.setattr(nn.Linear, "forward", forward)


def test_beside_a_layer_that_rounds_otherwise_others_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reuse, x = Two(), LinearOutputs(), torch.randn(32, 64)
    uneven(monkeypatch, lambda layer, _: layer is model.uneven)
    for _ in range(3):
        assert torch.equal(given_again(model, x, ROWS, reuse), model(x[ROWS]))
        assert (reuse.reused, reuse.fault) == (1, None)
        assert reuse.rounding == "layer 'uneven' gives other bits for 16 rows than for 32"


def test_other_numbers_of_rows_are_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, reuse, x = nn.Linear(64, 512), LinearOutputs(), torch.randn(32, 64)
    uneven(monkeypatch, lambda *_: True)
    found = []
    for rows in (ROWS[:12], ROWS[:12], ROWS, ROWS[:12]):
        assert torch.equal(given_again(layer, x, rows, reuse), layer(x[rows]))
        found.append(reuse.reused)
    assert found == [1, 1, 0, 1]


def test_each_call_of_a_layer_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, reuse, x = nn.Linear(64, 64), LinearOutputs(), torch.randn(32, 128, 64)
    uneven(monkeypatch, lambda _, inputs: bool(inputs.amin() >= 0))
    model = nn.Sequential(layer, nn.ReLU(), layer)
    for _ in range(3):
        assert torch.equal(given_again(model, x, ROWS, reuse), model(x[ROWS]))
        assert (reuse.reused, reuse.rounding is None) == (1, False)


@pytest.mark.parametrize("k", [1, 2])
def test_a_contiguous_row_of_a_wider_table_is_compared(k: int) -> None:
    reuse, layer, x = LinearOutputs(), nn.Linear(8, 16), torch.randn(16, 9)
    model = nn.Sequential(nn.Module(), layer)
    model[0].forward = lambda x: x[:, :8].contiguous()
    assert torch.equal(given_again(model, x, torch.arange(k), reuse), model(x[:k]))


@pytest.mark.parametrize("shape", [(32, 64), (32, 5, 64), (32, 2, 5, 64)], ids=str)
def test_an_output_that_is_changed_in_place_in_training_only_keeps_its_bits(shape: tuple[int, ...]) -> None:
    reuse, layer, x, grads = LinearOutputs(), nn.Linear(64, 512), torch.randn(shape), []
    for run in (lambda: given_again(layer, x, ROWS, reuse), lambda: layer(x[ROWS])) * 2:
        layer.zero_grad()
        output = run()
        output[..., :4] = 0
        output.relu_().square().sum().backward()
        grads.append([output.detach(), *(parameter.grad.clone() for parameter in layer.parameters())])
    assert all(torch.equal(mine, other) for mine, other in zip(grads[2], grads[3], strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_made_in_the_middle_of_a_step_computes_as_the_layers_do(copied: Any) -> None:
    model, reuse, x = nn.Sequential(nn.Linear(64, 512)), LinearOutputs(), torch.randn(32, 64)
    with torch.no_grad(), reuse.recording(model, 32):
        model(x)
    reuse.keep(ROWS)
    reuse.replay()
    twin = copied(model)
    reuse.end()
    assert len(pickle.dumps(twin)) < len(pickle.dumps(model)) + 500  # what was recorded is not in it
    expected = model(x)
    model[0].weight.data.zero_()
    assert torch.equal(twin(x), expected)
    assert torch.equal(copy.deepcopy(twin)(x), expected)
