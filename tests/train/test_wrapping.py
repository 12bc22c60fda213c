"""DistributedDataParallel waits for the parameters that train, whichever these are by now."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from engine_core.errors import RankError
from engine_core.parallel import DDP, failures, spread_model
from engine_core.ranks import Ranks


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def freeze(net: nn.Sequential) -> None:
    net[0].requires_grad_(False)


def tie(net: nn.Sequential) -> None:
    net[1].weight = net[0].weight


def replace_parameter_in_place(net: nn.Sequential) -> None:
    del net[0].bias
    net[0].bias = nn.Parameter(torch.zeros(2))


def replace_module(net: nn.Sequential) -> None:
    net[0] = nn.Linear(2, 2)


def add_module(net: nn.Sequential) -> None:
    net.append(nn.Linear(2, 2))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("change", [freeze, tie, replace_parameter_in_place, replace_module, add_module])
def test_the_wrapper_is_made_anew_where_other_parameters_train_and_only_there(
    change: Callable[[nn.Sequential], None],
) -> None:
    net, two = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), Ranks()
    two.size = 2
    wrapping = spread_model(net, DDP(), two, torch.device("cpu"), finds_unused=False)
    wrapping.follow()
    first = wrapping.called
    net.add_module("idle", nn.ReLU())  # another structure, and the same parameters
    wrapping.follow()
    assert wrapping.called is first
    change(net)
    wrapping.follow()
    second = wrapping.called
    assert second is not first
    assert second.module is net
    wrapping.follow()
    assert wrapping.called is second


@pytest.mark.usefixtures("group")
def test_a_rank_that_is_lost_while_running_statistics_are_averaged_ends_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, two = nn.BatchNorm1d(2, affine=False), Ranks()
    two.size = 2
    with pytest.warns(UserWarning, match="BatchNorm"):
        wrapping = spread_model(net, DDP(), two, torch.device("cpu"), finds_unused=False)
    own = failures.failures_of_group("10m", leaves=False)
    own._board.tell("rank 1 failed: ValueError: boom", "", 0.0)

    def lose(*_: object, **__: object) -> None:
        raise RuntimeError("Connection closed by peer")

    for name in ("all_reduce", "broadcast"):
        with monkeypatch.context() as patched:
            patched.setattr(dist, name, lose)
            with pytest.raises(RankError, match=r"^rank 0 ends because rank 1 failed: ValueError: boom$"):
                wrapping.mean_buffers()
    monkeypatch.setattr(failures, "_of_group", None)
    own.close()
