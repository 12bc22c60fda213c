"""SWA computes BatchNorm's statistics again if it is given a loader: against torch's update_bn, and without a trace."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Callback, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import EngineError
from engine_core_author import ThreadRanks
from optim_plugin import SWA


def make_data(batches: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(batches)
    ]


def make_loader(**settings: Any) -> DataLoader[Any]:
    """Return a loader whose order is that of its own generator."""
    rows = TensorDataset(*map(torch.cat, zip(*make_data(), strict=True)))
    return DataLoader(rows, 8, shuffle=True, **{"generator": torch.Generator().manual_seed(3), **settings})


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(8)
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 8), norm, nn.utils.spectral_norm(nn.Linear(8, 3)))


class Seen(Callback):
    """Keeps what is in the model in each evaluation."""

    def __init__(self) -> None:
        self.models: list[dict[str, torch.Tensor]] = []

    def eval_batch_end(self, state: Any, logger: Any) -> None:
        self.models.append(copy.deepcopy(dict(state.model.state_dict())))


class Counted(list[Any]):
    """Batches, and how often they were read."""

    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return super().__iter__()


def make_trainer(swa: Any, *callbacks: Any, data: Any = None, **settings: Any) -> Trainer:
    model = settings.pop("model", None) or make_net()
    given: dict[str, Any] = {"max_duration": "4ep", "loss_fn": F.cross_entropy, "device": "cpu", "seed": 1}
    given |= {"optimizers": torch.optim.SGD(model.parameters(), lr=0.1), "progress_bar": False, **settings}
    return Trainer(model, data or make_data(), algorithms=swa, callbacks=callbacks, **given)


def test_they_are_those_of_torchs_update_bn_without_dropout_and_what_is_evaluated() -> None:
    swa, seen = SWA(start=0.5, update_bn=[x for x, _ in make_data()]), Seen()
    with make_trainer(swa, seen, eval_dataloader=make_data(1)) as trainer:
        trainer.fit()
    average, oracle = swa.averaged_state_dict(), make_net()
    oracle.load_state_dict(average)
    oracle[0].p = 0.0
    update_bn([x for x, _ in make_data()], oracle)
    assert all(torch.equal(seen.models[-1][name], tensor) for name, tensor in average.items())
    for name in ("2.running_mean", "2.running_var"):
        assert torch.equal(average[name], oracle.state_dict()[name])
        assert not torch.allclose(average[name], trainer.state.model.state_dict()[name])


@pytest.mark.parametrize(
    ("settings", "evaluated"),
    [({}, make_data(1)), ({"num_workers": 1, "persistent_workers": True}, make_data(1)), ({"generator": None}, None)],
    ids=["plain", "workers", "at the end of fit"],
)
def test_training_does_not_notice_it_even_where_the_loader_is_that_of_training(settings: Any, evaluated: Any) -> None:
    """In the middle of epochs; the generators, the order and the modes are as without it."""
    ends = []
    for gives_loader in (False, True):
        data = make_loader(**settings)
        swa = SWA(start=0.3, update_interval="1ba", update_bn=data if gives_loader else None)
        with make_trainer(swa, data=data, eval_dataloader=evaluated, eval_interval="2ba") as trainer:
            trainer.fit("2ep")
            trainer.fit()
            modes = [module.training for module in trainer.state.model.modules()]
            ends.append((trainer.state.model.state_dict(), modes, trainer.state.model[2].momentum))
    (without, *others), (states, *rest) = ends
    assert all(torch.equal(without[name], tensor) for name, tensor in states.items()) and others == rest


@pytest.mark.parametrize(("evaluates", "passes"), [(True, 2), (False, 1)])
def test_a_pass_is_made_only_where_the_mean_has_changed_and_is_used(evaluates: bool, passes: int) -> None:
    """From epoch 3 of 4 on. A second evaluation needs none; without any, there is one at the end."""
    loader = Counted(make_data())
    settings = {"eval_dataloader": {"a": make_data(1), "b": make_data(1)}} if evaluates else {}
    with make_trainer(SWA(start=0.7, update_bn=loader), **settings) as trainer:
        trainer.fit()
        trainer.eval(make_data(1))
    assert loader.passes == passes


def test_a_norm_that_is_frozen_keeps_its_statistics() -> None:
    class Frozen(Callback):
        def epoch_start(self, state: Any, logger: Any) -> None:
            state.model[2].eval()

    swa = SWA(start=0.5, update_bn=make_data())
    with make_trainer(swa, Frozen()) as trainer:
        trainer.fit()
    assert swa.averaged_state_dict()["2.running_mean"].tolist() == [0.0] * 8


def test_a_step_in_whose_middle_it_comes_is_the_same() -> None:
    class MidStep(Callback):
        def after_forward(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch > 12:
                trainer.eval(make_data(1))

    ends = []
    for callbacks in ([], [MidStep()]):
        with make_trainer(SWA(0.1, "1ba", update_bn=make_data()), *callbacks) as trainer:
            trainer.fit()
        ends.append(trainer.state.model.state_dict())
    assert all(torch.equal(ends[0][name], tensor) for name, tensor in ends[1].items())


def test_a_resumed_run_is_that_of_one_go(tmp_path: Path) -> None:
    """The mean in the checkpoint has no statistics of its own yet."""
    ends = []
    for stops in (False, True):
        swa = SWA(start=0.2, update_bn=make_loader())
        saver = CheckpointSaver(tmp_path / str(stops), interval="1ep")
        if stops:
            with make_trainer(swa, saver, data=make_loader()) as trainer:
                trainer.fit("2ep")
            swa = SWA(start=0.2, update_bn=make_loader())
        with make_trainer(swa, saver, data=make_loader(), autoresume=stops) as trainer:
            if not stops:
                trainer.fit("2ep")
            seen = [trainer.eval(make_data(2))]
            trainer.fit()
            seen.append(trainer.eval(make_data(2)))
        ends.append((seen, swa.averaged_state_dict()))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(ends[0][1][name], tensor) for name, tensor in ends[1][1].items())


def test_on_several_ranks_they_are_the_mean_of_those_of_the_ranks_loaders() -> None:
    def averages(shifts: Any, ranks: Any) -> dict[str, torch.Tensor]:
        swa = SWA(start=0.5, update_bn=[x + shifts[ranks.rank] for x, _ in make_data()])
        with make_trainer(swa, parallel=ranks) as trainer:
            trainer.fit()
        return swa.averaged_state_dict() or {}

    means = [
        [average["2.running_mean"] for average in ThreadRanks.run(partial(averages, shifts))]
        for shifts in ((0, 2), (1, 1))
    ]
    assert torch.equal(*means[0])
    torch.testing.assert_close(means[0], means[1])


@pytest.mark.parametrize("given", [iter(make_data()), "train", 3, make_loader().dataset], ids=type)
def test_what_gives_no_second_pass_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"update_bn=.* has to be a loader that starts over for each pass, such as a"):
        SWA(update_bn=given)


def test_a_loader_without_batches_is_refused() -> None:
    with make_trainer(SWA(start=0.5, update_bn=[])) as trainer:
        with pytest.raises((ValueError, EngineError), match="update_bn: the loader gave no batches"):
            trainer.fit()
        assert trainer.state.model[2].momentum == 0.1


def test_it_needs_whole_weights() -> None:
    assert SWA(update_bn=make_data()).metadata.needs == ("whole_weights", "duration")
    assert SWA().metadata.needs == ("duration",)
