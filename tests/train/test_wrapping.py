"""DistributedDataParallel waits for the parameters that train, whichever these are by now."""

import atexit
import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from engine_core.errors import RankError
from engine_core.parallel import DDP, spread_model
from engine_core.parallel import group as group_of_ranks
from engine_core.ranks import Ranks


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def replace_parameter_in_place(net):
    del net[0].bias
    net[0].bias = nn.Parameter(torch.zeros(2))


def spread(net):
    two = Ranks()
    two.size = 2
    return spread_model(net, DDP(), two, torch.device("cpu"), finds_unused=False)


CHANGES = {
    "freeze": lambda net: net[0].requires_grad_(False),
    "tie": lambda net: setattr(net[1], "weight", net[0].weight),
    "replace in place": replace_parameter_in_place,
    "replace": lambda net: net.__setitem__(0, nn.Linear(2, 2)),
    "add": lambda net: net.append(nn.Linear(2, 2)),
}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_wrapper_is_made_anew_where_other_parameters_train_and_only_there(change):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    wrapping = spread(net)
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
def test_a_rank_that_is_lost_while_running_statistics_are_averaged_ends_the_others(monkeypatch):
    with pytest.warns(UserWarning, match="BatchNorm"):
        wrapping = spread(nn.BatchNorm1d(2, affine=False))
    own = group_of_ranks.failures_of_group("10m", leaves=False)
    own._tell("rank 1 failed: ValueError: boom", "", 0.0)

    def lose(*_, **__):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "all_reduce", lose)
    with pytest.raises(RankError, match=r"^rank 0 ends because rank 1 failed: ValueError: boom$"):
        wrapping.mean_buffers()
    monkeypatch.setattr(group_of_ranks, "_of_groups", [])
    own.close()


@pytest.mark.usefixtures("group")
def test_a_table_that_does_not_change_is_sent_once_and_one_that_does_each_time(monkeypatch):
    net, sent = nn.Linear(2, 2), []
    net.register_buffer("mask", torch.ones(4))
    wrapping = spread(net)
    monkeypatch.setattr(dist, "broadcast", lambda bytes_, src: sent.append(len(bytes_)))
    for change in (None, None, net.mask.add_, None, None, lambda _: setattr(net, "mask", torch.zeros(4))):
        if change is not None:
            change(1.0)
        wrapping.mean_buffers()
    assert sent == [16] * 3


@pytest.fixture
def before_forks(monkeypatch):
    """Let joining meet nobody, and return what it has run before forks."""
    found = []
    monkeypatch.setattr(group_of_ranks, "_stores", [])
    monkeypatch.setattr(group_of_ranks, "store_of_group", lambda: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(atexit, "register", lambda function: function)
    monkeypatch.setattr(os, "register_at_fork", lambda **given: found.append(given["before"]))
    return found


def test_a_process_that_has_joined_forks_when_no_thread_of_gloo_is_about_to_enter_python(before_forks, monkeypatch):
    slept = []
    monkeypatch.setattr(group_of_ranks.time, "sleep", slept.append)
    for version in ((3, 11, 7), (3, 11, 8), (3, 12, 0)):
        monkeypatch.setattr(group_of_ranks.sys, "version_info", version)
        group_of_ranks._stores.clear()
        group_of_ranks._join("gloo", timedelta(seconds=1))
    (let_threads_finish,) = before_forks
    let_threads_finish()
    assert slept == [0.005]


@pytest.mark.usefixtures("before_forks")
def test_a_process_that_waits_for_the_others_to_join_ends_at_sigterm(monkeypatch):
    own, seen = signal.getsignal(signal.SIGTERM), []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: seen.append(signal.getsignal(signal.SIGTERM)))

    def handler(number, frame): ...

    signal.signal(signal.SIGTERM, handler)
    try:
        group_of_ranks._join("gloo", timedelta(seconds=1))
        assert seen == [signal.SIG_DFL]
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, own)


@pytest.mark.usefixtures("group")
def test_an_expanded_buffer_is_shared_as_any_other():
    net = nn.Linear(2, 2)
    for name, value in (("scale", torch.ones(1)), ("count", torch.tensor([3]))):
        net.register_buffer(name, value.expand(4))
    spread(net).mean_buffers()
    assert [net.scale.tolist(), net.count.tolist()] == [[1.0] * 4, [3] * 4]
