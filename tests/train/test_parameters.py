"""Optimizers that were made before follow a model whose parameters change, each in its place, with its state."""

import itertools

import pytest
import torch
from torch import nn

from engine_core.errors import ArgumentError
from engine_core.surgery import follow_parameters

SGD = torch.optim.SGD


def replace_modules(model, policies, optimizers=()):
    """Put what the policies return in place of modules by type, as simply as it can be done; return the places."""
    optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    before = dict(model.named_parameters(remove_duplicate=False))
    places = []
    for name, module in [*model.named_modules()]:
        new = policies[type(module)](module, name) if type(module) in policies else None
        if new is not None:
            parent, _, key = name.rpartition(".")
            setattr(model.get_submodule(parent), key, new)
            places.append(name)
    follow_parameters(optimizers, before, dict(model.named_parameters(remove_duplicate=False)))
    return places


class Wrap(nn.Module):
    """Holds the module that it stands for."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def wrap(module, name):
    return Wrap(module)


def layers(*sizes):
    """Return Linears of these sizes with ReLUs between them."""
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*[part for pair in pairs for part in (nn.Linear(*pair), nn.ReLU())][:-1])


def new_linear(module, name):
    return nn.Linear(module.in_features, module.out_features)


def prelu(module, name):
    return nn.PReLU()


def step(model, *optimizers):
    model(torch.ones(2, 2)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def trained(model, optimizer):
    """Return the names of the parameters in each group."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [[names.get(parameter, "?") for parameter in group["params"]] for group in optimizer.param_groups]


def test_new_parameters_take_the_places_of_the_former_in_their_groups():
    model = layers(2, 3, 2)
    bias = {"params": [model[2].bias, model[0].bias], "lr": 0.2, "weight_decay": 0.0}
    optimizer = SGD([bias, {"params": [model[0].weight, model[2].weight]}], lr=0.1, weight_decay=0.5)
    groups = list(optimizer.param_groups)
    replace_modules(model, {nn.Linear: new_linear}, optimizers=[optimizer])
    assert trained(model, optimizer) == [["2.bias", "0.bias"], ["0.weight", "2.weight"]]
    assert [group["lr"] for group in groups] == [0.2, 0.1]
    assert all(mine is group for mine, group in zip(optimizer.param_groups, groups, strict=True))


def test_the_state_of_what_stays_is_kept_and_of_what_goes_is_dropped():
    model = layers(2, 3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    kept = {p: optimizer.state[p] for p in model[0].parameters()}
    gone = list(model[2].parameters())
    policies = {nn.Linear: lambda m, n: new_linear(m, n) if n == "2" else wrap(m, n)}
    replace_modules(model, policies, optimizers=[optimizer])
    assert trained(model, optimizer) == [["0.inner.weight", "0.inner.bias", "2.weight", "2.bias"]]
    assert dict(optimizer.state) == kept
    assert not any(parameter in optimizer.state for parameter in gone)
    step(model, optimizer)
    assert optimizer.state[model[2].weight]["step"] == 1
    assert optimizer.state[model[0].inner.weight]["step"] == 2


def test_a_new_name_joins_what_is_around_it_where_its_module_trained_nothing():
    model = nn.ModuleDict({"body": layers(2, 3, 2), "head": nn.Linear(2, 2), "end": nn.ReLU()})
    parts = [{"params": model[part].parameters()} for part in ("body", "head")]
    optimizer = SGD(parts, lr=0.1)
    replace_modules(model, {nn.ReLU: prelu}, optimizers=[optimizer])
    body, head = trained(model, optimizer)
    assert (body[4:], head[2:]) == (["body.1.weight"], ["end.weight"])


def test_a_new_name_that_several_optimizers_could_train_is_refused_with_a_remedy():
    model = layers(2, 3, 2)
    optimizers = [SGD(model[place].parameters(), lr=0.1) for place in (0, 2)]
    says = (
        "^optimizers: several of them could train the new parameter '1.weight'; make the optimizers after the surgery"
    )
    with pytest.raises(ArgumentError, match=says):
        replace_modules(model, {nn.ReLU: prelu}, optimizers=optimizers)


def test_a_tie_that_surgery_cuts_leaves_both_ends_trained():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    optimizer = SGD([{"params": [model[0].weight]}, {"params": [model[0].bias, model[1].bias]}], lr=0.1)
    one = {nn.Linear: lambda m, n: new_linear(m, n) if n == "1" else None}
    replace_modules(model, one, optimizers=[optimizer])
    assert trained(model, optimizer) == [["0.weight", "1.weight"], ["0.bias", "1.bias"]]


needs_names = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6), reason="groups have names since torch 2.6"
)


