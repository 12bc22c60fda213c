"""Memory that runs out: what did not fit, and what to set."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from engine_core.errors import OutOfMemoryError

from .parts import at, batches, notes, trainer

TOO_MUCH = 10**15
"""Elements that no machine has memory for."""


class Greedy(nn.Linear):
    def forward(self, inputs):
        torch.empty(TOO_MUCH)
        return super().forward(inputs)


def raised(**settings):
    with trainer(batches(8, 7), Greedy(4, 3), **settings) as made, pytest.raises(OutOfMemoryError) as error:
        made.fit()
    return error


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {},
            "all of them at once: set microbatch_size=4 or less, which trains with the same gradients and batches of 8",
        ),
        ({"microbatch_size": 3}, "8 rows, in microbatches of 3: set microbatch_size=1 or less"),
        (
            {"microbatch_size": 1},
            "in microbatches of 1: a single row is too much: try precision='amp_bf16', an optimizer",
        ),
        ({"microbatch_size": 1, "precision": "amp_bf16"}, "a single row is too much: try an optimizer"),
    ],
    ids=str,
)
def test_the_error_names_sizes_and_remedy(settings, said):
    error = raised(**settings).value
    assert str(error).startswith("out of memory on cpu at batch 0 (epoch 0) with 8 rows")
    assert said in str(error) and "can't allocate memory" in str(error)
    assert isinstance(error.__cause__, RuntimeError) and isinstance(error, MemoryError)


class TrainsOnly(nn.Linear):
    """Can't be measured, for it gives nothing in eval mode."""

    def forward(self, inputs):
        return super().forward(inputs) if self.training else None


@pytest.mark.parametrize(("kind", "promises"), [(nn.Linear, True), (TrainsOnly, False)])
def test_the_same_gradients_are_promised_where_the_law_was_measured_and_held(kind, promises):
    def fill(_):
        raise MemoryError

    def by_hand(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

    settings = {"microbatch_size": 4, "callbacks": at("after_forward", fill)}
    made = trainer(batches(8), kind(4, 3), loss_fn=by_hand, **settings)
    with made, pytest.raises(OutOfMemoryError) as error:
        made.fit()
    assert ("the same gradients" in str(error.value)) is promises


def test_in_an_evaluation_it_names_the_loader():
    def evaluate(state):
        if state.dataloader_label == "large":
            torch.empty(TOO_MUCH)

    loaders, says = (
        {"small": batches(2), "large": batches(5)},
        "in the evaluation on 'large' with batches of 5 rows: give",
    )
    made = trainer(callbacks=at("eval_before_forward", evaluate), eval_dataloader=loaders)
    with made, pytest.raises(OutOfMemoryError, match=says) as error:
        made.fit()
    assert notes(error)[0] == "raised by callback At at EVAL_BEFORE_FORWARD"


def test_cuda_s_own_error_is_one():
    def fail(state):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    made = trainer(callbacks=at("after_forward", fail))
    with made, pytest.raises(OutOfMemoryError, match=r"Tried to allocate 2.00 GiB\.\n"):
        made.fit()


@pytest.mark.full
def test_where_the_process_has_no_more_memory():
    program = """
        import resource, torch
        from engine_core import Trainer
        data = [(torch.randn(200_000, 4), torch.randn(200_000, 4))]
        model = torch.nn.Sequential(*[torch.nn.Linear(4, 256), torch.nn.Linear(256, 4)] * 8)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
        trainer = Trainer(model, data, max_duration="1ep", loss_fn=torch.nn.MSELoss(), progress_bar=False, device="cpu",
                          optimizers=torch.optim.SGD(model.parameters(), lr=0.1))
        trainer.fit()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith(
        "engine_core.errors.OutOfMemoryError: out of memory on cpu at batch 0 (epoch 0) with 200000 rows"
    ), done.stderr
