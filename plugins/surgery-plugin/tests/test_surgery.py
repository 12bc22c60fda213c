"""What the algorithms share: when they act, what they need, what they refuse and say about a changed model."""

import copy

import pytest
import torch
from surgery_parts import run_init
from torch import nn

from engine_core import Event, State
from engine_core.errors import ArgumentError, NothingReplacedWarning
from engine_core.explain import explain_algorithms
from surgery_plugin import (
    BlurPool,
    ChannelsLast,
    FusedLayerNorm,
    GatedLinearUnits,
    LogitSoftCap,
    NgramEmbedding,
    SqueezeExcite,
    StochasticDepth,
    TokenShift,
    WhitenedStem,
    apply_blurpool,
    apply_channels_last,
    apply_fused_layernorm,
    apply_gated_linear_units,
    apply_logit_soft_cap,
    apply_ngram_embedding,
    apply_squeeze_excite,
    apply_stochastic_depth,
    apply_token_shift,
)

ALGORITHMS = [BlurPool, SqueezeExcite, ChannelsLast, GatedLinearUnits, FusedLayerNorm, StochasticDepth]
ALGORITHMS += [NgramEmbedding, TokenShift, LogitSoftCap]


class Bottleneck(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm1 = nn.Embedding(4, 2), nn.RMSNorm(2)

    def forward(self, x):
        return x + x.sin()


def net():
    """Return a model in which each of them finds one place, channels_last two."""
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 3), nn.Conv2d(64, 64, 3, stride=2), Bottleneck()),
        *(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)),
    )


@pytest.mark.parametrize("make", ALGORITHMS)
def test_it_acts_at_init_only_and_a_checkpoint_needs_it(make):
    assert [event for event in Event if make().match(event, State(model=net()))] == [Event.INIT]
    guarded = [Event.FIT_START, Event.FIT_END] if make is ChannelsLast else []  # where the model has a GroupNorm
    assert list(make.metadata.events) == [Event.INIT, *guarded]
    assert make.required_on_load() is True


def test_their_order_does_not_depend_on_the_list():
    explained = [explain_algorithms([make() for make in [*ALGORITHMS, WhitenedStem][::step]]) for step in (1, -1)]
    assert [each.warnings for each in explained] == [(), ()]


@pytest.mark.parametrize("make", ALGORITHMS)
def test_without_a_model_it_is_refused_by_name(make):
    with pytest.raises(ArgumentError, match=f"{make.metadata.name} has no model to change"):
        run_init(None, make())


@pytest.mark.parametrize("make", ALGORITHMS)
def test_the_places_are_counted_in_the_log(make):
    assert run_init(net(), make()) == [{f"{make.metadata.name}/replaced": 2 if make is ChannelsLast else 1}]


@pytest.mark.parametrize("make", ALGORITHMS)
def test_a_model_without_such_places_causes_one_warning_by_name(make):
    with pytest.warns(NothingReplacedWarning, match=f"^{make.metadata.name} changed nothing") as caught:
        run_init(nn.Sequential(nn.Identity()), make())
    assert len(caught) == 1


@pytest.mark.parametrize("make", ALGORITHMS)
def test_a_second_run_on_a_changed_model_causes_no_warning_and_keeps_its_modules(make):
    model = net()
    run_init(model, make())
    before = dict(model.named_modules())
    run_init(model, make())
    assert dict(model.named_modules()) == before


APPLY = [apply_blurpool, apply_squeeze_excite, apply_channels_last, apply_gated_linear_units, apply_stochastic_depth]
APPLY += [apply_ngram_embedding, apply_token_shift, apply_logit_soft_cap]


@pytest.mark.parametrize("apply", APPLY)
def test_its_function_takes_one_optimizer_or_several_and_they_train_what_there_is(apply):
    for several in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert apply(model, optimizers=[optimizer] if several else optimizer)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        assert held == {id(parameter) for parameter in model.parameters()}


DRAWING = [apply_gated_linear_units, apply_squeeze_excite, apply_stochastic_depth, apply_ngram_embedding]


@pytest.mark.parametrize(
    "function", [apply_blurpool, apply_channels_last, apply_fused_layernorm, apply_token_shift, *DRAWING]
)
def test_anything_but_a_model_is_refused(function):
    for model in (None, nn.Linear):
        with pytest.raises(TypeError, match=f"^model: {type(model).__name__} is not a torch.nn.Module$"):
            function(model)


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("function", DRAWING)
def test_anything_but_a_generator_is_refused_whether_or_not_there_is_something_to_draw(function, *, found):
    layers = [nn.Conv2d(64, 64, 3), nn.TransformerEncoderLayer(4, 1, 8)] if found else [nn.ReLU()]
    model = nn.Sequential(*layers)
    before = copy.deepcopy(model)
    with pytest.raises(TypeError, match=r"generator=3 \(int\) has to be a torch\.Generator or None"):
        function(model, generator=3)
    assert list(model) == layers and str(model) == str(before)


