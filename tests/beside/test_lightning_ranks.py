"""Two processes by Lightning's ddp_fork: what is the trainer's there, and what ranks share."""

import pytest
import torch

from engine_core import Event
from engine_core.errors import UnsupportedError
from engine_core_author.probes import at_events

from .cases import make_loaders
from .lightning_runs import ITS_WARNINGS, Digits, Whole, make_callback, make_trainer

pytestmark = [
    *ITS_WARNINGS,
    pytest.mark.filterwarnings(
        "ignore:It is recommended to use .self.log", "ignore:This process .* is multi-threaded:DeprecationWarning"
    ),
    pytest.mark.ranks,
]


def fit(callback, strategy="ddp_fork", module=None, **settings):
    """Train on two processes."""
    given = {"strategy": strategy, "devices": 2, "limit_val_batches": 0, "max_epochs": 1, **settings}
    make_trainer([callback], **given).fit(Digits() if module is None else module, *make_loaders())


@pytest.fixture
def found(tmp_path):
    """Train with surgery, EMA and cutout on the same rows in each process, and return what each rank has written."""

    def write(event, state):
        own = {name: value.clone() for name, value in state.model.state_dict().items() if "running" not in name}
        written = {
            "weights": own,
            "has": {type(module).__name__ for module in state.model.modules()},
            "images": state.batch[0] if state.batch is not None else None,
            "of": [state.world_size, state.ranks.size, state.seed, state.timestamp.sample],
        }
        torch.save(written, tmp_path / f"{state.rank}-{event.value}.pt")

    events = [Event.FIT_START, Event.AFTER_LOSS, Event.FIT_END]
    callback = make_callback("squeeze_excite", callbacks=[at_events(events, write)], seed=None)
    for name in ("cutout", "ema"):
        callback.state.algorithms.extend(make_callback(name).state.algorithms)
    fit(callback, use_distributed_sampler=False)
    return {event: [torch.load(tmp_path / f"{rank}-{event.value}.pt") for rank in (0, 1)] for event in events}


def test_ranks_have_the_same_surgery_and_keep_the_same_weights(found):
    for event in (Event.FIT_START, Event.FIT_END):
        one, other = (rank["weights"] for rank in found[event])
        assert [*one] == [*other] and all(torch.equal(one[name], other[name]) for name in one)
    before, after = (found[event][0]["weights"] for event in (Event.FIT_START, Event.FIT_END))
    # Not each of them: a unit of the new module that starts dead has no gradient.
    assert not all(torch.equal(before[name], after[name]) for name in before if name.endswith("weight"))
    assert any(kind.startswith("SqueezeExcite") for kind in found[Event.FIT_START][1]["has"])


def test_draws_of_each_row_differ_between_ranks(found):
    one, other = (rank["images"] for rank in found[Event.AFTER_LOSS])
    assert one.shape == other.shape and not torch.equal(one, other)


def test_ranks_have_one_seed_and_state_ranks_is_that_of_one_process(found):
    one, other = (rank["of"] for rank in found[Event.FIT_END])
    assert one == other == [2, 1, one[2], 53]


def test_an_algorithm_that_compares_rows_of_all_processes_is_refused():
    why = "no global_batch: Lightning averages gradients whatever rows .* choose within each process: scope='rank'"
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match=why):
        fit(make_callback("selective_backprop"))


def test_what_waits_for_gradients_that_dont_come_is_refused():
    with pytest.raises(Exception, match="no freezing: DDP waits for a gradient") as caught:
        fit(make_callback("layer_freezing"))
    assert UnsupportedError.__name__ in str(caught.value)
    fit(make_callback("layer_freezing"), "ddp_fork_find_unused_parameters_true")


def test_the_second_pass_of_sam_goes_through_ddp_and_the_module_may_be_the_model(tmp_path):
    def write(_, state):
        torch.save([*state.model.parameters()], tmp_path / f"{state.rank}.pt")

    fit(make_callback("sam", model=None, callbacks=[at_events([Event.FIT_END], write)]), module=Whole())
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert one and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
