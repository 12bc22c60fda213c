"""The engine without algorithms is the loop that one would write by hand, bit for bit."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from .parts import net, rows, same, trainer

EPOCHS, SEED = 3, 11

sgd = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
adamw = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731


def shuffled():
    return DataLoader(TensorDataset(*rows(20)), batch_size=8, shuffle=True)


def by_hand(model, optimizer, *, clip=None, scheduler=None, bf16=False):
    torch.manual_seed(SEED)
    loader = shuffled()
    model.train()
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)


@pytest.mark.parametrize(
    ("make_optimizer", "hand", "settings"),
    [
        (sgd, {}, {}),
        (adamw, {}, {}),
        (sgd, {"clip": 0.05}, {"grad_clip_norm": 0.05}),
        (sgd, {"scheduler": cosine}, {"schedulers": (cosine, "1ba")}),
        (adamw, {"bf16": True}, {"precision": "amp_bf16"}),
        (sgd, {}, {"microbatch_size": 8}),  # of the whole batch
    ],
)
def test_it_is_the_loop_by_hand(make_optimizer, hand, settings):
    ours, theirs = net(dropout=0.3), net(dropout=0.3)
    optimizer = make_optimizer(theirs.parameters())
    scheduler = hand["scheduler"](optimizer) if "scheduler" in hand else None
    by_hand(theirs, optimizer, **{**hand, "scheduler": scheduler})
    given = {"max_duration": f"{EPOCHS}ep", "seed": SEED, "optimizers": make_optimizer, **settings}
    with trainer(shuffled(), ours, **given) as made:
        made.fit()
    assert same(ours.state_dict(), theirs.state_dict())
    assert same(made.state.optimizers[0].state_dict(), optimizer.state_dict())
    assert not same(ours.state_dict(), net().state_dict())


def test_a_model_with_its_own_loss_trains_as_one_with_a_loss_function():
    class OwnLoss(nn.Sequential):
        def forward(self, batch):
            return super().forward(batch[0])

        def loss(self, outputs, batch):
            return F.cross_entropy(outputs, batch[1])

    plain, own = net(), OwnLoss(*net())
    trainer(shuffled(), plain, seed=SEED).fit()
    trainer(shuffled(), own, seed=SEED, loss_fn=None).fit()
    assert same(plain.state_dict(), own.state_dict())
