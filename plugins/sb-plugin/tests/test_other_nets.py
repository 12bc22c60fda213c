"""Scores by other nets: a proxy that trains beside the model, and RHO-LOSS, each against the loop by hand."""

import copy
import functools

import pytest
import torch
from parts import at, same, trainer
from torch import nn
from torch.nn import functional as F

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core_author.ranks import ThreadRanks
from sb_plugin import SelectiveBackprop

ROWS, SIZE = 24, 8
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
BATCHES = list(zip(X.split(SIZE), Y.split(SIZE), torch.arange(ROWS).split(SIZE), strict=True))
ALWAYS = {"start": 0, "end": 1, "interrupt": 0, "selector": "topk"}


def model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))


def small():
    torch.manual_seed(8)
    return nn.Linear(6, 2)


def with_adam():
    net = small()
    return net, torch.optim.Adam(net.parameters(), lr=0.1)


def run(algorithm, *callbacks, batches=BATCHES, net=model, **settings):
    """Train for 4 epochs; return the trainer and the ids of each step."""
    picks, made_of = [], net()
    sgd = torch.optim.SGD(made_of.parameters(), lr=0.3, momentum=0.5)
    decay = (functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9), "1ba")
    given = {"max_duration": "4ep", "optimizers": sgd, "schedulers": decay, "seed": 1, **settings}
    noting = at("before_forward", lambda state: picks.append(state.batch[2].tolist()))
    algorithms = [] if algorithm is None else [algorithm]
    with trainer(batches, made_of, algorithms=algorithms, callbacks=[noting, *callbacks], **given) as made:
        made.fit()
    return made, picks


def proxy_by_hand(own, start=0, end=1, interrupt=0):
    """Train the proxy alone, as it would be if it came first; return it and what it picks."""
    net, optimizer = with_adam() if own else (small(), None)
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
    picks = []
    for step in range(12):
        x, y, ids = BATCHES[step % 3]
        done, is_plain = step / 12, interrupt and (step % 3 + 1) % interrupt == 0
        losses, kept = F.cross_entropy(net(x), y, reduction="none"), torch.arange(SIZE)
        if start <= done < end and not is_plain:
            kept = losses.argsort(descending=True)[: SIZE // 2].sort().values
        picks.append(ids[kept].tolist())
        if done >= end:
            continue
        for group in optimizer.param_groups if not own else ():
            group["lr"] = 0.3 * 0.9**step
        optimizer.zero_grad()
        losses[kept].mean().backward()
        optimizer.step()
    return net, picks


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("when", [{}, {"start": 0.25, "end": 0.75}, {"interrupt": 2}])
def test_the_proxy_picks_what_it_would_pick_if_it_had_trained_first(own, when):
    algorithm = SelectiveBackprop(**{**ALWAYS, **when}, scorer="proxy", proxy=with_adam if own else small())
    _, picks = run(algorithm)
    net, expected = proxy_by_hand(own, **when)
    assert picks == expected
    saved = algorithm.state_dict()["proxy"]
    assert all(torch.allclose(saved[name], value, atol=1e-6) for name, value in net.state_dict().items())


def test_a_proxy_touches_nothing_but_itself():
    """Until a step selects, the run is the plain one."""
    given = small()
    before = copy.deepcopy(given.state_dict())
    noisy = nn.Sequential(nn.Dropout(0.5), given)
    made, _ = run(SelectiveBackprop(0.99, 1, scorer="proxy", proxy=noisy))
    plain, _ = run(None)
    assert same(made.state.model.state_dict(), plain.state.model.state_dict())
    assert same(given.state_dict(), before)  # a run trains a copy
    trained = made.state.algorithms[0].state_dict()["proxy"]
    assert not torch.equal(trained["1.weight"], before["weight"])


@pytest.mark.filterwarnings("ignore::engine_core.errors.NonFiniteLossWarning")
def test_a_batch_with_nan_does_not_spoil_the_proxy():
    batches = [(x.clone(), y, ids) for x, y, ids in BATCHES]
    batches[1][0][3] = torch.nan
    algorithm = SelectiveBackprop(**ALWAYS, scorer="proxy", proxy=small())
    _, picks = run(algorithm, "loss_guard", batches=batches)
    assert all(value.isfinite().all() for value in algorithm.state_dict()["proxy"].values())
    assert not any(11 in each for each in picks)


@pytest.mark.parametrize("pause", [2, 4, 7])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, pause):
    def part(folder=None, at_batch=None):
        noisy = nn.Sequential(nn.Dropout(0.2), small())
        algorithm = SelectiveBackprop(0.2, 1, interrupt=3, scorer="proxy", proxy=noisy)
        pausing = at("batch_end", lambda state: state.timestamp.batch == at_batch and state.pause_training())
        saver = [CheckpointSaver(folder, interval="100ba")] if folder else []
        return run(algorithm, pausing, *saver, autoresume=bool(folder))

    whole, picks = part()
    _, before = part(tmp_path, pause)
    rest, after = part(tmp_path)
    assert before + after == picks
    for one, other in ((whole.state.model, rest.state.model), (whole.state.algorithms[0], rest.state.algorithms[0])):
        found, expected = other.state_dict(), one.state_dict()
        assert same({**found, "scoring_s": 0}, {**expected, "scoring_s": 0})


IRREDUCIBLE = torch.rand(ROWS, generator=torch.Generator().manual_seed(3)) * 2


