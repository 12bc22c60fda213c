"""The fake ranks: threads that tell each other what processes would, and say where processes would wait forever."""

import pickle
import time

import pytest
import torch
from torch import nn

from engine_core import Trainer
from engine_core.errors import EngineError
from engine_core.ranks import Ranks
from engine_core_author import ThreadRanks


def of(ranks):
    rows = torch.full((ranks.rank, 2), float(ranks.rank))  # none on rank 0
    whole, own = ranks.gather(rows)
    return (
        whole.tolist(),
        (own.start, own.stop),
        ranks.table([ranks.rank, 0.5]),
        ranks.sum(ranks.rank),
        ranks.any(ranks.rank == 2),
        ranks.first(f"rank {ranks.rank}"),
        ranks.each([ranks.rank]),
    )


def test_each_rank_gets_what_all_have_put_down():
    whole, table = [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]], [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]
    same = (table, 3.0, True, "rank 0", [[0], [1], [2]])
    assert ThreadRanks.run(of, 3) == [(whole, (0, 0), *same), (whole, (0, 1), *same), (whole, (1, 3), *same)]


def test_one_thread_is_one_process():
    assert ThreadRanks.run(of, 1) == [of(Ranks())]


def test_what_a_rank_is_told_is_a_copy_and_of_the_kinds_that_processes_can_send():
    def program(ranks):
        told, own = ranks.each(mine := [torch.zeros(1)]), ranks.first(mine)
        mine[0] += ranks.rank + 1
        return told, own

    (told, _), (_, own) = ThreadRanks.run(program)
    assert [value.item() for (value,) in (*told, own)] == [0, 0, 0]
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        ThreadRanks.run(lambda ranks: ranks.each(lambda: None))


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (lambda ranks: ranks.rank or ranks.sum(1), "rank 0 calls table, rank 1 has ended"),
        (lambda ranks: ranks.each(1) if ranks.rank else ranks.sum(1), "rank 0 calls table, rank 1 calls each"),
    ],
)
def test_a_call_that_only_some_ranks_make_is_an_error_at_once(program, problem):
    with pytest.raises(EngineError, match=problem):
        ThreadRanks.run(program)


def test_what_a_rank_raises_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        ThreadRanks.run(lambda ranks: ranks.sum(1 / (1 - ranks.rank)))


def test_a_rank_that_hangs_is_named():
    with pytest.raises(EngineError, match=r"rank 0 has waited 0\.1 s in table"):
        ThreadRanks.run(lambda ranks: time.sleep(0.5) if ranks.rank else ranks.sum(1), timeout_s=0.1)


def test_ranks_take_turns_and_each_draws_as_a_process_of_its_own():
    seen = []

    def program(ranks):
        torch.manual_seed(3)
        drawn = [torch.rand(()).item()]
        for _ in range(2):
            seen.append(ranks.rank)
            ranks.sum(1)
            drawn.append(torch.rand(()).item())
        return drawn

    before = torch.get_rng_state()
    one, other = ThreadRanks.run(program)
    assert seen == [0, 1, 0, 1]
    assert one == other
    assert torch.equal(torch.get_rng_state(), before)


class Counting(nn.Module):
    """A linear layer that keeps a statistic of its rank's rows, as BatchNorm does, and how often it was called."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("running_mean", torch.zeros(()))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, inputs):
        if self.training:
            self.running_mean, self.calls = torch.tensor(float(len(inputs))), self.calls + 1
        return self.linear(inputs)


def train(ranks):
    torch.manual_seed(0 if ranks is None else ranks.rank)
    model, data = Counting(), [(torch.arange(6.0).reshape(3, 2), torch.ones(3, 1))] * 2
    with Trainer(
        model,
        data,
        max_duration="2ep",
        loss_fn=nn.MSELoss(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        eval_dataloader=data,
        seed=1,
        parallel=ranks,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    return model.state_dict(), trainer.results["eval/loss"]["last"], trainer.state.timestamp.sample


def test_a_run_in_threads_is_that_of_one_process():
    (first, *told), (second, *same) = ThreadRanks.run(train)
    one, *expected = train(None)
    assert told == same == pytest.approx(expected)
    assert [of["running_mean"].item() for of in (first, second, one)] == [1.5, 1.5, 3.0]
    assert [first["calls"].item(), second["calls"].item()] == [one["calls"].item()] * 2
    for name in ("linear.weight", "linear.bias"):
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], one[name])


@pytest.mark.parametrize("wrap", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_statistics_become_the_mean_of_the_ranks_and_unit_vectors_those_of_rank_0(wrap):
    def program(ranks):
        model = nn.Sequential(wrap(nn.Linear(2, 2)), nn.BatchNorm1d(2))
        wrapping = ranks.wrap(model)
        for buffer in model.buffers():
            buffer.copy_(torch.eye(2)[ranks.rank] if buffer.dim() else buffer)
        wrapping.mean_buffers()
        return {name: buffer.tolist() for name, buffer in model.named_buffers() if buffer.dim()}

    first, second = ThreadRanks.run(program)
    assert first == second
    assert [name[-1] for name, value in first.items() if value == [1.0, 0.0]] == ["u", "v"]
    assert [name for name, value in first.items() if value == [0.5, 0.5]] == ["1.running_mean", "1.running_var"]


def test_a_model_may_have_an_expanded_buffer():
    def scale(ranks):
        model = nn.Linear(2, 1)
        model.register_buffer("scale", torch.full((1,), float(ranks.rank)).expand(4))
        data = [(torch.ones(2, 2), torch.ones(2, 1))]
        settings = {"loss_fn": nn.MSELoss(), "parallel": ranks, "progress_bar": False, "max_duration": "1ep"}
        with Trainer(model, data, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), **settings) as trainer:
            trainer.fit()
        return model.scale.tolist()

    assert ThreadRanks.run(scale) == [[0.0] * 4] * 2
