"""The callback `norms`: numbers by hand, names of layers, and when it measures."""

import math
from typing import Any

import pytest
import torch
from parts import acting, linear
from torch import nn
from torch.nn import functional as F

from engine_core import Logger, State
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core_author import RecordingDestination, ThreadRanks
from insight_plugin import Norms


def one_step(model: Any, grads: dict[str, Any], updates: dict[str, float], **given: Any) -> dict[str, float]:
    """Return what is logged of a step in which each weight grows by a number."""
    seen, norms, parameters = RecordingDestination(), Norms(**given), dict(model.named_parameters())
    state, logger = State(model=model), Logger([seen])
    for name, grad in grads.items():
        parameters[name].grad = grad
    norms.init(state, logger)
    norms.fit_start(state, logger)
    norms.after_train_batch(state, logger)
    for name, by in updates.items():
        parameters[name].data += by
    norms.batch_end(state, logger)
    return seen.metrics[0][1] if seen.metrics else {}


def layer(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    made = nn.Linear(len(weight[0]), len(weight))
    made.weight.data, made.bias.data = torch.tensor(weight), torch.tensor(bias)
    return made


def test_a_layers_weight_and_bias_are_taken_together() -> None:
    model = nn.Sequential(layer([[2.0, 4.0]], [4.0]), nn.ReLU(), layer([[1.0]], [0.0]))
    grads = {"0.weight": torch.tensor([[1.0, 2.0]]), "0.bias": torch.tensor([2.0]), "2.weight": torch.tensor([[-7.0]])}
    assert one_step(model, grads, {"0.weight": 0.0, "0.bias": -3.0, "2.weight": 0.5}) == {
        "norms/gradient/0": 3.0,
        "norms/weight/0": 6.0,
        "norms/update_to_weight/0": 0.5,
        "norms/gradient/2": 7.0,
        "norms/weight/2": 1.0,
        "norms/update_to_weight/2": 0.5,
    }


def test_weights_of_zero_have_no_ratio_and_a_layer_without_gradient_has_no_norm_of_it() -> None:
    assert one_step(layer([[0.0]], [0.0]), {}, {"weight": 1.0}) == {"norms/weight/(model)": 0.0}


def test_parameters_that_do_not_train_are_left_out() -> None:
    model = nn.Sequential(layer([[3.0]], [9.0]), layer([[1.0]], [1.0]).requires_grad_(requires_grad=False))
    model[0].bias.requires_grad_(requires_grad=False)
    assert one_step(model, {}, {}) == {"norms/weight/0": 3.0, "norms/update_to_weight/0": 0.0}


def test_a_tensor_that_two_layers_share_is_the_firsts() -> None:
    model = nn.ModuleDict({"in": nn.Linear(2, 2, bias=False), "out": nn.Linear(2, 2)})
    model["out"].weight = model["in"].weight
    model["in"].weight.data.fill_(1.0)
    model["out"].bias.data.fill_(0.5)
    found = one_step(model, {}, {})
    assert (found["norms/weight/in"], found["norms/weight/out"]) == (2.0, pytest.approx(0.5**0.5))


@pytest.mark.parametrize("name", ["a/b", "(model)", "\x1b[31m", "ü\n"])
def test_any_name_of_a_module_is_taken_as_it_is(name: str) -> None:
    model = nn.Module()
    model.add_module(name, layer([[2.0]], [0.0]))
    assert one_step(model, {}, {}) == {f"norms/weight/{name}": 2.0, f"norms/update_to_weight/{name}": 0.0}


@pytest.mark.full  # it imports the compiler
def test_what_compiling_puts_around_a_module_is_not_in_the_names() -> None:
    inner: Any = torch.compile(layer([[2.0]], [0.0]), backend="eager")
    model: Any = torch.compile(nn.Sequential(inner), backend="eager")
    assert sorted(one_step(model, {}, {})) == ["norms/update_to_weight/0", "norms/weight/0"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64])
def test_precisions_may_differ_and_halves_do_not_overflow(dtype: torch.dtype) -> None:
    model = nn.Sequential(layer([[3.0, 4.0]], [0.0]), nn.Linear(2, 1, bias=False))
    model[1].weight = nn.Parameter(torch.full((1, 2), 60_000, dtype=dtype))
    found = one_step(model, {}, {})
    assert found["norms/weight/0"] == 5.0
    assert found["norms/weight/1"] == pytest.approx(60_000 * 2**0.5, rel=1e-2)


def test_sparse_gradients_count() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    model(torch.tensor([1, 1])).sum().backward()
    assert one_step(model, {}, {})["norms/gradient/(model)"] == pytest.approx(8**0.5)


