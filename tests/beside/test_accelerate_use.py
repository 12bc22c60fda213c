"""A loop with Accelerate is the user's: nothing is left behind, and it takes loaders, models, plugins as they are."""

import re
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from engine_core import Callback, Objective, Trainer
from engine_core_accelerate import EngineLoop

from .accelerate_runs import Run, at, make_accelerator
from .cases import SB, differences, make_data, make_loaders, make_net, train_ours

BUFFERS = re.compile("running|num_batches")


def found(run):
    hooks = [(module._forward_hooks, module._forward_pre_hooks) for module in run.net.modules()]
    modes = [module.training for module in run.net.modules()]
    return {name: {*vars(module)} for name, module in run.net.named_modules()}, hooks, modes, {*vars(run.accelerator)}


@pytest.mark.parametrize("where", ["nowhere", "training", "evaluation", "forward"])
def test_the_model_is_left_as_found_and_without_the_average(where):
    run = Run("ema")
    run.net[1].eval()  # a mode that the user has set
    before, trained = found(run), {}

    def train():
        with run.fit():
            run.epoch()
            trained.update({name: value.clone() for name, value in run.net.state_dict().items()})
            with run.loop.evaluation("eval"):
                assert not run.net.training and not torch.is_grad_enabled()
                assert not torch.equal(run.net[0].weight, trained["0.weight"])
                if where == "evaluation":
                    raise ZeroDivisionError
            if where == "forward":
                run.net.register_forward_hook(lambda *_: 1 / 0)
            for batch in run.loop.batches(run.loader):
                if where != "training":
                    run.loop.gradients(batch)
                    break
                raise ZeroDivisionError

    with nullcontext() if where == "nowhere" else pytest.raises(ZeroDivisionError):
        train()
    run.net._forward_hooks.clear()
    assert found(run) == before
    assert torch.is_grad_enabled()
    assert run.loop.state.loop.closure is None
    weights = run.net.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in trained.items() if not BUFFERS.search(name))


def test_a_failed_evaluation_may_be_caught_and_training_goes_on():
    run = Run("ema")
    with run.fit():
        run.epoch()
        trained = run.net[0].weight.detach().clone()
        with pytest.raises(ValueError, match="no data"), run.loop.evaluation("eval"):
            assert not torch.equal(run.net[0].weight, trained)
            raise ValueError("no data")
        assert torch.equal(run.net[0].weight, trained)
        assert run.state.dataloader_label == "train"
        run.evaluate()
        run.epoch()
        run.evaluate()
    assert differences(run.ended(), train_ours("ema")) == []


def test_two_fits_are_one_run():
    run = Run("together")
    for epochs in (1, 2):
        run.train(epochs)
    assert differences(run.ended(), train_ours("together")) == []


def test_two_runs_of_one_model_in_one_accelerator_are_two_runs():
    accelerator, net = make_accelerator(), make_net()
    for _ in range(2):
        net.load_state_dict(make_net().state_dict())
        run = Run("label_smoothing", accelerator=accelerator, net=net)
        assert differences(run.train(), train_ours("label_smoothing")) == []
        accelerator.free_memory()


def test_a_loader_without_a_length():
    endless = type("Endless", (IterableDataset,), {"__iter__": lambda self: iter(make_data(rows=20))})()
    run = Run("ema", loaders=(DataLoader(endless, batch_size=8), make_loaders()[1]))
    theirs = run.train()
    assert run.state.dataloader_len is None
    assert theirs.clock == (2, 6, 40, 0, 0)
    assert differences(theirs, train_ours("ema", rows=20)) == []


def test_the_loader_may_come_with_the_batches_and_closing_closes_callbacks_once():
    seen, closed = [], []
    closes = type("Closes", (Callback,), {"close": lambda self, state, logger: closed.append(1)})()
    run = Run("ema", callbacks=[at("batch_end", lambda state: seen.append(state.dataloader_len)), closes])
    with run.loop.fit(run.model, run.optimizer):
        for _ in range(2):
            run.epoch()
            run.evaluate()
    for _ in range(2):
        run.loop.close()
    assert (seen, closed) == ([7] * 14, [1])
    assert differences(run.ended(), train_ours("ema")) == []


class Tagger(nn.Module):
    """Takes keywords, as models for texts do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.tag = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids, mask):
        return self.tag((self.words(ids) * mask[..., None]).sum(1))


def texts():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(20, (24, 5), generator=generator)
    return [{"ids": i, "mask": (i > 3).float(), "labels": torch.tensor(n % 3)} for n, i in enumerate(ids)]


def tagged():
    return Objective(torch.nn.CrossEntropyLoss(), inputs=("ids", "mask"), targets="labels")


def test_a_batch_that_is_a_dict_trains_with_an_objective():
    keys = {"input_key": "ids", "target_key": "labels"}
    algorithms = [
        ("selective_backprop", {**SB, **keys, "scale_factor": 1}),
        ("label_smoothing", {"target_key": "labels"}),
        ("ema", {"decay": 0.9}),
    ]
    theirs, ours, loader = Tagger(), Tagger(), DataLoader(texts(), batch_size=8)
    loop = EngineLoop(make_accelerator(), objective=tagged(), algorithms=algorithms, max_duration="2ep", seed=3)
    loop.init(theirs)
    model, optimizer, batches = loop.accelerator.prepare(theirs, torch.optim.SGD(theirs.parameters(), lr=0.5), loader)
    with loop.fit(model, optimizer, batches):
        for _ in range(2):
            for batch in loop.batches(batches):
                loop.gradients(batch)
                optimizer.step()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.5)
    given = {"optimizers": optimizer, "algorithms": algorithms, "seed": 3, "progress_bar": False}
    with Trainer(ours, loader, objective=tagged(), max_duration="2ep", **given) as trainer:
        trainer.fit()
    assert all(map(torch.equal, theirs.parameters(), ours.parameters()))
    assert not torch.equal(theirs.tag.weight, Tagger().tag.weight)


def test_the_plugin_of_hook_api_1_works_as_before(api1):
    def make():
        algorithms = ["double_loss", ("api1_scale_inputs", {"factor": 3}), ("api1_keep_first", {"keep": 5}), "anywhere"]
        return {"algorithms": algorithms, "callbacks": ["api1_witness", "api1_bystander"], "loggers": ["api1_ledger"]}

    given = make()
    run = Run(given.pop("algorithms"), **given)
    run.loop.engine.host.register(api1.Hooks())
    theirs = run.train()
    lines = [*api1.journal]
    api1.journal.clear()
    ours = train_ours("none", **make())
    kept = ("Anywhere", "DoubleLoss", "KeepFirst")
    assert theirs.clock == ours.clock
    assert all(torch.equal(value, ours.weights[name]) for name, value in theirs.weights.items())
    assert [s for s in lines if s.startswith(kept)] == [s for s in api1.journal if s.startswith((*kept, "Hooks at"))]
    assert run.state.callbacks[0].heard.count("batch_end") == 14


def test_seeds_and_names_are_as_in_the_trainer():
    run = Run([("ema", {"decay": 0.5}), "label_smoothing"], seed=None)
    assert [type(a).__name__ for a in run.state.algorithms] == ["EMA", "LabelSmoothing"]
    assert isinstance(run.state.seed, int)
    assert Run(seed=None).state.seed != run.state.seed
