"""What the tests of schedule-plugin share: texts of tokens, and a small model of them."""

import torch
from parts import trainer
from torch import nn
from torch.nn import functional as F

WORDS, LENGTH = 11, 24


def texts(*sizes, length=LENGTH):
    """Return batches of tokens and of the tokens after them, each (size, length)."""
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(WORDS, (size, length + 1), generator=generator) for size in sizes]
    return [(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in tokens]


class Texts(nn.Module):
    """Predicts the next token from the mean of those up to here; always with the same weights."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.embed, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)

    def forward(self, tokens):
        """Return logits (n, WORDS, length)."""
        counted = torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.head(self.embed(tokens).cumsum(1) / counted).transpose(1, 2)


class Masked(Texts):
    """Gets the whole batch, a dict, and has its own loss."""

    def forward(self, batch):
        """Return logits (n, WORDS, length)."""
        return super().forward(batch["input_ids"] * batch["attention_mask"])

    def loss(self, outputs, batch):
        """Return the mean over the labels that count."""
        return F.cross_entropy(outputs, batch["labels"])


def texts_trainer(data=None, model=None, **settings):
    """Return a trainer of texts."""
    given = {"max_duration": "2ep", "loss_fn": F.cross_entropy, **settings}
    return trainer(texts(2, 2, 2, 2) if data is None else data, Texts() if model is None else model, **given)
