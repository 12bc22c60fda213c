"""Surgery: what stays of a place: device, dtype, training flag, requires_grad; what is refused, and then all stays."""

import copy
import functools
import warnings

import pytest
import torch
from parts import same
from torch import nn

from engine_core.errors import ArgumentError
from surgery_plugin.replacement import replace_modules

from .test_replacement import Wrap, gelu, wrap


class Scaled(nn.Module):
    """A new parameter, buffers and a kept module."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("kernel", torch.ones(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


def scaled(module, name):
    return Scaled(module)


def dtypes(module):
    return {name: tensor.dtype for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def test_new_tensors_take_the_dtype_of_the_module_and_whole_numbers_stay():
    model = nn.Sequential(nn.Linear(3, 3)).double()
    replace_modules(model, {nn.Linear: scaled})
    names = ("scale", "inner.weight", "inner.bias", "kernel")
    assert dtypes(model[0]) == {**dict.fromkeys(names, torch.float64), "steps": torch.int64}


def test_a_module_without_tensors_takes_the_dtype_of_what_is_around_it():
    inside = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Linear(3, 3).bfloat16())
    model = nn.Sequential(inside, nn.Linear(3, 3))
    replace_modules(model, {nn.ReLU: scaled})
    assert dtypes(model[0][0]) == {"0.scale": torch.bfloat16, "0.kernel": torch.bfloat16, "0.steps": torch.int64}


def test_a_tensor_with_the_name_of_an_old_one_takes_its_dtype():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3).bfloat16(), nn.LayerNorm(3)))
    block = {nn.Sequential: lambda m, n: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.PReLU()) if n else None}
    replace_modules(model, block)
    assert dtypes(model[0]) == {
        "0.weight": torch.bfloat16,
        "0.bias": torch.bfloat16,
        "1.weight": torch.float32,
        "1.bias": torch.float32,
        "2.weight": torch.float32,
    }


def test_what_is_carried_over_is_not_touched():
    odd = nn.Linear(3, 3).double()
    model = nn.Sequential(nn.ModuleDict({"a": nn.Linear(3, 3)}), odd)

    def carry(module, name):
        new = nn.Linear(3, 3)
        new.weight, new.bias = odd.weight, module.bias
        return new

    bias = model[0]["a"].bias
    replace_modules(model, {nn.Linear: lambda m, n: carry(m, n) if n == "0.a" else None})
    assert model[0]["a"].weight is odd.weight
    assert model[0]["a"].bias is bias
    assert odd.weight.dtype is torch.float64


def test_a_meta_model_stays_on_meta():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3))
    replace_modules(model, {nn.Linear: scaled, nn.LSTM: lambda m, n: nn.LSTM(3, 3)})
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())


def test_the_training_flag_is_that_of_the_place_and_of_parts_with_the_name():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.ReLU())
    model[0][1].eval()
    model[1].eval()
    fresh = {nn.Sequential: lambda m, n: copy.deepcopy(m).eval().append(nn.ReLU()) if n else None, nn.ReLU: scaled}
    replace_modules(model, fresh)
    flags = {name: module.training for name, module in model.named_modules()}
    assert flags == {"": True, "0": True, "0.0": True, "0.1": False, "0.2": True, "1": False, "1.inner": False}


def test_a_parameter_in_the_place_of_a_frozen_one_is_frozen_and_others_are_not():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    model[2].requires_grad_(False)
    policy = {nn.Linear: lambda m, n: {"0": nn.Linear(3, 3), "1": Scaled(m), "2": nn.Linear(3, 5)}[n]}
    replace_modules(model, policy)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == {
        "0.weight": False,
        "0.bias": True,
        "1.scale": True,
        "1.inner.weight": False,
        "1.inner.bias": False,
        "2.weight": True,
        "2.bias": True,
    }


def test_a_wrappers_own_parameter_is_not_frozen_for_having_the_name_of_a_kept_one():
    model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False))

    def with_bias(module, name):
        wrapper = Wrap(module)
        wrapper.bias = nn.Parameter(torch.zeros(3))
        return wrapper

    replace_modules(model, {nn.Linear: with_bias})
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["0.bias"]


def new_linear(module, name):
    return nn.Linear(module.in_features, module.out_features)


def test_the_model_itself_is_refused_unless_its_policy_leaves_it():
    with pytest.raises(ArgumentError, match=r"the model itself, a Linear, .* put it into a torch.nn.Sequential"):
        replace_modules(nn.Linear(2, 2), {nn.Linear: new_linear})
    model = nn.Sequential(nn.Sequential(nn.ReLU()))
    assert replace_modules(model, {nn.Sequential: lambda m, n: Wrap(m) if n else None}) == ["0"]


ONE = nn.GELU()
REFUSED = {
    "several dtypes": (
        nn.Sequential(nn.Linear(3, 3).bfloat16(), nn.ReLU(), nn.Linear(3, 3).half()),
        lambda model: {nn.ReLU: scaled},
        r"made '1.scale' as torch.float32, but the place has dtypes .*bfloat16, .*16",
    ),
    "no values": (
        nn.Sequential(nn.Linear(3, 3)),
        lambda model: {nn.Linear: lambda m, n: nn.Linear(3, 3, device="meta")},
        r"made '0\.weight' on the meta device, but the model is on cpu",
    ),
    "lazy": (
        nn.Sequential(nn.Linear(2, 2)),
        lambda model: {nn.Linear: lambda m, n: nn.LazyLinear(2)},
        r"returned a lazy module for '0' .Linear.: .* make it with its sizes",
    ),
    "one for two": (
        nn.Sequential(nn.ReLU(), nn.ReLU()),
        lambda model: {nn.ReLU: lambda m, n: ONE},
        r"one GELU for '0' .ReLU. and for '1' .ReLU., which were not shared",
    ),
    "from elsewhere in the model": (
        nn.Sequential(nn.ReLU(), nn.GELU()),
        lambda model: {nn.ReLU: lambda m, n: model[1]},
        r"returned '1' .GELU. for '0' .ReLU.: it is already part of the model",
    ),
    "holds the place itself": (
        nn.Sequential(nn.Sequential(nn.ReLU())),
        lambda model: {nn.ReLU: lambda m, n: Wrap(model[0])},
        r"for '0.0' .ReLU. contains '0' .Sequential., which contains that place",
    ),
}


@pytest.mark.parametrize(("model", "policies", "message"), REFUSED.values(), ids=REFUSED)
def test_a_module_that_can_not_take_the_place_is_refused_and_nothing_replaced(model, policies, message):
    before = repr(model)
    with pytest.raises(ArgumentError, match=message):
        replace_modules(model, policies(model))
    assert repr(model) == before


def test_a_lazy_module_is_refused_until_it_has_shapes():
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ArgumentError, match=r"'0' .LazyLinear. is lazy: .* run the model once before the surgery"):
        replace_modules(model, {nn.Linear: new_linear})
    model(torch.ones(1, 3))
    assert replace_modules(model, {nn.Linear: new_linear}) == ["0"]
    assert replace_modules(nn.Sequential(nn.LazyLinear(2), nn.ReLU()), {nn.ReLU: gelu}) == ["1"]


def script(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(model)


def compile_(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("make", [script, compile_])
def test_a_model_that_keeps_its_modules_is_refused(make):
    made = make(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ArgumentError, match=r"the model itself .* was made by .*; do the surgery first, then wrap"):
        replace_modules(made, {nn.Linear: new_linear})


def test_a_part_that_keeps_its_modules_is_refused_where_surgery_would_change_it():
    model = nn.Sequential(compile_(nn.Sequential(nn.Linear(2, 2))), nn.ReLU())
    with pytest.raises(ArgumentError, match=r"'0' .OptimizedModule. was made by torch.compile"):
        replace_modules(model, {nn.Linear: new_linear})
    assert replace_modules(model, {nn.ReLU: gelu}) == ["1"]
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    model[0].compile(backend="eager")
    with pytest.raises(ArgumentError, match=r"'0' .Sequential. was made by torch.compile"):
        replace_modules(model, {nn.Linear: new_linear})
    with pytest.raises(ArgumentError, match=r"'0' .RecursiveScriptModule. was made by TorchScript"):
        replace_modules(nn.Sequential(script(nn.Linear(2, 2))), {nn.Linear: new_linear})


def test_distributed_data_parallel_is_refused(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2)))
        with pytest.raises(ArgumentError, match=r"the model itself .* was made by DistributedDataParallel"):
            replace_modules(model, {nn.Linear: new_linear})
    finally:
        torch.distributed.destroy_process_group()


def held_by_itself(layers):
    held = [layers]
    held.append(held)
    return held


KEPT = {
    "list": list,
    "pairs": lambda layers: [("first", layer) for layer in layers],
    "dict of lists": lambda layers: {"all": {"of them": layers}},
    "list in itself": held_by_itself,
    "bound method": lambda layers: layers[0].forward,
    "argument of a partial": lambda layers: functools.partial(print, [layers[0]]),
    "keyword of a partial": lambda layers: functools.partial(print, end=layers[0]),
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_a_module_that_is_also_held_outside_the_tree_is_refused(keep):
    class Stages(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Linear(2, 2))
            object.__setattr__(self, "stages", keep([self.first[0]]))

    model = nn.ModuleDict({"net": Stages()})
    for policies in ({nn.Linear: wrap}, {nn.Sequential: lambda m, n: nn.ReLU()}):
        with pytest.raises(ArgumentError, match=r"'net.first.0' .Linear. is also in the attribute 'net.stages'"):
            replace_modules(model, policies)


def test_a_module_that_its_own_parts_refer_to_may_be_replaced():
    class Part(nn.Module):
        def __init__(self, owner):
            super().__init__()
            object.__setattr__(self, "owner", owner)

    model = nn.Sequential(nn.Sequential())
    model[0].append(Part(model[0]))
    assert replace_modules(model, {nn.Sequential: lambda m, n: Wrap(m) if n else None}) == ["0"]


def state_of(model, optimizers):
    """Return all of a model and its optimizers that surgery can change."""
    return [
        [(name, id(module), module.training) for name, module in model.named_modules(remove_duplicate=False)],
        [(id(hooks), list(hooks.items())) for m in model.modules() for k, hooks in vars(m).items() if "hooks" in k],
        [(name, id(p), p.requires_grad, p.dtype) for name, p in model.named_parameters(remove_duplicate=False)],
        [[[id(p) for p in g["params"]] for g in o.param_groups] for o in optimizers],
        [[g.get("param_names") for g in o.param_groups] for o in optimizers],
        [[id(p) for p in o.state] for o in optimizers],
    ]


def test_nothing_remains_of_surgery_that_optimizers_refuse():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoder(layer, 1), nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(print)
    model[0]._register_load_state_dict_pre_hook(print, with_module=True)
    model[2].register_full_backward_hook(print)
    optimizers = [torch.optim.Adam(model[place].parameters()) for place in (0, 1, 2)]
    for place, optimizer in enumerate(optimizers):  # as torch does since 2.6, where it is given named_parameters()
        optimizer.param_groups[0]["param_names"] = [name for name, _ in model[place].named_parameters()]
    model[2](model[1](model[0](torch.ones(1, 2, 4)))).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    before, weights = state_of(model, optimizers), [p.detach().clone() for p in model.parameters()]
    policies = {nn.Linear: new_linear, nn.LayerNorm: wrap, nn.ReLU: lambda m, n: nn.PReLU()}
    with pytest.raises(ArgumentError, match=r"several of them could train the new parameter '3.weight'"):
        replace_modules(model, policies, optimizers=optimizers)
    assert state_of(model, optimizers) == before
    assert same([p.detach() for p in model.parameters()], weights)
    assert (model[1].layers[0].activation_relu_or_gelu, model[1].use_nested_tensor) == (1, True)
    (hook,) = model[0]._load_state_dict_pre_hooks.values()
    assert hook.module() is model[0]
