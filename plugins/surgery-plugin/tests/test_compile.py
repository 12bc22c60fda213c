"""Compile: what is compiled, what is compiled again, and the order in which a model is changed."""

import pytest
import torch
from parts import trainer
from surgery_parts import run_init, twins
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, State
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core_author import RecordingDestination
from surgery_plugin import (
    ActivationCheckpointing,
    ChannelsLast,
    Compile,
    FusedLayerNorm,
    StochasticDepth,
    apply_compile,
)

# torch's own, in its compiler
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def _forgets():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Graphs(list):
    """A backend that keeps each graph and runs it as it is."""

    def __call__(self, graph, inputs):
        self.append(graph)
        return graph.forward


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(F.relu(self.linear(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batches(*rows):
    drawn = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 8, generator=drawn), torch.randint(3, (n,), generator=drawn)) for n in rows]


class Swap(Callback):
    """Evaluates other weights in their places, as an average of them does."""

    def eval_start(self, state, logger):
        self.own = [parameter.data for parameter in state.model.parameters()]
        for parameter in state.model.parameters():
            parameter.data = parameter.data / 2

    def eval_end(self, state, logger):
        for parameter, own in zip(state.model.parameters(), self.own, strict=True):
            parameter.data = own


def train(*algorithms, rows=(6, 6, 6), **settings):
    """Train for two epochs, each with an evaluation; return the weights and what is logged of compiling."""
    model, logs = Net(), RecordingDestination()
    given = {"optimizers": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), "loss_fn": F.cross_entropy}
    given |= {"eval_dataloader": batches(5), "callbacks": Swap(), "max_duration": "2ep", "loggers": logs, "seed": 1}
    with trainer(batches(*rows), model, algorithms=algorithms, **(given | settings)) as made:
        made.fit()
        assert next(iter(made.predict(batches(4)))).shape == (4, 3)
    told = [{n: v for n, v in metrics.items() if "recompil" in n} for _, metrics in logs.metrics]
    return model.state_dict(), [each for each in told if each]


@pytest.mark.parametrize(("blocks", "graphs"), [((), 2), (["Block"], 3)], ids=["whole", "blocks"])
def test_a_run_has_the_weights_of_one_without_it_and_a_graph_for_training_and_one_for_evaluation(blocks, graphs):
    """Blocks share theirs; the first of them gets an input without a gradient, which is one more."""
    made = Graphs()
    plain, (found, logged) = train()[0], train(Compile(blocks, backend=made))
    assert [*found] == [*plain]
    assert [name for name in plain if not torch.equal(plain[name], found[name])] == []
    assert (len(made), logged) == (graphs, [])


def test_what_is_compiled_again_is_counted_and_told_once():
    """For the last microbatch, and for none of the law's few rows: that of a sum is measured."""
    made, settings = Graphs(), {"microbatch_size": 4, "loss_fn": lambda o, t: F.cross_entropy(o, t) + 0}
    with pytest.warns(UserWarning, match="compile: batch 3 has the model compiled again") as told:
        found, logged = train(Compile(backend=made, dynamic=False), rows=(4, 4, 7, 5), **settings)
    assert len(told) == 1
    assert logged == [{"compile/recompilations": 1}, {"compile/recompilations": 2}]
    assert len(made) == 5  # of 4, 3 and 2 rows, and of the rows of the evaluation and the prediction
    plain, _ = train(rows=(4, 4, 7, 5), **settings)
    assert [name for name in plain if not torch.equal(plain[name], found[name])] == []


def test_torch_s_own_classes_are_compiled_too_and_blocks_share_their_graphs_but_models_don_t():
    made, x = Graphs(), torch.randn(2, 3, 8)
    for width in range(1, 11):  # torch gives up on a function that has 8 graphs
        model = nn.Sequential(nn.Linear(8, width), nn.ReLU())
        apply_compile(model, backend=made, dynamic=False)
        model(x)
    assert len(made) == 10
    made.clear()
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 4)
    assert len(apply_compile(encoder, [nn.TransformerEncoderLayer], backend=made)) == 4
    encoder(x).sum().backward()
    assert len(made) == 2  # without and with a gradient for the input