class Holdout(nn.Module):
    """A model that is another one in train mode."""

    def __init__(self):
        super().__init__()
        self.net, self.drop = small(), nn.Dropout(0.9)

    def forward(self, x):
        return self.net(self.drop(x))


def rho_by_hand(irreducible):
    net = nn.Linear(6, 2)
    net.load_state_dict(linear().state_dict())
    optimizer, picks = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5), []
    for step in range(12):
        x, y, ids = BATCHES[step % 3]
        optimizer.param_groups[0]["lr"] = 0.3 * 0.9**step
        with torch.no_grad():
            scores = F.cross_entropy(net(x), y, reduction="none") - irreducible(x, y, ids)
        kept = scores.argsort(descending=True)[: SIZE // 2].sort().values
        picks.append(ids[kept].tolist())
        optimizer.zero_grad()
        F.cross_entropy(net(x[kept]), y[kept]).backward()
        optimizer.step()
    return net, picks


def linear():
    torch.manual_seed(4)
    return nn.Linear(6, 2)


HOLDOUT = Holdout()
FORMS = {
    "table": ({"irreducible": IRREDUCIBLE, "index_key": 2}, lambda x, y, ids: IRREDUCIBLE[ids]),
    "function": ({"irreducible": IRREDUCIBLE.double, "index_key": 2}, lambda x, y, ids: IRREDUCIBLE[ids]),
    "model": (
        {"irreducible": HOLDOUT},
        lambda x, y, ids: F.cross_entropy(HOLDOUT.net(x), y, reduction="none"),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_rho_keeps_the_largest_reducible_losses(form):
    given, irreducible = FORMS[form]
    made, picks = run(SelectiveBackprop(**ALWAYS, scorer="rho", **given), net=linear)
    net, expected = rho_by_hand(irreducible)
    assert picks == expected
    assert all(torch.allclose(made.state.model.state_dict()[n], v, atol=1e-6) for n, v in net.state_dict().items())
    assert HOLDOUT.training and HOLDOUT.drop.training


SCORERS = {
    "proxy": lambda: {"scorer": "proxy", "proxy": small()},
    "rho by a table": lambda: {"scorer": "rho", **FORMS["table"][0]},
    "rho by a model": lambda: {"scorer": "rho", **FORMS["model"][0]},
}


@pytest.mark.parametrize("kind", SCORERS)
@pytest.mark.parametrize("start", [0, 0.5])
def test_two_ranks_are_one_process(kind, start):
    def program(ranks):
        torch.set_num_threads(1)
        made, picks = run(
            SelectiveBackprop(**{**ALWAYS, "start": start}, **SCORERS[kind]()), net=linear, parallel=ranks
        )
        return made.state.model.state_dict(), picks, made.state.algorithms[0].state_dict()

    weights, picks, saved = program(None)
    (first, here, states), (second, there, others) = ThreadRanks.run(program)
    assert [sorted(a + b) for a, b in zip(here, there, strict=True)] == picks
    assert same(first, second)
    for name, value in weights.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=2e-6)
    for name, value in saved.get("proxy", {}).items():
        assert torch.equal(states["proxy"][name], others["proxy"][name])
        torch.testing.assert_close(states["proxy"][name], value, rtol=0, atol=2e-6)


def two_optimizers(net):
    return [torch.optim.SGD(list(net.parameters())[:1], lr=0.1), torch.optim.SGD(list(net.parameters())[1:], lr=0.1)]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"scorer": "proxy", "proxy": lambda: 3}, ArgumentTypeError, "proxy gives 3, not an nn.Module, or a pair"),
        ({"scorer": "rho", "irreducible": IRREDUCIBLE}, ArgumentError, "irreducible losses needs index_key.*WithIndex"),
        (
            {"scorer": "rho", "irreducible": IRREDUCIBLE[:20], "index_key": 2},
            ArgumentError,
            "irreducible has 20 losses, and this batch has the id 23: give one for each",
        ),
        (
            {"scorer": "rho", "irreducible": IRREDUCIBLE.long()},
            ArgumentTypeError,
            r"irreducible gives .a tensor \(24,\) of torch.int64.*or a tensor \(examples,\)",
        ),
    ],
)
def test_what_is_not_such_a_net_or_table_is_refused_with_what_to_give(given, error, message):
    with pytest.raises(error, match=message):
        run(SelectiveBackprop(**ALWAYS, **given))


def test_a_proxy_that_cant_train_as_the_model_does_needs_an_optimizer():
    algorithm = SelectiveBackprop(**ALWAYS, scorer="proxy", proxy=small())
    net = model()
    message = "the run has SGD, SGD: let proxy be a function that returns the net and an optimizer for it, as a pair"
    with pytest.raises(ArgumentError, match=message):
        run(algorithm, net=lambda: net, optimizers=two_optimizers(net), schedulers=())
    algorithm = SelectiveBackprop(**ALWAYS, scorer="proxy", proxy=with_adam)
    run(algorithm, net=lambda: net, optimizers=two_optimizers(net), schedulers=())


def test_another_proxy_than_the_saved_one_is_refused():
    algorithm = SelectiveBackprop(**ALWAYS, scorer="proxy", proxy=small())
    run(algorithm)
    other = SelectiveBackprop(**ALWAYS, scorer="proxy", proxy=nn.Linear(6, 2, bias=False))
    other.load_state_dict(algorithm.state_dict())
    with pytest.raises(ArgumentError, match="the saved proxy does not fit into Linear"):
        run(other)
