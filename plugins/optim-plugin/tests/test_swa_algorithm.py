"""SWA in a run: which weights it takes, what evaluation sees, and what it refuses."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, update_bn

from engine_core import Callback, Logger, State, Trainer
from optim_plugin import SWA, use_average


def make_data(batches: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(batches)
    ]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Recorder(Callback):
    def __init__(self) -> None:
        self.batches: list[dict[str, torch.Tensor]] = []
        self.evaluated: list[dict[str, torch.Tensor]] = []

    def batch_end(self, state: Any, logger: Logger) -> None:
        self.batches.append(copy.deepcopy(dict(state.model.state_dict())))

    def eval_batch_end(self, state: Any, logger: Logger) -> None:
        self.evaluated.append(copy.deepcopy(dict(state.model.state_dict())))


def make_trainer(swa: SWA, recorder: Recorder, **settings: Any) -> Trainer:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"max_duration": "4ep", "loss_fn": F.cross_entropy, "optimizers": optimizer, "device": "cpu", "seed": 1}
    return Trainer(model, make_data(), algorithms=swa, callbacks=recorder, **{**given, **settings})


@pytest.mark.parametrize(
    ("arguments", "settings", "taken"),
    [
        ({"start": 0.5}, {}, [9, 14, 19]),
        ({"start": 0.51}, {}, [14, 19]),
        ({"start": 0}, {}, [4, 9, 14, 19]),
        ({"start": 0.5, "update_interval": "2ep"}, {}, [9, 19]),
        ({"start": 0.7, "update_interval": "3ba"}, {}, [14, 17]),
        ({"start": 0.5, "update_interval": "2ba"}, {"max_duration": "13ba"}, [7, 9, 11]),
        ({"start": 0.5}, {"max_duration": "13ba"}, [9]),
        ({"start": 0.8, "update_interval": "12ba"}, {"max_duration": "3ep"}, [11]),  # 2/3 + 2/5 / 3 < 0.8
    ],
)
def test_it_is_the_mean_of_the_weights_at_the_ends_of_intervals(
    arguments: dict[str, Any], settings: dict[str, Any], taken: list[int]
) -> None:
    """Batches of 20 in 4 epochs, counted from 0; BatchNorm's statistics are averaged too, integers are the last's."""
    swa, recorder = SWA(**arguments), Recorder()
    with make_trainer(swa, recorder, **settings) as trainer:
        trainer.fit()
    average = swa.averaged_state_dict()
    for name, tensor in average.items():
        weights = [recorder.batches[step][name] for step in taken]
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, torch.stack(weights).mean(0), rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(tensor, weights[-1])
    assert swa.state_dict()["count"] == len(taken)


def test_evaluation_sees_the_weights_before_start_and_the_mean_after() -> None:
    swa, recorder = SWA(start=0.75), Recorder()
    with make_trainer(swa, recorder, eval_dataloader=make_data(1)) as trainer:
        trainer.fit()
    seen, batches = recorder.evaluated, recorder.batches
    expected = [batches[4], batches[9], batches[14], swa.averaged_state_dict()]
    assert all(torch.equal(s[name], e[name]) for s, e in zip(seen, expected, strict=True) for name in s)
    assert not torch.equal(seen[3]["0.weight"], batches[19]["0.weight"])
    assert torch.equal(trainer.state.model.state_dict()["0.weight"], batches[19]["0.weight"])


def test_an_interval_that_never_ends_after_start_leaves_evaluation_as_it_is_and_warns() -> None:
    swa, recorder = SWA(update_interval="9ep"), Recorder()
    with make_trainer(swa, recorder, eval_dataloader=make_data(1)) as trainer:
        trainer.fit("3ep")
        with pytest.warns(
            UserWarning, match=r"swa averaged nothing: .* first 9ep that ends at 0\.7 .*'4ep' contains none"
        ):
            trainer.fit("1ep")
    assert torch.equal(recorder.evaluated[-1]["0.weight"], recorder.batches[-1]["0.weight"])
    assert swa.averaged_state_dict() is None


def test_an_instance_in_a_second_run_forgets_the_first() -> None:
    swa = SWA(start=0.5)
    with make_trainer(swa, Recorder()) as trainer:
        trainer.fit()
    with make_trainer(swa, Recorder()) as trainer:
        trainer.fit("1ba")
        assert swa.state_dict() == {}


def test_a_length_that_is_not_known_is_refused_with_the_first_batch() -> None:
    state = State(model=make_net())
    with pytest.raises(ValueError, match="max_duration is not known"):
        SWA().validate(state)


@pytest.mark.parametrize("interval", ["10sp", "5sec", "0ep"])
def test_intervals_are_whole_epochs_or_batches(interval: str) -> None:
    with pytest.raises(ValueError, match="update_interval"):
        SWA(update_interval=interval)


@pytest.mark.parametrize("start", [-0.1, 1, float("nan")])
def test_a_start_outside_of_the_training_is_refused(start: float) -> None:
    with pytest.raises(ValueError, match="start="):
        SWA(start=start)


def test_statistics_of_batchnorm_are_recomputed_by_torchs_update_bn() -> None:
    """For the averaged weights they are not the mean of the statistics."""
    swa, data = SWA(start=0.5), make_data()
    with make_trainer(swa, Recorder()) as trainer:
        trainer.fit()
    model: Any = trainer.state.model
    model.load_state_dict(swa.averaged_state_dict())
    update_bn([x for x, _ in data], model)
    inputs = torch.cat([x for x, _ in data])
    torch.testing.assert_close(model[1].running_mean, model[0](inputs).mean(0))
    assert not torch.allclose(model[1].running_mean, swa.averaged_state_dict()["1.running_mean"])


def test_swalr_is_a_scheduler_like_any_other() -> None:
    swa, model = SWA(start=0.5), make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2, anneal_strategy="linear")
    trainer = Trainer(
        model,
        make_data(),
        max_duration="4ep",
        loss_fn=F.cross_entropy,
        optimizers=optimizer,
        schedulers=schedule,
        algorithms=swa,
        device="cpu",
    )
    with trainer:
        trainer.fit()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    with use_average(model, swa.averaged_state_dict()):
        assert torch.equal(model[0].weight, swa.averaged_state_dict()["0.weight"])
