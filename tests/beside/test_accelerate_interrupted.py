"""A loop with Accelerate that was interrupted goes on from whole steps: after exceptions, breaks and checkpoints."""

from contextlib import nullcontext

import pytest
import torch
from accelerate import DataLoaderConfiguration

from engine_core import Algorithm, AlgorithmMetadata
from engine_core.errors import EngineError

from .accelerate_runs import EVEN, Run, make_accelerator
from .cases import BATCH, differences, make_loaders, make_net


def plain():
    """Return the net without BatchNorm, whose averages see a batch that is dropped, or trained anew, too."""
    net = make_net()
    net[1] = torch.nn.Identity()
    return net


def accumulating(case="none", **settings):
    """Return a run of 6 steps an epoch, of 2 batches each."""
    loaders = make_loaders(batch=BATCH // 2, rows=EVEN)
    return Run(case, accelerator=make_accelerator(2), loaders=loaders, net=plain(), **settings)


class Fails(torch.nn.CrossEntropyLoss):
    """Raises when it is called for these times."""

    def __init__(self, *times):
        super().__init__()
        self.times, self.called = times, 0

    def forward(self, outputs, targets):
        self.called += 1
        if self.called in self.times:
            raise torch.cuda.OutOfMemoryError("no memory is left")
        return super().forward(outputs, targets)


def train_on(run, dropped):
    """Train an epoch, go on where memory is short, and append the numbers of the batches that are dropped."""
    for number, batch in enumerate(run.loop.batches(run.loader)):
        try:
            run.loop.gradients(batch)
        except torch.cuda.OutOfMemoryError:
            dropped.append(number)
            continue
        run.optimizer.step()


def by_hand(steps):
    """Return the weights after steps on these lists of batches."""
    net = plain()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for batches in steps:
        optimizer.zero_grad()
        for batch in batches:
            (torch.nn.functional.cross_entropy(net(batch[0]), batch[1]) / len(batches)).backward()
        optimizer.step()
    return [*net.parameters()]


def same(run, parameters):
    pairs = zip(run.net.parameters(), parameters, strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


class Opens(Algorithm):
    """Opens at the start of a batch, or of an epoch, what it shuts at its end."""

    def __init__(self, of):
        self.metadata = AlgorithmMetadata(events=(f"{of}_start", f"{of}_end"), writes=())
        self.heard = []

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        self.heard.append(event.value.rpartition("_")[2])


def test_a_batch_that_is_dropped_leaves_no_trace_in_the_next_step():
    dropped, events = [], Opens("batch")
    run = Run([events], loss_fn=Fails(3), net=plain())
    with run.fit():
        train_on(run, dropped)
    batches = [*make_loaders()[0]]
    assert dropped == [2]
    assert same(run, by_hand([[batch] for batch in batches[:2] + batches[3:]]))
    assert run.state.timestamp[:3] == (1, 6, 53 - BATCH)
    assert events.heard == ["start", "end"] * 7  # algorithms undo what they did in a step that is dropped


def test_gradients_of_a_batch_that_failed_halfway_are_gone():
    run, left = Run(), []
    with run.fit():
        for number, batch in enumerate(run.loop.batches(run.loader)):
            if number == 2:
                handle = run.net[0].weight.register_hook(lambda gradient: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    run.loop.gradients(batch)
                left = [p.grad for p in run.net.parameters()]
                before = [p.clone() for p in run.net.parameters()]
                run.optimizer.step()
                handle.remove()
                break
            run.loop.gradients(batch)
            run.optimizer.step()
    assert left == [None] * len(before)
    assert all(map(torch.equal, run.net.parameters(), before))


def test_a_step_of_several_batches_is_dropped_as_a_whole():
    dropped, run = [], accumulating(loss_fn=Fails(4))
    batches = [*make_loaders(batch=BATCH // 2, rows=EVEN)[0]]
    with run.fit():
        train_on(run, dropped)
    assert dropped == [3]
    used = batches[:2] + batches[4:]
    assert same(run, by_hand([used[n : n + 2] for n in range(0, 10, 2)]))
    assert run.state.timestamp[:3] == (1, 5, 5 * BATCH)


@pytest.mark.parametrize("how", ["break", "exception"])
def test_steps_are_whole_after_one_that_was_cut_short(how):
    run, whole = accumulating(), accumulating().train(1)
    with nullcontext() if how == "break" else pytest.raises(ZeroDivisionError), run.fit():
        run.cut(3)
        if how == "exception":
            raise ZeroDivisionError
    assert run.state.timestamp[:3] == (0, 1, BATCH)
    with run.fit():
        run.rest(2)
        run.evaluate()
    assert run.state.timestamp[:3] == (1, 6, EVEN)
    assert differences(run.ended(), whole) == []


def test_steps_are_whole_after_a_checkpoint_within_one(tmp_path):
    whole, cut, resumed = accumulating("ema").train(1), accumulating("ema"), accumulating("ema")
    with cut.fit():
        cut.cut(5, tmp_path)
    resumed.accelerator.load_state(tmp_path)
    with resumed.fit():
        resumed.rest(4)
        resumed.evaluate()
    assert differences(resumed.ended(), whole) == []


def test_a_resumed_epoch_has_no_more_steps_than_its_loader(tmp_path):
    cut, resumed = Run("ema"), Run("ema")
    with cut.fit():
        cut.cut(3, tmp_path)
    resumed.accelerator.load_state(tmp_path)
    message = r"^batches\(\): the epoch has had its 7 steps; .* accelerator.skip_first_batches\(train, done\)"
    with pytest.raises(EngineError, match=message), resumed.fit():
        resumed.epoch()
    assert resumed.state.timestamp[:2] == (0, 7)


def shuffled(is_seedable):
    """Return a run with shuffled batches, whose order Accelerate may derive from the epoch."""
    loader = torch.utils.data.DataLoader(make_loaders()[0].dataset, batch_size=BATCH, shuffle=True)
    accelerator = make_accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=is_seedable))
    return Run("ema", accelerator=accelerator, loaders=(loader, make_loaders()[1]))


def train_saving(run, sets_epoch, folder, saves_at=0):
    """Train to the end as the page says, and save after so many batches."""
    with run.fit():
        while run.state.timestamp.epoch < 3:
            clock, loader = run.state.timestamp, run.loader
            if clock.batch_in_epoch:
                loader = run.accelerator.skip_first_batches(loader, clock.batch_in_epoch)
            for each in (run.loader, loader) if sets_epoch else ():
                each.set_epoch(clock.epoch)
            for _ in run.steps(loader):
                if run.state.timestamp.batch == saves_at - 1 != 6:
                    run.accelerator.save_state(folder)
            if run.state.timestamp.batch == saves_at == 7:
                run.accelerator.save_state(folder)
    return run.ended()


@pytest.mark.parametrize(
    ("is_seedable", "sets_epoch", "saves_at", "is_equal"),
    [(False, False, 7, True), (False, False, 9, False), (True, True, 9, True), (True, False, 9, False)],
    ids=["end of epoch", "mid-epoch", "seedable", "seedable without set_epoch"],
)
def test_a_resumed_run_with_shuffled_batches_is_as_the_page_says(tmp_path, is_seedable, sets_epoch, saves_at, is_equal):
    torch.manual_seed(5)
    whole = train_saving(shuffled(is_seedable), sets_epoch, tmp_path, saves_at)
    torch.manual_seed(77)
    resumed = shuffled(is_seedable)
    resumed.accelerator.load_state(tmp_path)
    found = differences(train_saving(resumed, sets_epoch, tmp_path), whole)
    assert (found == []) == is_equal


def test_an_epoch_that_an_exception_undid_starts_again():
    opens = Opens("epoch")
    run = Run([opens])
    with pytest.raises(ZeroDivisionError), run.fit():
        for number in run.steps():
            if number == 2:
                raise ZeroDivisionError
    assert opens.heard == ["start", "end"]
    with run.fit():
        for _ in run.steps(run.accelerator.skip_first_batches(run.loader, 2)):
            assert opens.heard == ["start", "end", "start"]
    assert opens.heard == ["start", "end"] * 2


def test_a_break_at_the_last_batch_ends_no_epoch():
    run = Run()
    with run.fit():
        run.cut(7)
        with pytest.raises(EngineError, match="the epoch has had its 7 steps"):
            run.epoch()
        run.rest(7)
        assert run.state.timestamp[:2] == (1, 7)
        run.epoch()
    assert run.state.timestamp[:2] == (2, 14)
