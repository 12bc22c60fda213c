"""The callbacks `norms` and `gradient_norm`: numbers by hand, names of layers, clipping, and which steps are due."""

import math

import pytest
import torch
from parts import Memory, acting, at, batches, linear, steps_by_hand, trainer
from torch import nn
from torch.nn import functional as F

from engine_core import Logger, State, Timestamp
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core_author import RecordingDestination, ThreadRanks
from insight_plugin import GradientNorm, Norms
from insight_plugin.pace import Pace


def one_step(model, grads, updates, **given):
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


def layer(weight, bias):
    made = nn.Linear(len(weight[0]), len(weight))
    made.weight.data, made.bias.data = torch.tensor(weight), torch.tensor(bias)
    return made


def test_a_layers_weight_and_bias_are_taken_together():
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


def test_weights_of_zero_have_no_ratio_and_a_layer_without_gradient_has_no_norm_of_it():
    assert one_step(layer([[0.0]], [0.0]), {}, {"weight": 1.0}) == {"norms/weight/(model)": 0.0}


def test_parameters_that_do_not_train_are_left_out():
    model = nn.Sequential(layer([[3.0]], [9.0]), layer([[1.0]], [1.0]).requires_grad_(requires_grad=False))
    model[0].bias.requires_grad_(requires_grad=False)
    assert one_step(model, {}, {}) == {"norms/weight/0": 3.0, "norms/update_to_weight/0": 0.0}


def test_a_tensor_that_two_layers_share_is_the_firsts():
    model = nn.ModuleDict({"in": nn.Linear(2, 2, bias=False), "out": nn.Linear(2, 2)})
    model["out"].weight = model["in"].weight
    model["in"].weight.data.fill_(1.0)
    model["out"].bias.data.fill_(0.5)
    found = one_step(model, {}, {})
    assert (found["norms/weight/in"], found["norms/weight/out"]) == (2.0, pytest.approx(0.5**0.5))


@pytest.mark.parametrize("name", ["a/b", "(model)", "\x1b[31m", "ü\n"])
def test_any_name_of_a_module_is_taken_as_it_is(name):
    model = nn.Module()
    model.add_module(name, layer([[2.0]], [0.0]))
    assert one_step(model, {}, {}) == {f"norms/weight/{name}": 2.0, f"norms/update_to_weight/{name}": 0.0}


@pytest.mark.full  # it imports the compiler
def test_what_compiling_puts_around_a_module_is_not_in_the_names():
    inner = torch.compile(layer([[2.0]], [0.0]), backend="eager")
    model = torch.compile(nn.Sequential(inner), backend="eager")
    assert sorted(one_step(model, {}, {})) == ["norms/update_to_weight/0", "norms/weight/0"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64])
def test_precisions_may_differ_and_halves_do_not_overflow(dtype):
    model = nn.Sequential(layer([[3.0, 4.0]], [0.0]), nn.Linear(2, 1, bias=False))
    model[1].weight = nn.Parameter(torch.full((1, 2), 60_000, dtype=dtype))
    found = one_step(model, {}, {})
    assert found["norms/weight/0"] == 5.0
    assert found["norms/weight/1"] == pytest.approx(60_000 * 2**0.5, rel=1e-2)


def test_sparse_gradients_count():
    model = nn.Embedding(3, 2, sparse=True)
    model(torch.tensor([1, 1])).sum().backward()
    assert one_step(model, {}, {})["norms/gradient/(model)"] == pytest.approx(8**0.5)


def test_a_lazy_layer_that_did_not_run_is_left_out_and_may_be_named():
    model = nn.Sequential(layer([[2.0]], [0.0]), nn.LazyLinear(2))
    assert sorted(one_step(model, {}, {}, layers=["0", "1"])) == ["norms/update_to_weight/0", "norms/weight/0"]


def test_patterns_choose_layers_and_one_that_fits_none_is_refused_with_the_nearest():
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
def test_wrong_arguments_are_refused_when_it_is_made(given, error, problem):
    with pytest.raises(error, match=problem):
        Norms(**given)


