"""Surgery within a run: optimizers of the Trainer and of a custom loop follow, and the run is as if built by hand."""

import functools

import pytest
import torch
from parts import net, same, trainer
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import ArgumentError
from surgery_plugin.replacement import replace_modules

from .test_replacement import Wrap

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Surgeon(Algorithm):
    """Replaces Linears by what a function makes of them."""

    metadata = AlgorithmMetadata(events=(Event.INIT,), tags=("surgery",), writes=("model",))

    def __init__(self, policy, kind=nn.Linear):
        self.policies = {kind: policy}

    def match(self, event, state):
        return event is Event.INIT

    def apply(self, event, state, logger):
        replace_modules(state.model, self.policies, optimizers=state.optimizers)


def double(module, name):
    """Return a wrapper with a new, known parameter."""
    wrapped = Wrap(module)
    wrapped.scale = nn.Parameter(torch.ones(3 if name == "4" else 6))
    wrapped.forward = lambda x: wrapped.scale * module(x)
    return wrapped


def weights(model):
    return [parameter.detach() for parameter in model.parameters()]


def by_hand():
    """Return a net that was operated on before anything else, and trained."""
    model = net()
    replace_modules(model, {nn.Linear: double})
    trainer(model=model, optimizers=SGD, max_duration="2ep").fit()
    return model


def test_a_callable_and_an_optimizer_made_earlier_train_the_same():
    expected = weights(by_hand())
    for make in (lambda model: SGD, lambda model: SGD(model.parameters())):
        model = net()
        made = trainer(model=model, algorithms=Surgeon(double), optimizers=make(model), max_duration="2ep")
        made.fit()
        assert same(weights(model), expected)
        assert not torch.equal(model[4].scale, torch.ones(3))


def test_surgery_after_surgery_follows_too():
    model = net()
    optimizer = SGD([{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[4].parameters()]}])
    algorithms = [Surgeon(double), Surgeon(lambda m, n: nn.PReLU(), nn.ReLU)]
    trainer(model=model, algorithms=algorithms, optimizers=optimizer).fit()
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert [[names[p] for p in group["params"]] for group in optimizer.param_groups] == [
        ["0.inner.weight", "0.inner.bias", "0.scale"],
        ["1.weight", "1.bias", "4.inner.weight", "4.inner.bias", "4.scale", "2.weight"],
    ]


def test_surgery_that_is_refused_leaves_the_model_as_it_was_so_that_the_retry_is_refused_too():
    model = net()
    optimizers = [SGD(model[place].parameters()) for place in (0, 4)]
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"several of them could train .* '2\.weight'") as refused:
            trainer(model=model, algorithms=Surgeon(lambda m, n: nn.PReLU(), nn.ReLU), optimizers=optimizers)
        assert refused.value.__notes__ == ["raised by apply of algorithm Surgeon at INIT"]
        assert type(model[2]) is nn.ReLU
