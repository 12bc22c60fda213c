"""SWA computes BatchNorm's statistics again if it is given a loader: against torch's update_bn, and without a trace."""

from functools import partial
from pathlib import Path
from typing import Any

import optim_parts
import pytest
import torch
from optim_parts import Recorder, same
from parts import at, batches
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import EngineError
from engine_core_author import ThreadRanks
from optim_plugin import SWA

DATA = batches(8, 8, 8, 8, 8)


def make_loader(**settings: Any) -> DataLoader[Any]:
    """Return a loader whose order is that of its own generator."""
    rows = TensorDataset(*map(torch.cat, zip(*DATA, strict=True)))
    return DataLoader(rows, 8, shuffle=True, **{"generator": torch.Generator().manual_seed(3), **settings})


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(8)
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 8), norm, nn.utils.spectral_norm(nn.Linear(8, 3)))


class Counted(list[Any]):
    """Batches, and how often they were read."""

    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return super().__iter__()


def make_trainer(swa: Any, *callbacks: Any, data: Any = None, **settings: Any) -> Trainer:
    given = {"model": make_net(), "max_duration": "4ep", **settings}
    return optim_parts.make_trainer(swa, *callbacks, data=data or DATA, **given)


def test_they_are_those_of_torchs_update_bn_without_dropout_and_what_is_evaluated() -> None:
    swa, seen = SWA(start=0.5, update_bn=[x for x, _ in DATA]), Recorder()
    with make_trainer(swa, seen, eval_dataloader=batches(8)) as trainer:
        trainer.fit()
    average, oracle = swa.averaged_state_dict(), make_net()
    oracle.load_state_dict(average)
    oracle[0].p = 0.0
    update_bn([x for x, _ in DATA], oracle)
    assert all(torch.equal(seen.evaluated[-1][name], tensor) for name, tensor in average.items())
    for name in ("2.running_mean", "2.running_var"):
        assert torch.equal(average[name], oracle.state_dict()[name])
        assert not torch.allclose(average[name], trainer.state.model.state_dict()[name])


@pytest.mark.parametrize(
    ("settings", "evaluated"),
    [({}, batches(8)), ({"num_workers": 1, "persistent_workers": True}, batches(8)), ({"generator": None}, None)],
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
    assert same(without, states) and others == rest


@pytest.mark.parametrize(("evaluates", "passes"), [(True, 2), (False, 1)])
def test_a_pass_is_made_only_where_the_mean_has_changed_and_is_used(evaluates: bool, passes: int) -> None:
    """From epoch 3 of 4 on. A second evaluation needs none; without any, there is one at the end."""
    loader = Counted(DATA)
    settings = {"eval_dataloader": {"a": batches(8), "b": batches(8)}} if evaluates else {}
    with make_trainer(SWA(start=0.7, update_bn=loader), **settings) as trainer:
        trainer.fit()
        trainer.eval(batches(8))
    assert loader.passes == passes


def test_a_norm_that_is_frozen_keeps_its_statistics() -> None:
    swa = SWA(start=0.5, update_bn=DATA)
    with make_trainer(swa, at("epoch_start", lambda state: state.model[2].eval())) as trainer:
        trainer.fit()
    assert swa.averaged_state_dict()["2.running_mean"].tolist() == [0.0] * 8


def test_a_step_in_whose_middle_it_comes_is_the_same() -> None:
    def evaluate(state: Any) -> None:
        if state.timestamp.batch > 12:
            trainer.eval(batches(8))

    ends = []
    for callbacks in ([], [at("after_forward", evaluate)]):
        with make_trainer(SWA(0.1, "1ba", update_bn=DATA), *callbacks) as trainer:
            trainer.fit()
        ends.append(trainer.state.model.state_dict())
    assert same(*ends)


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
            seen = [trainer.eval(batches(8, 8))]
            trainer.fit()
            seen.append(trainer.eval(batches(8, 8)))
        ends.append((seen, swa.averaged_state_dict()))
    assert ends[0][0] == ends[1][0]
    assert same(ends[0][1], ends[1][1])


def test_on_several_ranks_they_are_the_mean_of_those_of_the_ranks_loaders() -> None:
    def averages(shifts: Any, ranks: Any) -> dict[str, torch.Tensor]:
        swa = SWA(start=0.5, update_bn=[x + shifts[ranks.rank] for x, _ in DATA])
        with make_trainer(swa, parallel=ranks) as trainer:
            trainer.fit()
        return swa.averaged_state_dict() or {}

    means = [
        [average["2.running_mean"] for average in ThreadRanks.run(partial(averages, shifts))]
        for shifts in ((0, 2), (1, 1))
    ]
    assert torch.equal(*means[0])
    torch.testing.assert_close(means[0], means[1])


@pytest.mark.parametrize("given", [iter(DATA), "train", 3, make_loader().dataset], ids=type)
def test_what_gives_no_second_pass_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"update_bn=.* has to be a loader that starts over for each pass, such as a"):
        SWA(update_bn=given)


def test_a_loader_without_batches_is_refused() -> None:
    with make_trainer(SWA(start=0.5, update_bn=[])) as trainer:
        with pytest.raises((ValueError, EngineError), match="update_bn: the loader gave no batches"):
            trainer.fit()
        assert trainer.state.model[2].momentum == 0.1


def test_it_needs_whole_weights() -> None:
    assert SWA(update_bn=DATA).metadata.needs == ("whole_weights", "duration")
    assert SWA().metadata.needs == ("duration",)
