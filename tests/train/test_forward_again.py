"""`state.forward`: the model once more, in the precision of the run and with what it gets of a batch."""

import pytest
import torch
from torch import nn

from engine_core import Objective, State

from .parts import acting, batches, linear, same, trainer


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_it_gives_the_outputs_of_the_step_in_the_precision_of_the_run(precision):
    pairs = []
    again = acting(lambda event, state: pairs.append((state.outputs, state.forward(state.batch[0]))), "after_forward")
    with trainer(algorithms=[again], precision=precision) as made:
        made.fit()
    assert [one.dtype for one, _ in pairs] == [{"fp32": torch.float32, "amp_bf16": torch.bfloat16}[precision]] * 2
    assert all(same(one, other) and other.requires_grad for one, other in pairs)


class Named(nn.Module):
    def forward(self, x, y=1):
        return x - 2 * y


@pytest.mark.parametrize(
    ("items", "batch"),
    [
        (0, (torch.tensor(7), None)),
        (("a", "b"), {"a": torch.tensor(9), "b": torch.tensor(1)}),
        ("*", (torch.tensor(9), torch.tensor(1))),
        ("**", {"y": torch.tensor(0), "x": torch.tensor(7)}),
    ],
)
def test_it_takes_what_the_objective_says_that_the_model_gets(items, batch):
    state = State(model=Named(), objective=Objective(nn.MSELoss(), inputs=items))
    assert state.forward(state.objective.inputs_of(batch)) == state.objective.forward(state.model, batch)


def test_test_time_augmentation_takes_one_line():
    data, found = batches(8), []
    mirrored = acting(
        lambda event, state: setattr(state, "outputs", (state.outputs + state.forward(-state.batch[0])) / 2),
        "eval_after_forward",
        writes=("outputs",),
    )
    with trainer(data, algorithms=[mirrored]) as made:
        found.extend(made.predict(data))
    model = linear()
    assert torch.equal(found[0], (model(data[0][0]) + model(-data[0][0])) / 2)