@needs_names
def test_names_in_groups_stay_true():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = SGD(model.named_parameters(), lr=0.1)
    of_linear = lambda m, n: {"0": wrap(m, n), "2": nn.Linear(2, 2, bias=False), "3": None}[n]  # noqa: E731
    replace_modules(model, {nn.Linear: of_linear, nn.ReLU: prelu}, optimizers=[optimizer])
    (group,) = optimizer.param_groups
    expected = ["0.inner.weight", "0.inner.bias", "2.weight", "3.weight", "3.bias", "1.weight"]
    assert group["param_names"] == expected == trained(model, optimizer)[0]
    optimizer.load_state_dict(optimizer.state_dict())


def test_an_optimizer_that_remembers_all_parameters_at_once_is_refused_where_they_change():
    model = layers(2, 3, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    assert replace_modules(model, {nn.Linear: wrap}, optimizers=[optimizer]) == ["0", "2"]
    says = "LBFGS can't replace parameters once it is made; make it after the surgery"
    with pytest.raises(ArgumentError, match=says):
        replace_modules(model, {nn.ReLU: prelu}, optimizers=[optimizer])


def decayed_or_not(model):
    """Return an optimizer with weight decay for matrices only, as is usual."""
    parameters = list(model.parameters())
    matrices, rest = ([p for p in parameters if (p.dim() > 1) is wide] for wide in (True, False))
    return SGD([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.1)


def gated(module, name):
    """Return the layer with another beside it."""
    return nn.ModuleDict({"inner": module, "gate": nn.Linear(module.in_features, module.out_features)})


def scaled(module, name):
    """Return the layer with a vector and a matrix of other names."""
    new = nn.ModuleDict({"inner": module})
    new.scale, new.mixing = nn.Parameter(torch.ones(2)), nn.Parameter(torch.eye(2))
    return new


def test_a_new_parameter_joins_those_that_have_its_name_elsewhere():
    model = layers(2, 2)
    optimizer = decayed_or_not(model)
    replace_modules(model, {nn.Linear: gated}, optimizers=optimizer)
    assert trained(model, optimizer) == [["0.inner.weight", "0.gate.weight"], ["0.inner.bias", "0.gate.bias"]]


def test_among_those_with_its_name_or_without_any_it_joins_those_with_as_many_dimensions():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.ReLU())
    optimizer = decayed_or_not(model)
    replace_modules(model, {nn.Linear: scaled, nn.ReLU: prelu}, optimizers=optimizer)
    vectors = ["0.inner.bias", "1.weight", "1.bias", "0.scale", "2.weight"]
    assert trained(model, optimizer) == [["0.inner.weight", "0.mixing"], vectors]


def test_what_is_nearer_counts_more_than_what_is_alike():
    model = layers(2, 2, 2)
    weights = {"params": [model[0].weight, model[2].weight]}
    optimizer = SGD([weights, {"params": [model[0].bias]}, {"params": [model[2].bias]}], lr=0.1)
    replace_modules(model, {nn.Linear: gated}, optimizers=optimizer)
    assert [group[-1] for group in trained(model, optimizer)] == ["2.gate.weight", "0.gate.bias", "2.gate.bias"]


def test_the_one_of_several_optimizers_with_its_like_trains_it_and_without_one_it_is_refused():
    model = layers(2, 2, 2)
    optimizers = [SGD([model[0].weight, model[2].weight], lr=0.1), SGD([model[0].bias, model[2].bias], lr=0.1)]
    replace_modules(model, {nn.Linear: lambda m, n: gated(m, n) if n == "0" else None}, optimizers=optimizers)
    assert [trained(model, optimizer)[0][2:] for optimizer in optimizers] == [["0.gate.weight"], ["0.gate.bias"]]
    three = nn.Sequential(nn.PReLU(), nn.PReLU(), nn.ReLU())
    optimizers = [SGD(part.parameters(), lr=0.1) for part in three[:2]]
    with pytest.raises(ArgumentError, match=r"several of them could train the new parameter '2\.weight'"):
        replace_modules(three, {nn.ReLU: prelu}, optimizers=optimizers)


def test_a_copy_joins_the_group_of_its_source_with_what_is_kept_for_it():
    model = layers(2, 2)
    optimizers = [SGD([model[0].weight], lr=0.1, momentum=0.9), torch.optim.Adam([model[0].bias])]
    step(model, *optimizers)
    before = dict(model.named_parameters())
    model.add_module("1", nn.Linear(2, 2))
    sources = {"1.weight": "0.weight", "1.bias": "0.bias"}
    follow_parameters(optimizers, before, dict(model.named_parameters()), sources)
    ours = [[model[0].weight, model[1].weight], [model[0].bias, model[1].bias]]
    assert [[*map(id, o.param_groups[0]["params"])] for o in optimizers] == [[*map(id, pair)] for pair in ours]
    for optimizer in optimizers:
        source, copied = (optimizer.state[parameter] for parameter in optimizer.param_groups[0]["params"])
        assert all(torch.equal(source[k], copied[k]) and source[k] is not copied[k] for k in source | copied)
