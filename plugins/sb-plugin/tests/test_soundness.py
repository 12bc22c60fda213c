"""The model shows why outputs of its scoring forward can't be reused."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from sb_plugin.reuse import unsound


def net(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 512), *parts, nn.Linear(512, 512))


def hooked(register: str) -> nn.Module:
    model = net(nn.ReLU())
    getattr(model[1], register)(lambda *_: None)
    return model


def with_own_forward() -> nn.Module:
    model = net()
    model[1].forward = lambda x: x
    return model


def compiled_in_place() -> nn.Module:
    model = net(nn.ReLU())
    model[0].compile(backend="eager")
    return model


def of_torch(name: str) -> nn.Module:
    """Return a module of a class with this name in torch; the real ones need a process group."""
    made: nn.Module = type(name, (nn.Module,), {"__module__": "torch.distributed.somewhere"})()
    return made


REASONS: dict[str, tuple[Callable[[], Any], str]] = {
    "BatchNorm": (lambda: net(nn.BatchNorm1d(512)), r"'1' \(BatchNorm1d\) uses the statistics of the batch"),
    "SyncBatchNorm": (lambda: net(nn.SyncBatchNorm(512)), r"'1' \(SyncBatchNorm\) uses the statistics"),
    "Dropout": (lambda: net(nn.Dropout(0.1)), r"dropout is active in '1' \(Dropout\)"),
    "AlphaDropout": (lambda: net(nn.AlphaDropout(0.1)), r"dropout is active in '1' \(AlphaDropout\)"),
    "attention": (lambda: net(nn.MultiheadAttention(512, 1, 0.1)), r"dropout is active in '1' \(MultiheadAttention"),
    "LSTM": (lambda: net(nn.LSTM(512, 512, 2, dropout=0.1)), r"dropout is active in '1' \(LSTM\)"),
    "forward hook": (lambda: hooked("register_forward_hook"), r"'1' \(ReLU\) has hooks"),
    "pre-hook": (lambda: hooked("register_forward_pre_hook"), r"'1' \(ReLU\) has hooks"),
    "backward hook": (lambda: hooked("register_full_backward_hook"), r"'1' \(ReLU\) has hooks"),
    "backward pre-hook": (lambda: hooked("register_full_backward_pre_hook"), r"'1' \(ReLU\) has hooks"),
    "torch.compile": (lambda: torch.compile(net(), backend="eager"), "the model .*is wrapped by torch.compile"),
    "a part compiled": (lambda: net(torch.compile(nn.ReLU(), backend="eager")), "'1' .*is wrapped by torch.compile"),
    "compiled in place": (compiled_in_place, r"'0' \(Linear\) is wrapped by torch.compile"),
    "DataParallel": (lambda: nn.DataParallel(net()), r"the model \(DataParallel\) is wrapped by DataParallel"),
    "DDP": (lambda: net(of_torch("DistributedDataParallel")), "'1' .*is wrapped by DistributedDataParallel"),
    "FSDP": (lambda: net(of_torch("FullyShardedDataParallel")), "'1' .*is wrapped by FSDP"),
    "fully_shard": (lambda: net(of_torch("FSDPModule")), "'1' .*is wrapped by fully_shard"),
    "no Linear": (lambda: nn.Sequential(nn.Conv2d(1, 1, 1)), "Sequential has no layer that is exactly"),
    "own forward": (with_own_forward, r"'1' \(Linear\) has its own forward"),
}


@pytest.mark.parametrize(("make", "reason"), REASONS.values(), ids=REASONS)
def test_a_look_at_the_model_shows_it(make: Callable[[], Any], reason: str) -> None:
    assert re.match(reason, unsound(make()) or "")


def test_a_look_finds_hooks_for_all_modules_autocast_and_another_linear(monkeypatch: Any) -> None:
    model = net()
    hook = register_module_forward_hook(lambda *_: None)
    assert unsound(model) == "hooks are registered for all modules: remove them"
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast is on" in (unsound(model) or "")
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert "nn.Linear.forward was replaced" in (unsound(model) or "")


@pytest.mark.parametrize(
    "part",
    [nn.BatchNorm1d(512), nn.Dropout(0.5), nn.MultiheadAttention(512, 1, 0.5), nn.LSTM(512, 512, 2, dropout=0.5)],
    ids=lambda part: type(part).__name__,
)
def test_what_is_in_eval_mode_or_drops_nothing_is_not_a_reason(part: nn.Module) -> None:
    assert unsound(net(part.eval(), nn.Dropout(0), nn.LayerNorm(512), nn.MultiheadAttention(512, 1))) is None
