"""Surgery: which modules are replaced, where, and what the policies are asked."""

from importlib import import_module
from typing import Any

import pytest
import torch
from parts import net, notes
from torch import nn

from engine_core.errors import ArgumentTypeError
from surgery_plugin.replacement import replace_modules


class Wrap(nn.Module):
    """Holds the module that it stands for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


def gelu(module: nn.Module, name: str) -> nn.Module:
    return nn.GELU()


def wrap(module: nn.Module, name: str) -> nn.Module:
    return Wrap(module)


def nest() -> Any:
    """Return a model whose modules are in a ModuleList, a ModuleDict, a Sequential and in one another."""
    return nn.ModuleDict(
        {
            "stem": nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
            "blocks": nn.ModuleList([nn.ReLU(), nn.Sequential(nn.ReLU6(), nn.Linear(4, 4))]),
            "heads": nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(4, 2)}),
        }
    )


def test_each_module_of_the_type_is_replaced_wherever_it_is() -> None:
    model = nest()
    assert replace_modules(model, {nn.ReLU: gelu}) == ["stem.1", "blocks.0", "heads.a"]
    kinds = {name: type(module).__name__ for name, module in model.named_modules() if not list(module.children())}
    assert kinds == {
        "stem.0": "Linear",
        "stem.1": "GELU",
        "blocks.0": "GELU",
        "blocks.1.0": "ReLU6",
        "blocks.1.1": "Linear",
        "heads.a": "GELU",
        "heads.b": "Linear",
    }


def test_the_policy_of_the_most_specific_type_decides_alone() -> None:
    class Quiet(nn.ReLU):
        pass

    class Loud(Quiet):
        pass

    asked: list[str] = []

    def policy(key: str, result: Any) -> Any:
        def ask(module: nn.Module, name: str) -> Any:
            asked.append(f"{key} {name}")
            return result and result()

        return ask

    model = nn.Sequential(nn.ReLU(), Quiet(), Loud())
    policies = {nn.Module: policy("Module", None), nn.ReLU: policy("ReLU", nn.GELU), Quiet: policy("Quiet", None)}
    assert replace_modules(model, policies) == ["0"]
    assert asked == ["Module ", "ReLU 0", "Quiet 1", "Quiet 2"]


def test_none_and_the_module_itself_leave_it() -> None:
    model = net()
    before = list(model.modules())
    assert replace_modules(model, {nn.Linear: lambda m, n: None, nn.ReLU: lambda m, n: m, nn.Module: gelu_at("3")}) == [
        "3"
    ]
    assert list(model.modules())[:4] == before[:4]


def gelu_at(place: str) -> Any:
    return lambda module, name: nn.GELU() if name == place else None


def test_what_was_put_in_is_not_searched() -> None:
    model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())
    assert replace_modules(model, {nn.ReLU: lambda m, n: nn.Sequential(nn.ReLU(), m)}) == ["0.0", "1"]
    assert repr(model) == repr(nn.Sequential(nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU())), model[1]))


def test_a_module_within_a_replaced_one_is_not_asked_for() -> None:
    asked: list[str] = []
    model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())
    outer = {nn.Sequential: lambda m, n: Wrap(m) if n else None, nn.ReLU: lambda m, n: asked.append(n)}
    assert replace_modules(model, outer) == ["0"]
    assert asked == ["1"]


def test_a_module_with_two_names_is_asked_for_once_and_replaced_in_both_places() -> None:
    shared = nn.ReLU()
    model = nn.Sequential(shared, nn.ModuleDict({"x": shared, "y": shared}), nn.ReLU())
    asked: list[str] = []
    names = replace_modules(model, {nn.ReLU: lambda m, n: [asked.append(n), nn.GELU()][1]})
    assert names == ["0", "1.x", "1.y", "2"]
    assert asked == ["0", "2"]
    assert model[0] is model[1]["x"] is model[1]["y"]
    assert model[0] is not model[2]


def test_a_shared_module_is_replaced_within_a_wrapped_one_too() -> None:
    shared = nn.Linear(2, 2)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = shared

    model = nn.Sequential(Block(), shared)
    assert replace_modules(model, {Block: wrap, nn.Linear: wrap}) == ["0", "0.inner.linear", "1"]
    assert model[0].inner.linear is model[1]
    assert model[1].inner is shared


def test_a_new_module_that_holds_another_replaced_one_holds_what_took_its_place() -> None:
    model = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(2, 2)})
    names = replace_modules(model, {nn.ReLU: lambda m, n: Wrap(model["b"]), nn.Linear: wrap})
    assert names == ["a", "a.inner", "b"]
    assert model["a"].inner is model["b"]


def test_a_wrapper_may_be_taken_off() -> None:
    inner = nn.Linear(2, 2)
    model = nn.Sequential(Wrap(inner), nn.ReLU())
    assert replace_modules(model, {Wrap: lambda m, n: m.inner}) == ["0"]
    assert model[0] is inner


def test_the_output_projection_of_attention_is_not_offered_as_it_is_never_called() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    assert replace_modules(model, {nn.Linear: wrap}) == ["0.linear1", "0.linear2"]


def test_a_replaced_part_of_an_encoder_layer_runs_in_evaluation_too() -> None:
    class Silent(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)

    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False, False, True]])
    with torch.no_grad():
        assert replace_modules(model, {nn.LayerNorm: lambda m, n: Silent(4) if n.endswith("norm2") else None}) == [
            "layers.0.norm2",
            "layers.1.norm2",
        ]
        assert model(torch.ones(1, 3, 4), src_key_padding_mask=padding).count_nonzero() == 0


def test_a_replaced_part_of_an_encoder_layer_within_a_wrapper_runs_in_evaluation_too() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2)
    model.layers[1] = Wrap(model.layers[1])
    padding = torch.tensor([[False, False, True]])
    with torch.no_grad():
        expected = model(torch.ones(1, 3, 4), src_key_padding_mask=padding)[:, :2]
        assert replace_modules(model, {nn.LayerNorm: lambda m, n: Wrap(m) if n == "layers.1.inner.norm2" else None})
        evaluated = model.eval()(torch.ones(1, 3, 4), src_key_padding_mask=padding)
    torch.testing.assert_close(evaluated[:, :2], expected)


def test_the_parts_of_a_parametrization_are_not_offered_as_they_make_no_outputs() -> None:
    asked: list[str] = []
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert replace_modules(model, {nn.Module: lambda m, n: asked.append(n)}) == []
    assert asked == ["", "0"]


def test_an_error_of_a_policy_says_which_module_it_was() -> None:
    model = net()

    def broken(module: nn.Module, name: str) -> nn.Module:
        if name == "4":
            raise KeyError("width")
        return nn.Linear(4, 6)

    with pytest.raises(KeyError) as error:
        replace_modules(model, {nn.Linear: broken})
    assert notes(error) == ["the policy for Linear raised this for '4' (Linear); nothing was replaced"]
    assert same_modules(model, net())


def same_modules(model: nn.Module, other: nn.Module) -> bool:
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return repr(model) == repr(other) and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("policies", "optimizers", "message"),
    [
        ({nn.ReLU: lambda m, n: nn.GELU}, (), "returned <class .*GELU'> for '2' .ReLU.; it has to return a module"),
        ({torch.Tensor: gelu}, (), "policies: <class 'torch.Tensor'> is not a class of modules"),
        ({nn.ReLU: nn.GELU()}, (), "policies: GELU.* for ReLU is not a function"),
        ({nn.ReLU: gelu}, ["adam"], "optimizers: 'adam' is not a torch.optim.Optimizer"),
    ],
)
def test_what_has_the_wrong_type_is_refused(policies: Any, optimizers: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        replace_modules(net(), policies, optimizers=optimizers)


def test_anything_but_a_model_is_refused_and_its_former_place_in_the_core_leads_here() -> None:
    with pytest.raises(ArgumentTypeError, match=r"model: function is not a torch\.nn\.Module"):
        replace_modules(gelu, {nn.ReLU: gelu})  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match=r"surgery_plugin\.replacement"):
        assert import_module("engine_core.surgery").replace_modules is replace_modules
