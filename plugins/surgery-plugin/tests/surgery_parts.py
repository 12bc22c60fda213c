"""What the tests of surgery-plugin share: INIT alone, digits, sentences, a training on them."""

import copy
import functools
import pickle

import torch
from parts import trainer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.run import load_model
from engine_core_author import RecordingDestination


def run_init(model, *algorithms, seed=3, **fields):
    """Fire INIT; return what is logged."""
    destination = RecordingDestination()
    state = State(model=model, algorithms=list(algorithms), seed=seed, **fields)
    with Engine(state, Logger([destination])) as engine:
        engine.run_event(Event.INIT)
    return [metrics for _, metrics in destination.metrics]


def digits():
    """Return images (1797, 1, 8, 8) and classes, in a random order."""
    data = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.images, dtype=torch.float32)[order, None] / 16, torch.tensor(data.target)[order]


def train_on_digits(model, algorithms=(), *, images=None, **settings):
    """Train on batches of 60 of the first 1,200 digits."""
    x, y = digits() if images is None else images
    data = list(zip(x[:1200].split(60), y[:1200].split(60), strict=True))
    with trainer(data, model, algorithms=algorithms, **{"seed": 1, **settings}) as made:
        made.fit()
    return made


def twins(module):
    """Return a copy and what is left after pickling."""
    return [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]


class Block(nn.Module):
    """A residual block before whose branches there are norms; it looks at no other token."""

    def __init__(self, channels):
        super().__init__()
        self.norm1, self.mix = nn.LayerNorm(channels), nn.Linear(channels, channels)
        self.norm2, self.mlp = nn.RMSNorm(channels), nn.Linear(channels, channels)

    def forward(self, x):
        x = x + self.mix(self.norm1(x)).tanh()
        return x + self.mlp(self.norm2(x)).tanh()


class LanguageModel(nn.Module):
    """Gives logits (n, length, 12) for tokens (n, length); the head is tied to the embedding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks = nn.Embedding(12, 8), nn.Sequential(Block(8), Block(8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def sentences(batches=6):
    """Return batches of tokens (4, 9) and of those that follow: each is the sum of the two before it, modulo 12."""
    first = torch.randint(12, (batches * 4, 2), generator=torch.Generator().manual_seed(1))
    rows = [*first.T]
    while len(rows) < 10:
        rows.append((rows[-1] + rows[-2]) % 12)
    tokens = torch.stack(rows, 1)
    return list(zip(tokens[:, :-1].split(4), tokens[:, 1:].split(4), strict=True))


def loss_of_tokens(logits, targets, reduction="mean"):
    """Return the cross entropy, of each row without a reduction."""
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)
    return losses.mean() if reduction == "mean" else losses


def train_on_sentences(algorithms=(), **settings):
    """Train a LanguageModel; return the trainer."""
    model = LanguageModel()
    adam = functools.partial(torch.optim.Adam, lr=0.01)
    given = {"optimizers": adam, "loss_fn": loss_of_tokens, "max_duration": "2ep", "seed": 1, **settings}
    with trainer(sentences(), model, algorithms=algorithms, **given) as made:
        made.fit()
    return made


def check_resumed_and_loaded(algorithm, folder):
    """Assert that a run cut in its middle ends as the whole one, to the bit, and that its weights can be loaded."""
    saver = CheckpointSaver(folder, interval="5ba", keep_last=None)
    whole = train_on_sentences(algorithm(), callbacks=[saver]).state.model.state_dict()
    first = min(path for path in folder.iterdir() if path.name.endswith("ba5"))
    resumed = train_on_sentences(algorithm(), load_path=first).state.model.state_dict()
    loaded = load_model(folder, LanguageModel).state_dict()
    for found in (resumed, loaded):
        assert [*found] == [*whole] and all(torch.equal(found[name], value) for name, value in whole.items())
