"""What is around a step with Accelerate is kept: clipping, skipped steps, stops, precision, several optimizers."""

import itertools

import pytest
import torch
from torch.nn.functional import cross_entropy

from engine_core import Event
from engine_core.errors import EngineError, UnsupportedError
from engine_core_author.probes import at_events

from .accelerate_runs import EVEN, Run, at, make_accelerator
from .cases import BATCH, LEARNING_RATE, MOMENTUM, differences, make_loaders, make_net, train_ours


@pytest.mark.parametrize(("stops_at", "clock"), [(7, (1, 0)), (9, (1, 2))])
def test_a_stop_ends_after_its_batch(stops_at, clock):
    events = []
    stop = at("batch_end", lambda state: state.timestamp.batch == stops_at and state.stop_training())
    run = Run(callbacks=[stop, at_events([*Event], lambda event, _: events.append(event.value))])
    with run.fit():
        for _ in range(4):
            run.epoch()
    assert (run.state.timestamp.epoch, run.state.timestamp.batch_in_epoch) == clock
    assert run.state.timestamp.batch == stops_at
    assert events.count("batch_checkpoint") == stops_at
    assert events.count("epoch_start") == -(-stops_at // 7)
    assert events.count("epoch_end") == clock[0]


def test_the_rest_of_an_epoch_needs_the_whole_to_be_known():
    run = Run(callbacks=[at("batch_end", lambda state: state.timestamp.batch == 2 and state.stop_training())])
    with run.fit():
        run.epoch()
    says = r"continues an epoch: give the whole of it to fit\(model, optimizer, loader\)"
    with pytest.raises(EngineError, match=says), run.loop.fit(run.model, run.optimizer):
        run.rest(2)


def test_the_next_fit_goes_on_after_a_stop():
    began = []
    stop = at("batch_end", lambda state: state.timestamp.batch == 2 and state.stop_training())
    run = Run("ema", callbacks=[stop, at("epoch_start", lambda state: began.append(state.timestamp.batch))])
    with run.fit():
        run.epoch()
    with run.fit():
        run.rest(2)
        run.evaluate()
    run.train()
    assert began == [0, 7]
    assert differences(run.ended(), Run("ema").train()) == []


def test_several_optimizers_are_cleared_clipped_and_skipped_together():
    def make(net):
        halves = [[*net.parameters()][:4], [*net.parameters()][4:]]
        return [torch.optim.SGD(half, lr=LEARNING_RATE, momentum=MOMENTUM) for half in halves]

    run = Run("together", max_grad_norm=0.5)
    optimizers = [run.accelerator.prepare_optimizer(one) for one in make(run.net)]
    run.optimizer = type("Both", (), {"step": lambda self: [one.step() for one in optimizers]})()
    with run.loop.fit(run.model, optimizers, run.loader):
        for _ in range(2):
            run.epoch()
            run.evaluate()
    assert [type(one) for one in run.state.optimizers] == [torch.optim.SGD] * 2
    assert differences(run.ended(), train_ours("together", grad_clip_norm=0.5)) == []


def test_a_scheduler_steps_as_the_user_says_and_state_shows_it():
    rates = []
    run = Run(callbacks=[at("batch_end", lambda state: rates.append(state.optimizers[0].param_groups[0]["lr"]))])
    made = torch.optim.lr_scheduler.StepLR(run.optimizer.optimizer, 1, gamma=0.5)
    scheduler = run.accelerator.prepare(made)
    with run.loop.fit(run.model, run.optimizer, run.loader, scheduler):
        assert [*run.state.schedulers] == [made]
        for _ in run.steps():
            scheduler.step()
    assert rates == [LEARNING_RATE * 0.5**n for n in range(1, 8)]


def test_the_loss_of_a_step_is_that_of_all_its_batches():
    seen, losses = [], []
    look = [
        at("before_backward", lambda state: seen.append(state.loss.item())),
        at("after_train_batch", lambda state: losses.append(state.loss.item())),
    ]
    loaders = make_loaders(batch=BATCH // 2, rows=EVEN)
    returned = []
    run = Run(callbacks=look, accelerator=make_accelerator(2), loaders=loaders)
    with run.fit():
        for batch in run.loop.batches(run.loader):
            returned.append(run.loop.gradients(batch).item())
            run.optimizer.step()
    assert [2 * loss for loss in seen] == returned
    assert losses == [pytest.approx(a + b) for a, b in zip(seen[::2], seen[1::2], strict=True)]


@pytest.mark.parametrize("steps", [1, 3])
def test_what_algorithms_make_of_the_loss_is_differentiated(steps):
    double = at("before_backward", lambda state: setattr(state, "loss", state.loss * 2))
    run = Run(callbacks=[double], accelerator=make_accelerator(steps))
    own, returned, first = make_net(), [], next(iter(make_loaders()[0]))
    with run.fit():
        for batch in run.loop.batches(run.loader):
            returned.append(run.loop.gradients(batch).item())
            (2 * cross_entropy(own(batch[0]), batch[1]) / steps).backward()
            if len(returned) == steps:
                break
    pairs = zip(run.net.parameters(), own.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-7) for a, b in pairs)
    assert returned[0] == pytest.approx(2 * cross_entropy(make_net()(first[0]), first[1]).item())


def make_scaling():
    """Return an accelerator as one of a GPU with fp16 is, on the CPU."""
    accelerator = make_accelerator()
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
    return accelerator


def test_a_scaler_unscales_once_so_there_is_no_second_pass():
    with pytest.raises(UnsupportedError, match=r"SAM .* no closure: the scaler of 'fp16' unscales once a step; use"):
        Run("sam", accelerator=make_scaling())


def test_with_a_scaler_a_skipped_step_has_nothing_to_step():
    seen = []
    watch = at("batch_end", lambda state: seen.append([p.detach().clone() for p in state.model.parameters()]))
    skip = at("after_train_batch", lambda state: state.timestamp.batch == 3 and state.skip_step())
    run = Run("ema", accelerator=make_scaling(), max_grad_norm=0.5, callbacks=[skip, watch])
    run.train(1)
    assert run.state.precision == "amp_fp16"
    same = [all(map(torch.equal, one, other)) for one, other in itertools.pairwise(seen)]
    assert same == [False, False, True, False, False, False]


def test_the_model_gets_the_batch_of_before_forward_and_the_step_has_the_whole_one():
    rows = []
    calls = [
        at("before_forward", lambda state: setattr(state, "batch", [item[:3] for item in state.batch])),
        at("after_forward", lambda state: rows.append(len(state.outputs))),
        at("after_train_batch", lambda state: rows.append(len(state.batch[0]))),
    ]
    Run(callbacks=calls).train(1)
    assert rows == [3, 8] * 6 + [3, 5]


def test_an_optimizer_with_a_closure_of_the_users_gets_one_batch_a_step():
    loaded, forwards = [], []
    calls = [
        at("after_dataloader", lambda state: loaded.append(state.timestamp.batch)),
        at("after_forward", lambda state: forwards.append(state.timestamp.batch)),
    ]
    run = Run(callbacks=calls)
    own, lbfgs = make_net(), torch.optim.LBFGS
    theirs = run.accelerator.prepare_optimizer(lbfgs(run.net.parameters(), lr=0.1, max_iter=3))
    ours = lbfgs(own.parameters(), lr=0.1, max_iter=3)

    def closure_of(optimizer, model, batch):
        def closure():
            optimizer.zero_grad()
            loss = cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            return loss

        return closure

    with run.loop.fit(run.model, theirs, run.loader):
        for batch in run.loop.batches(run.loader):
            run.loop.gradients(batch)
            theirs.step(closure_of(theirs, run.model, batch))
    for batch in make_loaders()[0]:
        closure_of(ours, own, batch)()
        ours.step(closure_of(ours, own, batch))
    assert loaded == forwards == [*range(7)]
    assert all(map(torch.equal, run.net.parameters(), own.parameters()))
