"""The audit finds nothing in SelectiveBackprop: it changes the batch, as it declares, and nothing of the loader's."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from engine_core_author.audit_callback import Audit
from sb_plugin import SelectiveBackprop


@pytest.mark.parametrize(
    "settings", [{}, {"microbatch_size": 3}, {"precision": "amp_bf16"}], ids=["plain", "microbatches", "bf16"]
)
@pytest.mark.parametrize("scale_factor", [1, 0.5])
def test_the_audit_finds_nothing(settings: dict[str, Any], scale_factor: float) -> None:
    x = torch.randn(32, 2, 8, 8)
    data = list(zip(x.split(8), (x.mean((1, 2, 3)) > 0).long().split(8), strict=True))
    norm = nn.GroupNorm(2, 4) if "microbatch_size" in settings else nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    audit = Audit(on_finding="error")
    trainer = Trainer(
        model,
        data,
        max_duration="2ep",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=SelectiveBackprop(start=0, end=1, scale_factor=scale_factor, interrupt=0),
        callbacks=audit,
        device="cpu",
        **settings,
    )
    with trainer:
        trainer.fit()
    assert audit.findings == []
    assert trainer.state.timestamp.batch == 8
