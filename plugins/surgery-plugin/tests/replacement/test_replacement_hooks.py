"""Surgery: hooks of every kind stay at their place, with their handles, once; what a module hooked itself stays."""

import copy
import functools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from engine_core.errors import ArgumentError
from surgery_plugin.replacement import replace_modules

from .test_replacement import wrap

REGISTERS = {
    "forward": lambda m, hook: m.register_forward_hook(hook),
    "forward with kwargs": lambda m, hook: m.register_forward_hook(hook, with_kwargs=True),
    "forward always": lambda m, hook: m.register_forward_hook(hook, always_call=True),
    "forward pre": lambda m, hook: m.register_forward_pre_hook(hook),
    "forward pre with kwargs": lambda m, hook: m.register_forward_pre_hook(hook, with_kwargs=True),
    "backward": lambda m, hook: m.register_full_backward_hook(hook),
    "backward pre": lambda m, hook: m.register_full_backward_pre_hook(hook),
    "state_dict": lambda m, hook: m._register_state_dict_hook(hook),
    "state_dict pre": lambda m, hook: m.register_state_dict_pre_hook(hook),
    "load pre": lambda m, hook: m._register_load_state_dict_pre_hook(hook, with_module=True),
    "load": lambda m, hook: m.register_load_state_dict_post_hook(hook),
}
"""Ways to hook into a module."""


def use(model):
    """Do what calls hooks of any kind once."""
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("register", REGISTERS.values(), ids=REGISTERS)
def test_a_hook_is_called_once_with_the_new_module_until_its_handle_removes_it(register):
    for policy in (lambda m, n: nn.Linear(2, 2), lambda m, n: copy.deepcopy(m), wrap):
        model, calls = nn.Sequential(nn.Linear(2, 2)), []
        handle = register(model[0], lambda *arguments, calls=calls: calls.append(arguments))
        use(model)
        before = [len(arguments) for arguments in calls]
        calls.clear()
        replace_modules(model, {nn.Linear: policy})
        use(model)
        assert [len(arguments) for arguments in calls] == before == [len(calls[0])]
        assert calls[0][0] is model[0]
        handle.remove()
        use(model)
        assert len(calls) == 1


def test_the_new_modules_own_hooks_are_within_those_that_move():
    calls = []
    model = nn.Sequential(nn.Linear(2, 2))

    def hooked(module, name):
        return note(nn.Linear(2, 2), "own")

    def note(module, who):
        module.register_forward_pre_hook(lambda m, i: calls.append(f"{who} in"))
        module.register_forward_hook(lambda m, i, o: calls.append(f"{who} out"))
        return module

    note(model[0], "user")
    replace_modules(model, {nn.Linear: hooked})
    model(torch.ones(1, 2))
    assert calls == ["user in", "own in", "own out", "user out"]


def test_a_part_with_a_former_parts_name_gets_its_hooks():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    calls = []
    model[0][0].register_forward_hook(lambda m, i, o: calls.append(m))
    replace_modules(model, {nn.Sequential: lambda m, n: nn.Sequential(nn.Linear(2, 2)) if n else None})
    model(torch.ones(1, 2))
    assert calls == [model[0][0]]


def test_hooks_of_a_part_that_nothing_replaces_are_refused():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    model[0][0].register_forward_hook(print)
    with pytest.raises(
        ArgumentError, match=r"'0.0' .Linear. has hooks, but the Linear that replaces '0' has no new part '0'"
    ):
        replace_modules(model, {nn.Sequential: lambda m, n: nn.Linear(2, 2) if n else None})


def test_a_hook_with_state_is_not_copied_along_with_its_module():
    class Counter:
        calls = 0

        def __call__(self, *arguments):
            self.calls += 1

    model, counter = nn.Sequential(nn.Linear(2, 2)), Counter()
    model[0].register_forward_hook(counter)
    model[0].register_forward_pre_hook(counter)
    replace_modules(model, {nn.Linear: lambda m, n: copy.deepcopy(m)})
    model(torch.ones(1, 2))
    assert counter.calls == 2


def noting(module, *arguments):
    module.calls.append(arguments[0])


def test_what_a_module_hooked_into_itself_stays_with_it():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.calls = []
            self.register_forward_hook(self.count)
            self.register_forward_hook(self.note)
            self.register_forward_hook(functools.partial(Counting.count, self))
            self.register_forward_hook(lambda m, i, o: m.calls.append(m))

        note = noting

        def count(self, *arguments):
            self.calls.append(arguments[0])

    inner = Counting()
    model = nn.Sequential(inner)
    replace_modules(model, {Counting: wrap})
    model(torch.ones(1, 2))
    assert inner.calls == [inner] * 4


def weight_norm_of_old(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module)


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (parametrizations.weight_norm, "a parametrization of 'weight'"),
        (weight_norm_of_old, "a torch hook, WeightNorm"),
        (nn.utils.spectral_norm, "a torch hook, SpectralNorm"),
        (lambda m: prune.l1_unstructured(m, "weight", 0.5), "a torch hook, L1Unstructured"),
    ],
)
def test_a_norm_stays_with_the_module_that_is_wrapped_and_one_that_a_new_module_would_lose_is_refused(norm, reason):
    model = nn.Sequential(norm(nn.Linear(2, 2))).eval()
    linear, inputs = model[0], torch.ones(1, 2)
    expected, saved = model(inputs).detach(), model.state_dict()
    with pytest.raises(ArgumentError, match=f"'0' .*Linear. has {reason}, which the Linear that replaces '0'"):
        replace_modules(model, {nn.Linear: lambda m, n: nn.Linear(2, 2)})
    assert model[0] is linear
    replace_modules(model, {nn.Linear: wrap})
    assert torch.equal(model(inputs), expected)
    assert [key.replace("inner.", "") for key in model.state_dict()] == list(saved)
    model.load_state_dict(model.state_dict())


def test_a_forward_that_was_set_on_a_module_is_not_lost():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].forward = torch.zeros_like
    with pytest.raises(ArgumentError, match=r"'0' .Linear. has a forward.. that was set on it, which the Linear"):
        replace_modules(model, {nn.Linear: lambda m, n: nn.Linear(2, 2)})
    assert replace_modules(model, {nn.Linear: wrap}) == ["0"]
    assert model(torch.ones(1, 2)).count_nonzero() == 0


def test_hooks_on_a_parameter_that_would_be_lost_are_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].bias.register_hook(lambda gradient: gradient)
    with pytest.raises(ArgumentError, match=r"the parameter '0\.bias' has hooks, which the Linear .* would lose"):
        replace_modules(model, {nn.Linear: lambda m, n: nn.Linear(2, 2)})

    def carry(module, name):
        new = nn.Linear(2, 2)
        new.bias = module.bias
        return new

    assert replace_modules(model, {nn.Linear: carry}) == ["0"]


def test_two_kinds_of_backward_hooks_are_refused_and_no_hook_moves():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_full_backward_hook(lambda *arguments: None)
    model[0].register_forward_hook(lambda *arguments: None)
    before = list(model[0]._forward_hooks)

    def old_style(module, name):
        new = nn.Linear(2, 2)
        new.register_backward_hook(lambda *arguments: None)
        return new

    linear = model[0]
    with pytest.raises(ArgumentError, match="'0' and the Linear that replaces it have backward hooks of two kinds"):
        replace_modules(model, {nn.Linear: old_style})
    assert model[0] is linear
    assert list(model[0]._forward_hooks) == before
