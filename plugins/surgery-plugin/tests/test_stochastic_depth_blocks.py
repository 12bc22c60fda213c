"""Which blocks stochastic depth takes, and how they behave inside models: masks, copies, attributes, refusals."""

import copy
from typing import Any

import pytest
import torch
from surgery_parts import twins
from torch import nn

from surgery_plugin import StochasticBlock, apply_stochastic_depth


class BasicBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x)


class Derived(BasicBlock):
    pass


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = BasicBlock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, **options)


def test_names_mean_the_class_itself_and_classes_their_subclasses_too() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(BasicBlock(), Derived(), Outer(), nn.Linear(4, 4))

    assert apply_stochastic_depth(model()) == ["0", "2.inner"]
    assert apply_stochastic_depth(model(), (BasicBlock,)) == ["0", "1", "2.inner"]
    assert apply_stochastic_depth(model(), ("Outer", BasicBlock)) == ["0", "1", "2"]


def test_a_shared_block_is_wrapped_once_and_all_its_places_are_named() -> None:
    block = BasicBlock()
    model = nn.Sequential(block, nn.ReLU(), block)
    assert apply_stochastic_depth(model) == ["0", "2"]
    assert apply_stochastic_depth(model) == ["0", "2"]
    assert model[0] is model[2] and model[0].block is block and model[0].rate == 0.2


def test_a_second_time_blocks_are_not_wrapped_again_but_take_the_new_settings() -> None:
    model = nn.Sequential(BasicBlock(), BasicBlock())
    apply_stochastic_depth(model)
    blocks, generator = list(model), torch.Generator()
    assert apply_stochastic_depth(model, drop_rate=0.5, drop_per="batch", generator=generator) == ["0", "1"]
    assert list(model) == blocks
    assert [(block.rate, block.per_sample) for block in model] == [(0.25, False), (0.5, False)]
    assert model[0].draws.generator is generator
    assert type(model[0].block) is BasicBlock


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_samples_of_a_transformer_have_one_draw_each_wherever_the_batch_dimension_is(batch_first) -> None:
    model = nn.Sequential(encoder_layer(batch_first=batch_first))
    apply_stochastic_depth(model, drop_rate=0.5, generator=torch.Generator().manual_seed(3))
    x = torch.randn((16, 5, 4) if batch_first else (5, 16, 4))
    kept = torch.rand(16, generator=torch.Generator().manual_seed(3)) >= 0.5
    same = (model(x) == x).all(2)
    same = same if batch_first else same.T  # (16, 5)
    assert torch.equal(same, (~kept)[:, None].expand(16, 5))


def test_a_sequence_without_a_batch_has_one_draw() -> None:
    model = nn.Sequential(encoder_layer())
    apply_stochastic_depth(model, drop_rate=0.5, generator=torch.Generator().manual_seed(3))
    shares = {(model(x) == x).float().mean().item() for x in torch.randn(20, 5, 4)}
    assert shares == {0.0, 1.0}


def test_masks_are_passed_on() -> None:
    layer = encoder_layer(batch_first=True)
    model = nn.Sequential(layer)
    apply_stochastic_depth(model, drop_rate=0.0)
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False, False, True]] * 2)
    expected = layer(x, src_key_padding_mask=mask)
    assert torch.equal(model[0](x, src_key_padding_mask=mask), expected)
    assert torch.equal(model[0](x, None, mask), expected)
    assert not torch.equal(model[0](x), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_in_evaluation_computes_bit_for_bit_what_it_did() -> None:
    """nn.TransformerEncoder reads the weights of its first layer, and may give the layers nested tensors."""
    encoder = nn.TransformerEncoder(encoder_layer(batch_first=True), 3).eval()
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False] * 3, [False, False, True]])
    with torch.no_grad():
        before = encoder(x, src_key_padding_mask=mask)
        apply_stochastic_depth(encoder)
        assert torch.equal(encoder(x, src_key_padding_mask=mask), before)
    encoder.train()(x, src_key_padding_mask=mask).sum().backward()


def test_copies_and_pickles_continue_drawing_where_the_original_is_each_for_itself() -> None:
    model, x = nn.Sequential(BasicBlock(), BasicBlock()), torch.randn(8, 4)
    apply_stochastic_depth(model, drop_rate=0.5)
    model(x)
    copies = twins(model)
    assert copies[0][0].draws is copies[0][1].draws is not model[0].draws
    expected = [model(x) for _ in range(5)]
    for other in copies:
        assert all(torch.equal(other(x), out) for out in expected)


def test_weights_can_be_saved_and_loaded() -> None:
    model, other = (nn.Sequential(BasicBlock()) for _ in range(2))
    apply_stochastic_depth(model)
    apply_stochastic_depth(other)
    assert list(model.state_dict()) == ["0.block.linear.weight", "0.block.linear.bias"]
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 4)
    assert torch.equal(other.eval()(x), model.eval()(x))


def test_attributes_of_the_block_come_through_and_others_are_missing() -> None:
    block = BasicBlock()
    model = nn.Sequential(block)
    apply_stochastic_depth(model)
    assert model[0].linear is block.linear
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        model[0].nothing  # noqa: B018
    with pytest.raises(AttributeError):
        StochasticBlock.__new__(StochasticBlock).block  # noqa: B018  as while a pickle is read


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # at a graph break
def test_a_model_that_is_compiled_afterwards_draws_and_computes_the_same() -> None:
    model, x = nn.Sequential(BasicBlock(), BasicBlock()), torch.randn(8, 4)
    apply_stochastic_depth(model, drop_rate=0.5)
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="eager")
    assert all(torch.equal(compiled(x), other(x)) for _ in range(3))
    torch.compiler.reset()


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_blocks_that_do_not_return_a_tensor_are_refused_by_name(per) -> None:
    model = nn.Sequential(Pair())
    apply_stochastic_depth(model, (Pair,), drop_per=per)
    with pytest.raises(TypeError, match=r"the block '0' \(Pair\) returns tuple"):
        model(torch.randn(2, 4))


def test_an_input_by_keyword_is_refused() -> None:
    model = nn.Sequential(BasicBlock())
    apply_stochastic_depth(model)
    with pytest.raises(TypeError, match="first positional argument"):
        model[0](x=torch.randn(2, 4))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"drop_rate": 1}, ValueError, r"drop_rate=1 has to be within \[0, 1\)"),
        ({"drop_distribution": "lineal"}, ValueError, "did you mean 'linear'"),
        ({"drop_per": "block"}, ValueError, "drop_per='block' has to be sample or batch"),
        ({"targets": "BasicBlock"}, TypeError, "a list of class names"),
        ({"targets": (dict,)}, TypeError, "neither a class name nor a module class"),
    ],
)
def test_impossible_arguments_are_refused(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        apply_stochastic_depth(nn.Sequential(BasicBlock()), **arguments)
