"""Optimizers that were made before follow a model whose parameters change, each in its place, with its state."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from engine_core.errors import ArgumentError
from engine_core.surgery import follow_parameters

SGD = torch.optim.SGD


def replace_modules(model: Any, policies: Any, optimizers: Any = ()) -> list[str]:
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

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def wrap(module: nn.Module, name: str) -> nn.Module:
    return Wrap(module)


def layers(*sizes: int) -> Any:
    """Return Linears of these sizes with ReLUs between them."""
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*[part for pair in pairs for part in (nn.Linear(*pair), nn.ReLU())][:-1])


def new_linear(module: nn.Linear, name: str) -> nn.Module:
    return nn.Linear(module.in_features, module.out_features)


def prelu(module: nn.Module, name: str) -> nn.Module:
    return nn.PReLU()


def step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 2)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Return the names of the parameters in each group."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [[names.get(parameter, "?") for parameter in group["params"]] for group in optimizer.param_groups]


def test_new_parameters_take_the_places_of_the_former_in_their_groups() -> None:
    model = layers(2, 3, 2)
    bias = {"params": [model[2].bias, model[0].bias], "lr": 0.2, "weight_decay": 0.0}
    optimizer = SGD([bias, {"params": [model[0].weight, model[2].weight]}], lr=0.1, weight_decay=0.5)
    groups = list(optimizer.param_groups)
    replace_modules(model, {nn.Linear: new_linear}, optimizers=[optimizer])
    assert trained(model, optimizer) == [["2.bias", "0.bias"], ["0.weight", "2.weight"]]
    assert [group["lr"] for group in groups] == [0.2, 0.1]
    assert all(mine is group for mine, group in zip(optimizer.param_groups, groups, strict=True))


def test_each_of_several_optimizers_gets_the_successors_of_its_own() -> None:
    model = layers(2, 3, 2)
    optimizers = [SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())]
    replace_modules(model, {nn.Linear: new_linear}, optimizers=optimizers)
    assert [trained(model, optimizer) for optimizer in optimizers] == [
        [["0.weight", "0.bias"]],
        [["2.weight", "2.bias"]],
    ]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step(model, *optimizers)
    assert not any(torch.equal(now, was) for now, was in zip(model.parameters(), before, strict=True))


def test_two_optimizers_of_one_parameter_both_get_its_successor() -> None:
    model = layers(2, 3)
    optimizers = [SGD(model.parameters(), lr=0.1), SGD(model.parameters(), lr=0.2)]
    replace_modules(model, {nn.Linear: new_linear}, optimizers=optimizers)
    assert [trained(model, optimizer) for optimizer in optimizers] == [[["0.weight", "0.bias"]]] * 2


def test_the_state_of_what_stays_is_kept_and_of_what_goes_is_dropped() -> None:
    model = layers(2, 3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    kept = {p: optimizer.state[p] for p in model[0].parameters()}
    gone = list(model[2].parameters())
    replace_modules(
        model, {nn.Linear: lambda m, n: new_linear(m, n) if n == "2" else wrap(m, n)}, optimizers=[optimizer]
    )
    assert trained(model, optimizer) == [["0.inner.weight", "0.inner.bias", "2.weight", "2.bias"]]
    assert dict(optimizer.state) == kept
    assert not any(parameter in optimizer.state for parameter in gone)
    step(model, optimizer)
    assert optimizer.state[model[2].weight]["step"] == 1
    assert optimizer.state[model[0].inner.weight]["step"] == 2


def test_what_an_optimizer_keeps_under_other_keys_stays() -> None:
    model = layers(2, 3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.state["steps"] = 3
    replace_modules(model, {nn.Linear: new_linear}, optimizers=[optimizer])
    assert dict(optimizer.state) == {"steps": 3}


def test_a_parameter_that_is_gone_without_a_successor_leaves_its_group() -> None:
    model = layers(2, 3, 2)
    optimizer = SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    replace_modules(model, {nn.Linear: lambda m, n: nn.Identity() if n == "0" else None}, optimizers=[optimizer])
    assert trained(model, optimizer) == [[], ["2.weight", "2.bias"]]


def test_a_new_name_joins_the_group_that_trains_the_rest_of_its_module() -> None:
    model = layers(2, 2, 2)
    optimizer = SGD([{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters()}], lr=0.1)

    def gated(module: nn.Module, name: str) -> nn.Module:
        return nn.ModuleList([module, nn.Linear(2, 2, bias=False)])

    replace_modules(model, {nn.Linear: gated}, optimizers=[optimizer])
    assert trained(model, optimizer) == [
        ["0.0.weight", "0.0.bias", "0.1.weight"],
        ["2.0.weight", "2.0.bias", "2.1.weight"],
    ]


def test_a_new_name_joins_what_is_around_it_where_its_module_trained_nothing() -> None:
    model = nn.ModuleDict({"body": layers(2, 3, 2), "head": nn.Linear(2, 2), "end": nn.ReLU()})
    parts = [{"params": model[part].parameters()} for part in ("body", "head")]
    optimizer = SGD(parts, lr=0.1)
    replace_modules(model, {nn.ReLU: prelu}, optimizers=[optimizer])
    assert [group[4 if place == 0 else 2 :] for place, group in enumerate(trained(model, optimizer))] == [
        ["body.1.weight"],
        ["end.weight"],
    ]


def test_a_new_name_joins_the_only_optimizer_where_nothing_was_trained() -> None:
    model, other = nn.Sequential(nn.ReLU()), nn.Parameter(torch.ones(1))
    optimizer = SGD([{"params": [other]}, {"params": [], "lr": 0.2}], lr=0.1)
    replace_modules(model, {nn.ReLU: prelu}, optimizers=[optimizer])
    assert trained(model, optimizer) == [["?"], ["0.weight"]]


def test_a_new_name_that_several_optimizers_could_train_is_refused_with_a_remedy() -> None:
    model = layers(2, 3, 2)
    optimizers = [SGD(model[place].parameters(), lr=0.1) for place in (0, 2)]
    with pytest.raises(ArgumentError) as error:
        replace_modules(model, {nn.ReLU: prelu}, optimizers=optimizers)
    assert str(error.value) == (
        "optimizers: several of them could train the new parameter '1.weight'; make the optimizers after the surgery "
        "(give the Trainer callables that make them)"
    )


def test_what_takes_the_place_of_an_untrained_parameter_is_not_trained() -> None:
    model = layers(2, 3, 2)
    optimizer = SGD(model[2].parameters(), lr=0.1)
    replace_modules(model, {nn.Linear: new_linear}, optimizers=[optimizer])
    assert trained(model, optimizer) == [["2.weight", "2.bias"]]


def test_a_tie_that_surgery_cuts_leaves_both_ends_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    optimizer = SGD([{"params": [model[0].weight]}, {"params": [model[0].bias, model[1].bias]}], lr=0.1)
    one = {nn.Linear: lambda m, n: new_linear(m, n) if n == "1" else None}
    replace_modules(model, one, optimizers=[optimizer])
    assert trained(model, optimizer) == [["0.weight", "1.weight"], ["0.bias", "1.bias"]]


def test_both_ends_of_a_tie_may_be_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    optimizer = SGD(model.parameters(), lr=0.1)
    replace_modules(model, {nn.Linear: new_linear}, optimizers=[optimizer])
    assert trained(model, optimizer) == [["0.weight", "1.weight", "0.bias", "1.bias"]]


def test_a_shared_new_parameter_is_trained_once() -> None:
    model = layers(2, 2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    one = nn.Parameter(torch.ones(2, 2))

    def tied(module: nn.Module, name: str) -> nn.Module:
        new = nn.Linear(2, 2, bias=False)
        new.weight = one
        return new

    replace_modules(model, {nn.Linear: tied}, optimizers=[optimizer])
    assert trained(model, optimizer) == [["0.weight"]]


needs_names = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6),
    reason="groups have names since torch 2.6",
)


@needs_names
def test_names_in_groups_stay_true() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = SGD(model.named_parameters(), lr=0.1)
    policies = {
        nn.Linear: lambda m, n: {"0": wrap(m, n), "2": nn.Linear(2, 2, bias=False), "3": None}[n],
        nn.ReLU: prelu,
    }
    replace_modules(model, policies, optimizers=[optimizer])
    (group,) = optimizer.param_groups
    expected = ["0.inner.weight", "0.inner.bias", "2.weight", "3.weight", "3.bias", "1.weight"]
    assert group["param_names"] == expected == trained(model, optimizer)[0]
    optimizer.load_state_dict(optimizer.state_dict())


@needs_names
def test_other_names_that_the_user_chose_stay() -> None:
    model = layers(2, 3, 2)
    optimizer = SGD([(f"net.{name}", parameter) for name, parameter in model.named_parameters()], lr=0.1)
    replace_modules(model, {nn.Linear: lambda m, n: wrap(m, n) if n == "0" else None}, optimizers=[optimizer])
    assert optimizer.param_groups[0]["param_names"] == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {"foreach": False}, {"amsgrad": True}])
def test_an_optimizer_of_any_implementation_keeps_working(how: dict[str, Any]) -> None:
    model = layers(2, 3, 2)
    optimizer = torch.optim.Adam(model.parameters(), **how)
    step(model, optimizer)
    replace_modules(
        model, {nn.Linear: lambda m, n: new_linear(m, n) if n == "2" else None, nn.ReLU: prelu}, optimizers=[optimizer]
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step(model, optimizer)
    assert not any(torch.equal(now, was) for now, was in zip(model.parameters(), before, strict=True))
    assert [int(optimizer.state[p]["step"]) for p in model.parameters()] == [2, 2, 1, 1, 1]


def test_an_optimizer_that_remembers_all_parameters_at_once_is_refused_where_they_change() -> None:
    model = layers(2, 3, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    assert replace_modules(model, {nn.Linear: wrap}, optimizers=[optimizer]) == ["0", "2"]
    with pytest.raises(
        ArgumentError, match="LBFGS can't replace parameters once it is made; make it after the surgery"
    ):
        replace_modules(model, {nn.ReLU: prelu}, optimizers=[optimizer])


def test_a_scheduler_continues_with_the_same_groups() -> None:
    model = layers(2, 3, 2)
    optimizer = SGD(model.parameters(), lr=0.4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    replace_modules(model, {nn.Linear: new_linear}, optimizers=[optimizer])
    weight = model[0].weight.detach().clone()
    step(model, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert not torch.equal(model[0].weight, weight)


def test_what_else_an_optimizer_trains_is_left_to_it() -> None:
    model, scale = layers(2, 3), nn.Parameter(torch.ones(1))
    optimizer = SGD([*model.parameters(), scale], lr=0.1)
    replace_modules(model, {nn.Linear: new_linear}, optimizers=[optimizer])
    assert trained(model, optimizer) == [["0.weight", "0.bias", "?"]]


def test_names_without_repetition_are_enough_to_follow_by_hand() -> None:
    model = layers(2, 3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = dict(model.named_parameters())
    model[2] = nn.Linear(3, 2)
    follow_parameters([optimizer], before, dict(model.named_parameters()))
    follow_parameters([], before, dict(model.named_parameters()))
    assert trained(model, optimizer) == [["0.weight", "0.bias", "2.weight", "2.bias"]]


def test_an_untrained_parameter_is_not_trained_for_having_another_ones_name() -> None:
    trained_one, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = SGD([trained_one], lr=0.1)
    follow_parameters([optimizer], {"a": trained_one, "b": other}, {"a": other})
    assert optimizer.param_groups[0]["params"] == []