def test_hooks_stay_out_of_the_graph_and_copies_are_not_compiled_and_have_their_own_weights():
    made, called, x = Graphs(), [], torch.ones(2, 8)
    model = nn.Sequential(nn.Linear(8, 2))
    apply_compile(model, backend=made)
    hook = model.register_forward_pre_hook(lambda *_: called.append(len(called)))
    *_, expected = (model(x) for _ in range(3))
    hook.remove()  # which can't be pickled
    for other in twins(model):
        assert torch.equal(other(x), expected)
        nn.init.zeros_(other[0].weight)
        assert not torch.equal(other(x), expected) and torch.equal(model(x), expected)
    assert (len(made), called) == (1, [0, 1, 2])


def test_a_training_that_calls_nothing_of_what_is_compiled_is_told_so():
    class Reaches(Net):
        def forward(self, x):
            return F.linear(x, self.head.weight)

    torch._dynamo.utils.counters.clear()
    model = Reaches()
    with (
        trainer(batches(6), model, algorithms=Compile(["Linear"], backend="eager"), loss_fn=F.cross_entropy) as made,
        pytest.warns(UserWarning, match="compile: nothing was compiled in the first batch: the training calls none"),
    ):
        made.fit("2ba")


class Quantize(Algorithm):
    """A later algorithm that says that it goes between."""

    metadata = AlgorithmMetadata(
        name="quantize", events=("init",), after=("activation_checkpointing",), before=("compile",)
    )

    def match(self, event, state):
        return True

    def apply(self, event, state, logger=None): ...


class Untagged(Quantize):
    """One that says nothing."""

    metadata = AlgorithmMetadata(name="untagged", events=("init",))


def order_of(*algorithms):
    with Engine(State(algorithms=[*algorithms]), Logger()) as engine:
        return [explained.algorithm for explained in engine.explain("init")]


def test_all_surgery_comes_first_then_checkpointing_then_what_goes_between_then_compile():
    listed = [Compile(), Quantize(), ActivationCheckpointing(), FusedLayerNorm(), ChannelsLast(), StochasticDepth()]
    for given in (listed, listed[::-1]):
        assert order_of(*given) == [
            *("StochasticDepth", "ChannelsLast", "FusedLayerNorm"),
            *("ActivationCheckpointing", "Quantize", "Compile"),
        ]


@pytest.mark.parametrize("last", [FusedLayerNorm, ActivationCheckpointing, Compile])
def test_each_of_three_comes_after_what_says_nothing(last):
    assert order_of(last(), Untagged()) == ["Untagged", last.__name__]


def test_what_can_t_be_compiled_is_refused():
    with pytest.raises(ArgumentError, match=r"the model is what torch\.compile has returned: give the plain module"):
        run_init(torch.compile(Net(), backend="eager"), Compile())
    with pytest.raises(ArgumentError, match="no module of class or name 'Bloc'; did you mean 'Block'"):
        run_init(Net(), Compile(["Bloc"]))
    for name, value in {"backend": 1, "mode": True, "dynamic": "auto", "fullgraph": 1}.items():
        with pytest.raises(ArgumentTypeError, match=f"{name}={value!r}"):
            Compile(**{name: value})


@pytest.mark.full
def test_inductor_computes_the_same_up_to_rounding():
    """What it generates is compiled by a compiler of C++; one layer of it is enough, which draws nothing."""
    try:
        found, _ = train(Compile(["head"]), rows=(6,))
    except torch._inductor.exc.InductorError as error:
        pytest.skip(f"inductor can't compile here: {error}")
    plain, _ = train(rows=(6,))
    for name, weight in plain.items():
        torch.testing.assert_close(found[name], weight)
