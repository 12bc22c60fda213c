"""Stochastic depth: which blocks it takes, how they behave inside models, and rates that grow."""

import copy

import pytest
import torch
from parts import at, batches, trainer
from surgery_parts import twins
from torch import nn

from engine_core import Callback, Engine, Event, Logger, State, Time
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from surgery_plugin import StochasticBlock, StochasticDepth, apply_stochastic_depth, scale_drop_rates


class BasicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x)


class Derived(BasicBlock):
    pass


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = BasicBlock()

    def forward(self, x):
        return self.inner(x)


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, **options)


def test_names_mean_the_class_itself_and_classes_their_subclasses_too():
    def model():
        return nn.Sequential(BasicBlock(), Derived(), Outer(), nn.Linear(4, 4))

    assert apply_stochastic_depth(model()) == ["0", "2.inner"]
    assert apply_stochastic_depth(model(), (BasicBlock,)) == ["0", "1", "2.inner"]
    assert apply_stochastic_depth(model(), ("Outer", BasicBlock)) == ["0", "1", "2"]


def test_a_shared_block_is_wrapped_once_and_all_its_places_are_named():
    block = BasicBlock()
    model = nn.Sequential(block, nn.ReLU(), block)
    assert [apply_stochastic_depth(model) for _ in range(2)] == [["0", "2"]] * 2
    assert model[0] is model[2] and model[0].block is block and model[0].rate == 0.2


def test_a_second_time_blocks_are_not_wrapped_again_but_take_the_new_settings():
    model = nn.Sequential(BasicBlock(), BasicBlock())
    apply_stochastic_depth(model)
    blocks, generator = list(model), torch.Generator()
    assert apply_stochastic_depth(model, drop_rate=0.5, drop_per="batch", generator=generator) == ["0", "1"]
    assert list(model) == blocks
    assert [(block.rate, block.per_sample) for block in model] == [(0.25, False), (0.5, False)]
    assert model[0].draws.generator is generator
    assert type(model[0].block) is BasicBlock


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_samples_of_a_transformer_have_one_draw_each_wherever_the_batch_dimension_is(batch_first):
    model = nn.Sequential(encoder_layer(batch_first=batch_first))
    apply_stochastic_depth(model, drop_rate=0.5, generator=torch.Generator().manual_seed(3))
    x = torch.randn((16, 5, 4) if batch_first else (5, 16, 4))
    kept = torch.rand(16, generator=torch.Generator().manual_seed(3)) >= 0.5
    same = (model(x) == x).all(2)
    same = same if batch_first else same.T  # (16, 5)
    assert torch.equal(same, (~kept)[:, None].expand(16, 5))


def test_a_sequence_without_a_batch_has_one_draw():
    model = nn.Sequential(encoder_layer())
    apply_stochastic_depth(model, drop_rate=0.5, generator=torch.Generator().manual_seed(3))
    shares = {(model(x) == x).float().mean().item() for x in torch.randn(20, 5, 4)}
    assert shares == {0.0, 1.0}


def test_masks_are_passed_on():
    layer = encoder_layer(batch_first=True)
    model = nn.Sequential(layer)
    apply_stochastic_depth(model, drop_rate=0.0)
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False, False, True]] * 2)
    expected = layer(x, src_key_padding_mask=mask)
    assert torch.equal(model[0](x, src_key_padding_mask=mask), expected)
    assert torch.equal(model[0](x, None, mask), expected)
    assert not torch.equal(model[0](x), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_in_evaluation_computes_bit_for_bit_what_it_did():
    """nn.TransformerEncoder reads the weights of its first layer, and may give the layers nested tensors."""
    encoder = nn.TransformerEncoder(encoder_layer(batch_first=True), 3).eval()
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False] * 3, [False, False, True]])
    with torch.no_grad():
        before = encoder(x, src_key_padding_mask=mask)
        apply_stochastic_depth(encoder)
        assert torch.equal(encoder(x, src_key_padding_mask=mask), before)
    encoder.train()(x, src_key_padding_mask=mask).sum().backward()


def test_copies_and_pickles_continue_drawing_where_the_original_is_each_for_itself():
    model, x = nn.Sequential(BasicBlock(), BasicBlock()), torch.randn(8, 4)
    apply_stochastic_depth(model, drop_rate=0.5)
    model(x)
    copies = twins(model)
    assert copies[0][0].draws is copies[0][1].draws is not model[0].draws
    expected = [model(x) for _ in range(5)]
    for other in copies:
        assert all(torch.equal(other(x), out) for out in expected)


def test_attributes_of_the_block_come_through_and_others_are_missing():
    block = BasicBlock()
    model = nn.Sequential(block)
    apply_stochastic_depth(model)
    assert model[0].linear is block.linear
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        model[0].nothing  # noqa: B018
    with pytest.raises(AttributeError):
        StochasticBlock.__new__(StochasticBlock).block  # noqa: B018  as while a pickle is read


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_blocks_that_do_not_return_a_tensor_are_refused_by_name(per):
    model = nn.Sequential(Pair())
    apply_stochastic_depth(model, (Pair,), drop_per=per)
    with pytest.raises(TypeError, match=r"the block '0' \(Pair\) returns tuple"):
        model(torch.randn(2, 4))


def test_an_input_by_keyword_is_refused():
    model = nn.Sequential(BasicBlock())
    apply_stochastic_depth(model)
    with pytest.raises(TypeError, match="first positional argument"):
        model[0](x=torch.randn(2, 4))


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(BasicBlock(), BasicBlock(), nn.Linear(4, 3))