def by_hand(data, rate):
    model, found = linear(), []
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


def test_in_a_run_they_are_those_by_hand_under_the_step_of_the_loss(run):
    data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
    sgd = {"optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1), "max_duration": "1ep"}
    _, seen = run(linear(), Norms("2ba"), train_dataloader=data, microbatch_size=3, **sgd)
    expected = by_hand(data, 0.1)
    for place, name in enumerate(NAMES):
        values = [(step, pytest.approx(expected[step][place], rel=1e-4)) for step in (0, 2, 4)]
        assert seen.values(name) == values


@pytest.mark.parametrize(("interval", "steps"), [("1ep", [0, 4]), ("16sp", [0, 2, 5, 7]), ("0.5dur", [0, 4])])
def test_the_first_step_of_each_interval_is_measured(run, interval, steps):
    _, seen = run(callbacks=Norms(interval))
    assert [step for step, _ in seen.values("norms/weight/0")] == steps


def test_a_skipped_step_shows_its_gradients_and_moves_nothing(run):
    def skip(event, state):
        state.model[4].weight.grad[0, 0] = math.nan
        state.skip_step()

    _, seen = run(callbacks=Norms("4ba"), algorithms=acting(skip, "after_train_batch"))
    assert seen.values("norms/update_to_weight/4") == [(0, 0.0), (4, 0.0)]
    assert all(math.isnan(norm) for _, norm in seen.values("norms/gradient/4"))
    assert all(norm > 0 for _, norm in seen.values("norms/gradient/0"))


def test_ranks_that_log_nothing_copy_and_look_at_nothing_if_all_have_whole_weights():
    def program(ranks):
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


def test_what_an_exception_left_of_a_step_is_not_logged_by_the_next_fit():
    seen, norms, state = RecordingDestination(), Norms(), State(model=nn.Linear(2, 2))
    logger = Logger([seen])
    norms.init(state, logger)
    norms.after_train_batch(state, logger)  # the optimizer raises
    norms.fit_start(state, logger)
    norms.batch_end(state, logger)
    assert seen.metrics == []


def norms_by_hand(*sizes, limit=float("inf")):
    found = []
    for model, *_ in steps_by_hand(*sizes):
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
        for parameter in model.parameters():
            parameter.grad *= min(1.0, limit / found[-1])
    return found


def logged(**settings):
    """Return the norms by step, before and after clipping."""
    memory = Memory()
    trainer(batches(8, 5, 8), loggers=memory, **{"callbacks": "gradient_norm", **settings}).fit()
    return memory.values("train/gradient_norm"), memory.values("train/gradient_norm_clipped")


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 3}, {"eval_dataloader": batches(3)}])
def test_without_clipping_it_is_the_norm_of_all_gradients_under_the_step_of_the_loss(settings):
    norms, clipped = logged(**settings)
    assert norms == [(step, pytest.approx(norm)) for step, norm in enumerate(norms_by_hand(8, 5, 8))]
    assert clipped == []


def test_with_clipping_there_is_the_norm_before_and_the_one_after():
    expected, kept = norms_by_hand(8, 5, 8, limit=0.3), []
    keep = at("after_train_batch", lambda state: kept.append(state.gradient_norm.item()))
    norms, clipped = logged(grad_clip_norm=0.3, callbacks=[keep, "gradient_norm"])
    assert norms == [(step, pytest.approx(norm, rel=1e-4)) for step, norm in enumerate(expected)]
    assert clipped == [(step, pytest.approx(min(norm, 0.3), rel=1e-4)) for step, norm in enumerate(expected)]
    assert min(expected) > 0.3
    assert [norm for _, norm in norms] == kept  # which the loop has measured already


def skip_second(state):
    if state.timestamp.batch == 1:
        state.skip_step()


