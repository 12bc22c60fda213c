"""Surgery: which modules are replaced, where, what the policies are asked; laws over random trees."""

import copy
import time
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import net, notes, same
from torch import nn

from engine_core.errors import ArgumentTypeError
from surgery_plugin.replacement import replace_modules


class Wrap(nn.Module):
    """Holds the module that it stands for."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def gelu(module, name):
    return nn.GELU()


def wrap(module, name):
    return Wrap(module)


def test_the_policy_of_the_most_specific_type_decides_alone():
    class Quiet(nn.ReLU):
        pass

    class Loud(Quiet):
        pass

    asked = []

    def policy(key, result):
        def ask(module, name):
            asked.append(f"{key} {name}")
            return result and result()

        return ask

    model = nn.Sequential(nn.ReLU(), Quiet(), Loud())
    policies = {nn.Module: policy("Module", None), nn.ReLU: policy("ReLU", nn.GELU), Quiet: policy("Quiet", None)}
    assert replace_modules(model, policies) == ["0"]
    assert asked == ["Module ", "ReLU 0", "Quiet 1", "Quiet 2"]


def test_none_and_the_module_itself_leave_it():
    model = net()
    before = list(model.modules())
    policies = {nn.Linear: lambda m, n: None, nn.ReLU: lambda m, n: m}
    assert replace_modules(model, {**policies, nn.Module: lambda m, n: nn.GELU() if n == "3" else None}) == ["3"]
    assert list(model.modules())[:4] == before[:4]


def test_what_was_put_in_is_not_searched_and_a_module_within_a_replaced_one_is_not_asked_for():
    model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())
    assert replace_modules(model, {nn.ReLU: lambda m, n: nn.Sequential(nn.ReLU(), m)}) == ["0.0", "1"]
    assert repr(model) == repr(nn.Sequential(nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU())), model[1]))
    asked = []
    model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())
    outer = {nn.Sequential: lambda m, n: Wrap(m) if n else None, nn.ReLU: lambda m, n: asked.append(n)}
    assert (replace_modules(model, outer), asked) == (["0"], ["1"])


def test_a_module_with_two_names_is_asked_for_once_and_replaced_in_both_places():
    shared = nn.ReLU()
    model = nn.Sequential(shared, nn.ModuleDict({"x": shared, "y": shared}), nn.ReLU())
    asked = []
    names = replace_modules(model, {nn.ReLU: lambda m, n: [asked.append(n), nn.GELU()][1]})
    assert names == ["0", "1.x", "1.y", "2"]
    assert asked == ["0", "2"]
    assert model[0] is model[1]["x"] is model[1]["y"]
    assert model[0] is not model[2]


def test_a_shared_module_is_replaced_within_a_wrapped_one_too():
    shared = nn.Linear(2, 2)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = shared

    model = nn.Sequential(Block(), shared)
    assert replace_modules(model, {Block: wrap, nn.Linear: wrap}) == ["0", "0.inner.linear", "1"]
    assert model[0].inner.linear is model[1]
    assert model[1].inner is shared


def test_a_new_module_that_holds_another_replaced_one_holds_what_took_its_place():
    model = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(2, 2)})
    names = replace_modules(model, {nn.ReLU: lambda m, n: Wrap(model["b"]), nn.Linear: wrap})
    assert names == ["a", "a.inner", "b"]
    assert model["a"].inner is model["b"]
    inner = model["b"].inner
    assert replace_modules(model, {Wrap: lambda m, n: m.inner if n == "a.inner" else None}) == ["a.inner", "b"]
    assert model["b"] is inner


def test_the_output_projection_of_attention_is_not_offered_as_it_is_never_called():
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    assert replace_modules(model, {nn.Linear: wrap}) == ["0.linear1", "0.linear2"]


def test_a_replaced_part_of_an_encoder_layer_within_a_wrapper_runs_in_evaluation_too():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2)
    model.layers[1] = Wrap(model.layers[1])
    padding = torch.tensor([[False, False, True]])
    with torch.no_grad():
        expected = model(torch.ones(1, 3, 4), src_key_padding_mask=padding)[:, :2]
        assert replace_modules(model, {nn.LayerNorm: lambda m, n: Wrap(m) if n == "layers.1.inner.norm2" else None})
        evaluated = model.eval()(torch.ones(1, 3, 4), src_key_padding_mask=padding)
    torch.testing.assert_close(evaluated[:, :2], expected)


def test_the_parts_of_a_parametrization_are_not_offered_as_they_make_no_outputs():
    asked = []
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert replace_modules(model, {nn.Module: lambda m, n: asked.append(n)}) == []
    assert asked == ["", "0"]


def test_an_error_of_a_policy_says_which_module_it_was():
    model = net()

    def broken(module, name):
        if name == "4":
            raise KeyError("width")
        return nn.Linear(4, 6)

    with pytest.raises(KeyError) as error:
        replace_modules(model, {nn.Linear: broken})
    assert notes(error) == ["the policy for Linear raised this for '4' (Linear); nothing was replaced"]
    assert repr(model) == repr(net()) and same(model.state_dict(), net().state_dict())


@pytest.mark.parametrize(
    ("policies", "optimizers", "message"),
    [
        ({nn.ReLU: lambda m, n: nn.GELU}, (), "returned <class .*GELU'> for '2' .ReLU.; it has to return a module"),
        ({torch.Tensor: gelu}, (), "policies: <class 'torch.Tensor'> is not a class of modules"),
        ({nn.ReLU: nn.GELU()}, (), "policies: GELU.* for ReLU is not a function"),
        ([gelu], (), r"^policies: .* is not a mapping; write \{torch\.nn\.Conv2d: policy}$"),
        ({nn.ReLU: gelu}, ["adam"], "optimizers: 'adam' is not a torch.optim.Optimizer"),
    ],
)
def test_what_has_the_wrong_type_is_refused(policies, optimizers, message):
    with pytest.raises(ArgumentTypeError, match=message):
        replace_modules(net(), policies, optimizers=optimizers)


def test_its_former_place_in_the_core_leads_here():
    with pytest.warns(DeprecationWarning, match=r"surgery_plugin\.replacement"):
        assert import_module("engine_core.surgery").replace_modules is replace_modules


LEAVES = {
    "linear": lambda: nn.Linear(3, 3),
    "relu": nn.ReLU,
    "prelu": nn.PReLU,
    "norm": lambda: nn.LayerNorm(3),
    "batch norm": lambda: nn.BatchNorm1d(3),
}

leaves = st.sampled_from(sorted(LEAVES))
trees = st.recursive(leaves, lambda inner: st.lists(st.one_of(inner, st.integers(0, 5)), min_size=1, max_size=4))
"""Nested lists of leaves; a number is a module that was there before, again."""

KINDS = {kind.__name__: kind for kind in (nn.Linear, nn.ReLU, nn.PReLU, nn.LayerNorm, nn.BatchNorm1d)}
subsets = st.sets(st.sampled_from(sorted(KINDS)))


def build(tree):
    made = []

    def module_of(part):
        if isinstance(part, int):
            return made[part % len(made)] if made else nn.ReLU()
        module = LEAVES[part]() if isinstance(part, str) else nn.Sequential(*map(module_of, part))
        made.append(module)
        return module

    torch.manual_seed(3)
    return nn.Sequential(module_of(tree), nn.Linear(3, 3))


def carry(module, name):
    """Return a copy with the same parameters and buffers."""
    return copy.deepcopy(module, {id(t): t for t in [*module.parameters(), *module.buffers()]})


def copied(module, name):
    return copy.deepcopy(module)


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(4)
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(4, 3, generator=generator)
        (model(inputs) - inputs.flip(1)).square().mean().backward()
        optimizer.step()


def places(model, kinds):
    """Return the names of what has one of these types, by brute force."""
    return [name for name, m in model.named_modules(remove_duplicate=False) if type(m).__name__ in kinds]


@settings(max_examples=30)
@given(tree=trees, kinds=subsets)
def test_equal_modules_give_equal_outputs_names_and_sharing(tree, kinds):
    model = build(tree)
    twin = copy.deepcopy(model)
    before = dict(model.named_modules(remove_duplicate=False))
    names = replace_modules(model, {KINDS[kind]: copied for kind in kinds})
    after = dict(model.named_modules(remove_duplicate=False))
    assert names == places(twin, kinds)
    assert list(after) == list(before)
    assert [name for name in after if after[name] is not before[name]] == names
    pairs = {(id(before[name]), id(after[name])) for name in after}
    assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})
    inputs = torch.randn(4, 3)
    assert same(model(inputs).detach(), twin(inputs).detach())
    assert same(model.state_dict(), twin.state_dict())


@settings(max_examples=30)
@given(tree=trees, kinds=subsets, wrapped=st.booleans())
def test_what_is_carried_over_trains_as_if_nothing_had_happened(tree, kinds, wrapped):
    models = [build(tree) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 2)
    policy = (lambda m, n: Wrap(m)) if wrapped else carry
    replace_modules(models[0], {KINDS[kind]: policy for kind in kinds}, optimizers=optimizers[:1])
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 3)
    assert same([*map(torch.detach, models[0].parameters())], [*map(torch.detach, models[1].parameters())])
    momenta = [[entry["momentum_buffer"] for entry in optimizer.state.values()] for optimizer in optimizers]
    assert same(momenta[0], momenta[1])


@settings(max_examples=30)
@given(tree=trees, kinds=subsets, split=st.booleans())
def test_copies_train_as_an_optimizer_made_after_the_surgery_would(tree, kinds, split):
    models = [build(tree) for _ in range(2)]
    policies = {KINDS[kind]: copied for kind in kinds}
    optimizer = torch.optim.SGD(groups(models[0], split), lr=0.05, momentum=0.9)
    replace_modules(models[0], policies, optimizers=[optimizer])
    replace_modules(models[1], policies)
    other = torch.optim.SGD(groups(models[1], split), lr=0.05, momentum=0.9)
    for model, stepping in zip(models, (optimizer, other), strict=True):
        train(model, stepping, 3)
    assert same([*map(torch.detach, models[0].parameters())], [*map(torch.detach, models[1].parameters())])


def groups(model, split):
    """Return groups by the number of dimensions, as for weight decay, or all parameters."""
    if not split:
        return model.parameters()
    large = [p for p in model.parameters() if p.ndim > 1]
    return [{"params": large, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.ndim < 2]}]


def test_a_thousand_modules_are_replaced_in_a_fraction_of_a_second():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(1000)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    new = iter([nn.Linear(2, 2) for _ in range(1000)])
    start = time.process_time()
    names = replace_modules(model, {nn.ReLU: gelu, nn.Linear: lambda m, n: next(new)}, optimizers=[optimizer])
    assert len(names) == 2000
    assert time.process_time() - start < 2  # of CPU; measured: 0.15 s; what is quadratic takes minutes