class Rates(Callback):
    """The rates at which the blocks are dropped in each forward pass."""

    def __init__(self):
        self.seen = []

    def after_forward(self, state, logger):
        blocks = [module for module in state.model.modules() if isinstance(module, StochasticBlock)]
        self.seen.append([round(block.rate * block.draws.share, 10) for block in blocks])


def make_trainer(algorithm, *callbacks, **settings):
    given = {"algorithms": algorithm, "callbacks": callbacks, "max_duration": "2ep", "seed": 1, **settings}
    return trainer(batches(8, 8, 8, 8), make_model(), **given)


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        ({"drop_warmup": "4ba"}, [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]),
        ({"drop_warmup": "0.5dur"}, [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]),
        ({"drop_warmup": Time("32sp")}, [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]),
        ({"drop_warmup": "1dur"}, [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35]),
        ({"drop_warmup": "0dur"}, [0.4] * 8),
        ({"drop_until": "1ep"}, [0.4, 0.3, 0.2, 0.1, 0, 0, 0, 0]),
        ({"drop_until": "1dur", "drop_warmup": "2ba"}, [0, 0.175, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05]),
    ],
    ids=str,
)
def test_the_rates_grow_over_the_warm_up_and_fall_until_they_end(schedule, last):
    """The last of two blocks; the first has half its rate. 2 epochs of 4 batches of 8 samples."""
    recorder = Rates()
    with make_trainer(StochasticDepth(drop_rate=0.4, **schedule), recorder) as run:
        run.fit()
    assert recorder.seen == [[pytest.approx(rate / 2), pytest.approx(rate)] for rate in last]


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_the_share_is_applied_to_the_draws_and_to_what_is_divided_by(per):
    """At 0 the block computes as it would alone; at a half it is dropped and scaled at half its rate."""
    model, x = nn.Sequential(BasicBlock()), torch.randn(64, 4)
    block = copy.deepcopy(model[0])
    apply_stochastic_depth(model, drop_rate=0.8, drop_per=per, generator=torch.Generator().manual_seed(3))
    scale_drop_rates(model, 0)
    assert all(torch.equal(model(x), block(x)) for _ in range(8))
    scale_drop_rates(model, 0.5)
    halved = nn.Sequential(copy.deepcopy(block))
    apply_stochastic_depth(halved, drop_rate=0.4, drop_per=per)
    halved[0].draws.generator.set_state(model[0].draws.generator.get_state())
    assert all(torch.equal(model(x), halved(x)) for _ in range(8))


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_run_that_is_resumed_on_the_way_is_the_uninterrupted_one(tmp_path, stop):
    def train(folder, *callbacks, **settings):
        recorder, saver = Rates(), CheckpointSaver(tmp_path / folder, interval="100ep")
        algorithm = StochasticDepth(drop_rate=0.6, drop_warmup="6ba", drop_until="1dur")
        with make_trainer(algorithm, recorder, saver, *callbacks, **settings) as run:
            run.fit()
        return run.state.model, recorder.seen

    pause = at("batch_end", lambda state: state.timestamp.batch == stop and state.pause_training())
    whole, expected = train("whole")
    _, first = train("parts", pause)
    resumed, second = train("parts", load_path=tmp_path / "parts")
    assert first + second == expected
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_copy_of_the_model_keeps_the_share_of_that_moment():
    model = make_model()
    state = State(model=model, algorithms=[StochasticDepth(drop_rate=0.4, drop_warmup="4ba")], seed=3)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
    state.timestamp = state.timestamp.to_next_batch()
    other = copy.deepcopy(model)
    state.timestamp = state.timestamp.to_next_batch()
    model(torch.randn(2, 4))
    assert [model[1].draws.share, other[1].draws.share] == [0.5, 0.25]


@pytest.mark.parametrize("argument", ["drop_warmup", "drop_until"])
def test_a_fraction_of_a_training_of_unknown_length_is_refused_with_the_first_batch(argument):
    state = State(model=make_model(), algorithms=[StochasticDepth(**{argument: "0.5dur"})], batch=batches(8)[0])
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
        with pytest.raises(ValueError, match=r"max_duration is not known, so '0\.5dur' can't be located"):
            engine.run_event(Event.AFTER_DATALOADER)


def test_a_length_that_only_fit_knows_is_enough():
    recorder = Rates()
    algorithm = StochasticDepth(drop_rate=0.4, drop_warmup="0.5dur")
    with make_trainer(algorithm, recorder, max_duration=None) as run:
        run.fit("4ba")
    assert [seen[1] for seen in recorder.seen] == [0, 0.2, 0.4, 0.4]


@pytest.mark.parametrize(("share", "error"), [(1.1, ValueError), (-0.1, ValueError), ("1", TypeError)], ids=str)
def test_impossible_shares_are_refused(share, error):
    with pytest.raises(error, match=r"share="):
        scale_drop_rates(make_model(), share)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it imports the compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # and where it looks at one
def test_compiled_the_warm_up_computes_the_same():
    models, x = (make_model(), make_model()), torch.randn(8, 4)
    states = [State(model=m, algorithms=[StochasticDepth(drop_rate=0.5, drop_warmup="4ba")], seed=3) for m in models]
    outs = [[], []]
    for state, seen in zip(states, outs, strict=True):
        with Engine(state, Logger()) as engine:
            engine.run_event(Event.INIT)
        torch.compiler.reset()
        model = torch.compile(state.model, backend="eager") if state is states[1] else state.model
        for _ in range(12):
            seen.append(model(x))
            state.timestamp = state.timestamp.to_next_batch()
    torch.compiler.reset()
    assert all(torch.equal(one, two) for one, two in zip(*outs, strict=True))