def test_a_lazy_layer_that_did_not_run_is_left_out_and_may_be_named() -> None:
    model = nn.Sequential(layer([[2.0]], [0.0]), nn.LazyLinear(2))
    assert sorted(one_step(model, {}, {}, layers=["0", "1"])) == ["norms/update_to_weight/0", "norms/weight/0"]


def test_patterns_choose_layers_and_one_that_fits_none_is_refused_with_the_nearest() -> None:
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), "head": nn.Linear(1, 1)})
    found = one_step(model, {}, {}, layers=["encoder.*"])
    assert {name.rpartition("/")[2] for name in found} == {"encoder.0", "encoder.1"}
    with pytest.raises(ArgumentError, match=r"no layer that trains is called 'haed'.*'head'"):
        one_step(model, {}, {}, layers=["haed"])


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        ({"interval": "10"}, ArgumentError, "interval: '10' has no unit"),
        ({"interval": "0ba"}, ArgumentError, "interval has to be positive"),
        ({"layers": "head"}, ArgumentTypeError, r"layers='head' has to be a list of names, such as \['encoder"),
        ({"layers": []}, ArgumentError, "names no layer"),
    ],
)
def test_wrong_arguments_are_refused_when_it_is_made(given: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        Norms(**given)


def by_hand(data: Any, rate: float) -> list[tuple[float, ...]]:
    model, found = linear(), list[tuple[float, ...]]()
    for inputs, targets in data:
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        weight = nn.utils.parameters_to_vector(model.parameters()).norm().item()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(rate * parameter.grad)
        found.append((norm, weight, rate * norm / weight))
    return found


NAMES = ("norms/gradient/(model)", "norms/weight/(model)", "norms/update_to_weight/(model)")


def test_in_a_run_they_are_those_by_hand_under_the_step_of_the_loss(run: Any) -> None:
    data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
    sgd = {"optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1), "max_duration": "1ep"}
    _, seen = run(linear(), Norms("2ba"), train_dataloader=data, microbatch_size=3, **sgd)
    expected = by_hand(data, 0.1)
    for place, name in enumerate(NAMES):
        values = [(step, pytest.approx(expected[step][place], rel=1e-4)) for step in (0, 2, 4)]
        assert seen.values(name) == values


@pytest.mark.parametrize(("interval", "steps"), [("1ep", [0, 4]), ("16sp", [0, 2, 5, 7]), ("0.5dur", [0, 4])])
def test_the_first_step_of_each_interval_is_measured(run: Any, interval: str, steps: list[int]) -> None:
    _, seen = run(callbacks=Norms(interval))
    assert [step for step, _ in seen.values("norms/weight/0")] == steps


def test_a_skipped_step_shows_its_gradients_and_moves_nothing(run: Any) -> None:
    def skip(event: Any, state: State) -> None:
        state.model[4].weight.grad[0, 0] = math.nan  # type: ignore[index,union-attr]
        state.skip_step()

    _, seen = run(callbacks=Norms("4ba"), algorithms=acting(skip, "after_train_batch"))
    assert seen.values("norms/update_to_weight/4") == [(0, 0.0), (4, 0.0)]
    assert all(math.isnan(norm) for _, norm in seen.values("norms/gradient/4"))
    assert all(norm > 0 for _, norm in seen.values("norms/gradient/0"))


def test_ranks_that_log_nothing_copy_and_look_at_nothing_if_all_have_whole_weights() -> None:
    def program(ranks: ThreadRanks) -> tuple[list[Any], int]:
        seen, norms, state = RecordingDestination(), Norms(), State(model=nn.Linear(2, 2), ranks=ranks)
        logger = Logger([] if ranks.rank else [seen])
        norms.init(state, logger)
        norms.fit_start(state, logger)
        norms.after_train_batch(state, logger)
        kept = len(norms._kept)
        norms.batch_end(state, logger)
        return [sorted(metrics) for _, metrics in seen.metrics], kept

    names = ["norms/update_to_weight/(model)", "norms/weight/(model)"]
    assert ThreadRanks.run(program) == [([names], 1), ([], 0)]


def test_what_an_exception_left_of_a_step_is_not_logged_by_the_next_fit() -> None:
    seen, norms, state = RecordingDestination(), Norms(), State(model=nn.Linear(2, 2))
    logger = Logger([seen])
    norms.init(state, logger)
    norms.after_train_batch(state, logger)  # the optimizer raises
    norms.fit_start(state, logger)
    norms.batch_end(state, logger)
    assert seen.metrics == []