REFUSED = [
    (BlurPool, apply_blurpool, {"min_channels": 0}, "min_channels=0"),
    (BlurPool, apply_blurpool, {"replace_convs": False, "replace_maxpools": False}, "leave nothing to replace"),
    (SqueezeExcite, apply_squeeze_excite, {"min_channels": 0}, "min_channels=0"),
    (SqueezeExcite, apply_squeeze_excite, {"latent_channels": 0}, "latent_channels=0 .*a fraction of them below 1"),
    (SqueezeExcite, apply_squeeze_excite, {"latent_channels": 1.5}, "latent_channels=1.5 has to be whole, or a"),
    (StochasticDepth, apply_stochastic_depth, {"drop_rate": 1}, r"drop_rate=1 has to be within \[0, 1\)"),
    (StochasticDepth, apply_stochastic_depth, {"drop_distribution": "lineal"}, "did you mean 'linear'"),
    (StochasticDepth, apply_stochastic_depth, {"drop_per": "block"}, "drop_per='block' has to be sample or batch"),
    (StochasticDepth, apply_stochastic_depth, {"targets": "BasicBlock"}, "a list of class names"),
    (StochasticDepth, apply_stochastic_depth, {"targets": (dict,)}, "neither a class name nor a module class"),
    (NgramEmbedding, apply_ngram_embedding, {"buckets": 0}, "buckets=0"),
    (NgramEmbedding, apply_ngram_embedding, {"std": -1}, "std=-1"),
    (NgramEmbedding, apply_ngram_embedding, {"sizes": [2, 1]}, r"sizes=1 has to be within \[2, inf\)"),
    (NgramEmbedding, apply_ngram_embedding, {"sizes": [3, 3]}, r"sizes=\[3, 3\] names a size twice"),
    (NgramEmbedding, apply_ngram_embedding, {"embedding": 3}, "embedding=3 .* the path of a module"),
    (LogitSoftCap, apply_logit_soft_cap, {"cap": 0}, r"cap=0 has to be within \(0, inf\)"),
    (TokenShift, apply_token_shift, {"share": 1.5}, "share=1.5"),
    (TokenShift, apply_token_shift, {"norms": []}, r"norms=\[\] has to be a list of patterns"),
    (StochasticDepth, None, {"drop_until": "0ba"}, "drop_until has to be positive, not '0ba'"),
    (StochasticDepth, None, {"drop_warmup": "1.5dur"}, "drop_warmup='1.5dur' has to be within the training"),
]


@pytest.mark.parametrize(("make", "function", "arguments", "message"), REFUSED)
def test_impossible_arguments_are_refused_by_class_and_function(make, function, arguments, message):
    """The conformance kit tries what has a wrong type."""
    for call in (make, *([lambda **given: function(net(), **given)] if function else [])):
        with pytest.raises((ValueError, TypeError), match=message):
            call(**arguments)


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ({"a": None, "b": "nope"}, "'nope' in the state of stochastic_depth, for the block 'b', is not a dtype"),
        ({"b": 3}, "3 in the state of stochastic_depth, for the block 'b', is not a dtype"),
        (["b"], r"gives=\['b'\] in the state of stochastic_depth has to be names of dtypes by block"),
    ],
)
def test_a_state_with_no_dtypes_is_refused_and_nothing_taken(gives, message):
    algorithm, other = StochasticDepth(), torch.Generator().manual_seed(8).get_state()
    saved = {"generator": torch.Generator().manual_seed(7).get_state(), "gives": {"a": "float32", "b": None}}
    algorithm.load_state_dict(saved)
    with pytest.raises((ValueError, TypeError), match=message):
        algorithm.load_state_dict({"generator": other, "gives": gives})
    assert algorithm.state_dict()["gives"] == saved["gives"]
    assert torch.equal(algorithm.state_dict()["generator"], saved["generator"])


@pytest.mark.full  # it imports the compiler
@pytest.mark.parametrize(
    "function",
    [apply_blurpool, apply_squeeze_excite, apply_gated_linear_units, apply_fused_layernorm, apply_logit_soft_cap],
)
def test_a_model_that_is_compiled_afterwards_computes_the_same_in_one_graph(function):
    model, x = net(), torch.randn(2, 1, 19, 19)
    assert function(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for is_mixed in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed):
            torch.testing.assert_close(compiled(x), model(x))
    torch.compiler.reset()
