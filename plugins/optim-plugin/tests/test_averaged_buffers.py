"""Which buffers EMA and SWA average: those of normalization layers; all others are copied."""

import pytest
import torch
from parts import batches, same, trainer
from torch import nn
from torch.nn import functional as F

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from optim_plugin import EMA, SWA, ema_update, start_average, use_average

BOTH = pytest.mark.parametrize("make", [lambda **k: EMA(0.5, **k), lambda **k: SWA(0.0, **k)], ids=["ema", "swa"])
WRAPS = [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]


def make_trainer(average, model, *callbacks, **settings):
    given = {"eval_dataloader": batches(8, 8, 8, 8), "max_duration": "3ep", "seed": 1, **settings}
    return trainer(batches(8, 8, 8, 8), model, algorithms=average, callbacks=callbacks, **given)


def train(average, model):
    """Return what is averaged in a training."""
    with make_trainer(average, model) as run:
        run.fit()
    return average.averaged_state_dict()


class Queue(nn.Module):
    """Keeps the latest outputs, as contrastive methods do."""

    def __init__(self):
        super().__init__()
        self.line, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("queue", torch.zeros(2, 3))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        made = self.norm(self.line(x))
        if self.training:
            self.queue[self.at % 2] = F.normalize(made.detach()[0], dim=0)
            self.at += 1
        return made


class Kinds(Queue):
    """Has a buffer that grows with each batch, and one that the first batch makes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(0, 3))
        self.register_buffer("scale", None)

    def forward(self, x):
        made = super().forward(x)
        if self.training:
            self.memory = torch.cat([self.memory, made.detach()[:1]])
            self.scale = made.detach().std(0)
        return made


def normalized(wrap):
    torch.manual_seed(1)
    return nn.Sequential(wrap(nn.Linear(4, 4)), nn.ReLU(), wrap(nn.Linear(4, 3)))


@BOTH
@pytest.mark.parametrize(("wrap", "buffers"), [(WRAPS[0], "average"), (WRAPS[1], lambda name, buffer: True)])
def test_the_vectors_of_a_spectral_norm_are_never_averaged(make, wrap, buffers):
    model = normalized(wrap)
    average, own = train(make(buffers=buffers), model), model.state_dict()
    vectors = [name for name in own if name.endswith(("_u", "_v"))]
    assert len(vectors) == 4
    assert all(torch.equal(average[name], own[name]) for name in vectors)
    assert all(not torch.equal(average[name], own[name]) for name in own if name not in vectors)


@BOTH
def test_statistics_are_averaged_and_all_else_is_copied_whenever_it_gets_its_shape(make):
    model = Kinds()
    average, own = train(make(), model), model.state_dict()
    assert all(torch.equal(average[name], own[name]) for name in ("queue", "at", "memory", "scale"))
    assert not torch.equal(average["norm.running_var"], own["norm.running_var"])
    assert own["memory"].shape == (12, 3)


@BOTH
@pytest.mark.parametrize(
    ("buffers", "averaged"),
    [
        ("copy", []),
        ("average", ["queue", "norm.running_mean", "norm.running_var"]),
        (lambda name, buffer: name == "queue" and buffer.dim() == 2, ["queue"]),
    ],
    ids=["copy", "average", "function"],
)
def test_the_user_says_which(make, buffers, averaged):
    model = Queue()
    average, own = train(make(buffers=buffers), model), model.state_dict()
    assert [name for name, _ in model.named_buffers() if not torch.equal(average[name], own[name])] == averaged


@BOTH
def test_a_lazy_model_is_averaged_from_its_first_batch_on(make):
    model = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(3))
    average, own = train(make(), model), model.state_dict()
    assert average["0.weight"].shape == (5, 4) and not torch.equal(average["0.weight"], own["0.weight"])


@BOTH
def test_an_evaluation_that_gives_a_buffer_another_shape_leaves_it_as_it_was(make):
    class InEval(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("seen", torch.zeros(0))

        def forward(self, x):
            if not self.training:
                self.seen.resize_(len(x))
            return super().forward(x)

    model = InEval()
    average = train(make(), model)
    assert model.seen.shape == average["seen"].shape == (0,)


def shorten(state):
    """Return an average as it was saved before: with a mean of u and v, and no word about which buffers were copied."""
    average = {name: t / 3 if name.endswith(("_u", "_v")) else t for name, t in state["average"].items()}
    return {"average": average, "count": state["count"]}


@BOTH
@pytest.mark.parametrize(("wrap", "save"), [(WRAPS[0], shorten), (WRAPS[1], shorten), (WRAPS[1], dict)])
def test_a_resumed_run_is_that_of_one_go_also_from_an_average_of_all_buffers(make, wrap, save, tmp_path):
    whole, half, rest = make(), make(), make()
    with make_trainer(whole, normalized(wrap)) as run:
        run.fit("2ep")
        expected = [run.eval()]
        run.fit()
        expected.append(run.eval())
    half.state_dict = lambda: save(type(half).state_dict(half)) if half.averaged_state_dict() else {}
    with make_trainer(half, normalized(wrap), CheckpointSaver(tmp_path, interval="1ep")) as run:
        run.fit("2ep")
    with make_trainer(rest, normalized(wrap), load_path=tmp_path) as run:
        seen = [run.eval()]
        run.fit()
        seen.append(run.eval())
    assert seen == expected
    assert same(rest.averaged_state_dict(), whole.averaged_state_dict())


def test_a_buffer_under_two_names_grows_under_both_in_an_average_that_has_lost_the_ties():
    inner = Kinds()
    inner.scale = torch.ones(3)
    model = nn.ModuleDict({"one": inner, "two": inner})
    average = {name: tensor.clone() for name, tensor in start_average(model).items()}
    inner(torch.ones(2, 4))
    ema_update(average, model, 0.5)
    assert average["one.memory"].shape == average["two.memory"].shape == (1, 3)


def test_an_average_with_sizes_stands_in_for_a_model_without():
    trained, fresh = Kinds(), Kinds()
    trained(torch.ones(2, 4))
    trained.scale = fresh.scale = torch.ones(3)
    with use_average(fresh, start_average(trained)):
        assert torch.equal(fresh.memory, trained.memory)
    assert fresh.memory.shape == (0, 3)


@pytest.mark.parametrize(
    ("buffers", "error", "message"),
    [
        ("norm", ValueError, r"buffers='norm' is not one of 'norms', 'average', 'copy'; did you mean 'norms'\?"),
        (True, TypeError, r"buffers=True \(bool\) has to be one of 'norms', 'average', 'copy', or a function"),
    ],
)
def test_anything_else_is_refused(buffers, error, message):
    model = nn.Linear(1, 1)
    for use in (lambda: EMA(buffers=buffers), lambda: ema_update(start_average(model), model, buffers=buffers)):
        with pytest.raises(error, match=message):
            use()
    norm, word = nn.BatchNorm1d(2), lambda name, buffer: "copy"
    with pytest.raises(TypeError, match="returned 'copy' for 'running_mean': let it return True to average it, False"):
        ema_update(start_average(norm), norm, buffers=word)