@pytest.mark.parametrize("settings", [{}, {"grad_clip_norm": 0.3}])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_skipped_step_logs_none_whoever_is_listed_first(settings, is_first):
    skips = at("after_train_batch", skip_second)
    both = [skips, GradientNorm()] if is_first else [GradientNorm(), skips]
    assert [[step for step, _ in norms] for norms in logged(callbacks=both, **settings)] == [
        *([0, 2], [0, 2] if settings else [])
    ]


def again(event, state):
    """Step with the gradients at other weights, as sharpness-aware minimization does."""
    model = state.model
    closure = state.loop.closure
    model.weight.data += 1
    closure()
    model.weight.data -= 1


@pytest.mark.parametrize("settings", [{}, {"grad_clip_norm": 0.3}])
def test_gradients_that_an_algorithm_recomputes_are_those_that_are_measured(settings):
    model = linear()
    model.weight.data += 1
    inputs, targets = batches(8)[0]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    (first, *_), clipped = logged(algorithms=acting(again, "after_train_batch", writes=("model",)), **settings)
    assert first == (0, pytest.approx(norm))
    assert [step for step, _ in clipped] == ([0, 1, 2] if settings else [])


def test_under_fp16_a_norm_that_is_not_finite_is_of_a_step_that_the_scaler_skips():
    memory, logger = Memory(), Logger()
    logger.destinations.append(memory)
    for precision, norm in (("amp_fp16", float("inf")), ("fp32", float("inf")), ("amp_fp16", 2.0)):
        state = State(precision=precision, gradient_norm=torch.tensor(norm))
        GradientNorm().batch_end(state, logger)
    assert [values["train/gradient_norm"] for _, values in memory.metrics] == [float("inf"), 2.0]


def test_sparse_gradients_count_and_parameters_without_one_do_not():
    net = nn.ModuleList([nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2)])
    state = State(optimizers=torch.optim.SGD(net.parameters(), lr=0.1))
    net[0](torch.tensor([1, 1])).sum().backward()
    GradientNorm().after_train_batch(state, Logger([Memory()]))
    assert state.gradient_norm is not None
    assert state.gradient_norm.item() == pytest.approx(8**0.5)


def test_two_of_them_log_what_one_does():
    clipping = {"grad_clip_norm": 0.3}
    assert logged(callbacks=["gradient_norm", GradientNorm()], **clipping) == logged(**clipping)


def test_without_loggers_nothing_is_measured():
    seen = []
    trainer(callbacks=["gradient_norm", at("batch_end", lambda state: seen.append(state.gradient_norm))]).fit()
    assert seen == [None, None]


def test_where_torch_has_no_total_norm_it_is_the_same(monkeypatch):
    expected = logged()
    monkeypatch.delattr(torch.nn.utils, "get_total_norm", raising=False)
    assert [(step, pytest.approx(norm)) for step, norm in logged()[0]] == expected[0]


def due(pace, *batches):
    return [batch for batch in batches if pace.is_due(Timestamp(batch=batch))]


def begun(interval, state=None):
    pace = Pace(interval)
    pace.begin(state or State())
    return pace


def test_another_fit_may_be_longer_and_a_new_run_begins_anew():
    pace = begun("0.5dur", State(max_duration="4ba"))
    assert due(pace, 0, 1, 2) == [0, 2]
    pace.locate(State(max_duration="8ba"))
    assert due(pace, 3, 4, 5) == [3, 4]
    pace.begin(State(max_duration="8ba"))
    assert due(pace, 5) == [5]


def test_a_fraction_of_a_training_without_an_end_is_refused():
    with pytest.raises(ArgumentError, match="interval: max_duration is not known"):
        begun("0.1dur")


@pytest.mark.parametrize("saved", [{"begun": -1}, {"begun": "x"}, {"begun": 0.5}])
def test_what_it_never_saved_is_refused(saved):
    with pytest.raises((ValueError, TypeError), match="begun="):
        begun("1ba").load_state_dict(saved)
