"""What the tests of insight-plugin share besides what all plugins' tests do: a small run."""

import pytest
import torch
from parts import Memory, batches, net, trainer


class Seen(Memory):
    """Keeps what is logged, and looks it up by name."""

    def names(self, first):
        """Return the names that begin with a word, in the order they came."""
        return list(dict.fromkeys(name for _, m in self.metrics for name in m if name.startswith(f"{first}/")))


@pytest.fixture
def run():
    """Return a function that trains a model with callbacks, and gives its trainer, closed, and what was logged."""

    def train(model=None, callbacks=(), **settings):
        seen = Seen()
        given = {
            "max_duration": "2ep",
            "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            "loggers": seen,
            "seed": 3,
            **settings,
        }
        data = given.pop("train_dataloader", batches(8, 8, 5, 8))
        torch.manual_seed(0)
        with trainer(data, model or net(dropout=0.2), callbacks=callbacks, **given) as made:
            made.fit()
        return made, seen

    return train
