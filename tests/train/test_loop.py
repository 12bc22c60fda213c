"""A loop of one's own on the seam is the Trainer's: events, weights, clock, blocks, states, refusals."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from engine_core import Callback, Event, State
from engine_core.errors import CheckpointError, ClosedEngineError, UnsupportedError
from engine_core.loop import Loop, Phase, read_state, write_state
from engine_core.needs import EVERYTHING

from .own_loops import DATA, OwnLoop, plugins
from .parts import EVENTS, acting, at, same, trainer, writing_down


def shown(state):
    """Return the clock, and what else State shows."""
    others = state.dataloader_label, state.dataloader_len, state.between_batches, state.eval_timestamp[:3]
    return *state.timestamp[:5], others, None if state.loss is None else round(state.loss.item(), 5)


def looking(seen):
    looks = {
        event: lambda self, state, logger, event=event: seen.append((event, *shown(state))) for event in EVENTS[2:]
    }
    return type("Looks", (Callback,), looks)()


def test_a_loop_of_ones_own_is_the_trainers():
    seen, expected = [], []
    own = OwnLoop(plugins(), [looking(seen)])
    own.fit(2)
    given = {"algorithms": plugins(), "callbacks": [looking(expected)], "loss_fn": cross_entropy}
    ours = trainer(DATA, max_duration="2ep", eval_dataloader=DATA, seed=1, **given)
    ours.fit()
    assert [event for event, *_ in seen] == [event for event, *_ in expected]
    assert seen == expected
    assert own.state.metrics == pytest.approx(ours.state.metrics, rel=1e-6)
    assert_same_weights(own, ours)
    for mine, theirs in zip(own.state.algorithms, ours.state.algorithms, strict=True):
        assert str(mine.state_dict()) == str(theirs.state_dict())


def assert_same_weights(one, other):
    assert same(*(dict(each.state.model.state_dict()) for each in (one, other)))


def test_a_skipped_step_is_skipped_once():
    own = OwnLoop(callbacks=[at("after_train_batch", lambda s: s.timestamp.batch == 1 and s.skip_step())])
    steps = []
    own.optimizer.register_step_post_hook(lambda *_: steps.append(own.state.timestamp.batch))
    own.fit(1)
    assert steps == [0, 2]


def test_a_step_that_the_loop_makes_all_the_same_is_left_out():
    own = OwnLoop()
    own.optimizer.param_groups[0].update(momentum=0.9, weight_decay=0.1)
    own.fit(1)
    weight = own.model.weight.detach().clone()
    own.gradients(DATA[0])
    own.state.gradient_norm = torch.ones(())
    own.loop.leave_out_step()
    own.optimizer.step()
    assert torch.equal(own.model.weight, weight) and own.state.gradient_norm is None


def test_where_schedulers_rest_rates_stay_although_the_loop_steps_its_own():
    def look(state):
        rates.append(own.optimizer.param_groups[0]["lr"])
        if state.timestamp.batch == 2:
            state.loop.schedulers_paused, own.optimizer.param_groups[0]["lr"] = True, 0.3

    rates = []
    own = OwnLoop(callbacks=[at("batch_end", look)])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(own.optimizer, 0.5)
    own.optimizer.register_step_post_hook(lambda *_: scheduler.step())
    own.fit(1)
    assert rates == [0.05, 0.025, 0.3]


def test_an_evaluation_can_fail_in_a_fit_that_goes_on():
    failed, kept = [], []

    @torch.no_grad()
    def swap(event, state):
        if event is Event.EVAL_START:
            kept.append(state.model.weight.clone())
            state.model.weight.zero_()
        else:
            state.model.weight.copy_(kept.pop())

    def evaluate(state):
        own.loop.eval_start("held", [1])
        assert not own.model.weight.any()
        own.loop.undo_evaluation(ValueError("boom"))
        failed.append(f"{state.dataloader_label}, {bool(own.model.weight.any())}, {own.loop.status.phase.name}")

    own = OwnLoop([acting(swap, "eval_start", "eval_end")], [at("batch_end", evaluate)])
    own.fit(1)
    assert failed == ["train, True, TRAINING"] * 3
    assert own.loop.engine.undo(ValueError("nothing is left")) == []


def test_a_microbatch_is_undone_before_the_whole_batch_is_back():
    found = []
    note = lambda event, state: found.append((event.value, len(state.batch[0])))  # noqa: E731
    own = OwnLoop([acting(note, "before_forward", "after_forward")])
    own.loop.fit_start()
    own.loop.begin_forward(DATA[2])
    own.loop.undo_microbatch(ValueError())
    assert found == [("before_forward", 2), ("after_forward", 2)]


def test_what_is_not_offered_is_refused_as_soon_as_it_is_known():
    own = OwnLoop(plugins())
    offers = replace(EVERYTHING, loop="a loop").without("after_train_batch", why="it has none; take one")
    for offer in (own.loop.offer, lambda offers: Loop(State(algorithms=plugins()), offers)):
        with pytest.raises(
            UnsupportedError, match=r"^Ascends can't work in a loop: no after_train_batch: it has none; "
        ):
            offer(offers)
    own.loop.offer(EVERYTHING)


def test_the_former_names_lead_to_the_loop_and_say_so():
    from engine_core import embed  # noqa: PLC0415

    with pytest.warns(DeprecationWarning, match=r"EmbeddedLoop has moved: import Loop from engine_core\.loop"):
        assert embed.EmbeddedLoop is Loop
    with pytest.raises(AttributeError, match="'Lop'"):
        _ = embed.Lop


def test_a_step_that_is_undone_counts_nowhere():
    heard = []
    events = ("batch_start", "batch_end", "fit_start", "fit_end")
    own = OwnLoop([acting(lambda event, state: heard.append(event.value), *events)])
    with own.loop.fitting():
        for batch in DATA[:2]:
            own.loop.take(batch)
            own.loop.begin_step(own.loop.clear_gradients)
            own.gradients(batch)
            if batch is DATA[0]:
                own.state.skip_step()
                own.loop.undo_step(ValueError())
                assert all(p.grad is None for p in own.model.parameters())
        own.loop.end_gradients()
        own.loop.end_step()
    assert own.state.timestamp[:3] == (0, 1, len(DATA[1][0]))
    assert heard == ["fit_start", *["batch_start", "batch_end"] * 2, "fit_end"]


def test_a_fit_and_an_evaluation_are_blocks():
    own = OwnLoop()
    own.model.eval()
    with pytest.raises(ZeroDivisionError), own.loop.fitting():
        with own.loop.evaluating(own.model, "held") as results:
            assert own.loop.status.phase is Phase.EVALUATING and not torch.is_grad_enabled()
            results["loss"] = torch.tensor(0.5)
        assert own.loop.status.phase is Phase.TRAINING and not own.model.training
        raise ZeroDivisionError
    assert own.state.metrics == {"held/loss": 0.5}
    assert own.loop.status.phase is Phase.IDLE


def test_several_evaluations_in_a_block_leave_no_trace():
    seen = []

    def negate(event, state):
        state.model.weight.neg_()  # raises where gradients are recorded
        seen.extend([state.dataloader_label] * (event is Event.EVAL_END))

    own = OwnLoop([acting(negate, "eval_start", "eval_end")])
    loop, state = own.loop, own.state
    state.batch, weight = DATA[0], own.model.weight.clone()
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), loop.evaluations(device=torch.device("cpu")) as outside:
        for label in ("a", "b"):
            loop.eval_start(label, DATA)
            torch.rand(())
            loop.eval_batch(DATA[1])
            assert not (own.model.training or torch.is_grad_enabled() or torch.equal(own.model.weight, weight))
            with outside():
                assert torch.is_grad_enabled() and torch.equal(torch.get_rng_state(), before)
            if label == "b":
                raise ZeroDivisionError
            loop.eval_end({})
    assert own.model.training and torch.is_grad_enabled() and torch.equal(torch.get_rng_state(), before)
    assert (seen, state.batch is DATA[0], state.dataloader_label) == (["a", "b"], True, None)
    assert torch.equal(own.model.weight, weight) and loop.status.phase is Phase.IDLE


@pytest.mark.parametrize("stops_at", [2, 3])
def test_a_resumed_loop_is_the_uninterrupted_one(stops_at):
    whole = OwnLoop(plugins())
    whole.fit(2)
    first = OwnLoop(plugins(), [at("batch_checkpoint", lambda s: s.timestamp.batch == stops_at and 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        first.fit(2)
    saved, loaded = first.loop.state_dict(), []
    second = OwnLoop(plugins(), [at("after_load", lambda state: loaded.append(state.timestamp.batch))])
    second.model.load_state_dict(first.model.state_dict())
    second.loop.load_state_dict(saved)
    assert (second.state.timestamp.batch, second.loop.state_dict()) == (0, saved)
    second.fit(2)
    assert loaded == [stops_at]
    assert second.state.timestamp[:3] == whole.state.timestamp[:3]
    assert_same_weights(second, whole)
    assert str(second.state.algorithms[0].state_dict()) == str(whole.state.algorithms[0].state_dict())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, r"has format 2, and this version reads up to 1"),
        ({"format": "x"}, r"has format 'x'"),
        ({"algorithms": {"Blur": {}}}, r"was saved with Blur, and this run does not have it"),
        ({"required": ["Blur", "Squeeze"]}, r"was saved with Blur, .*; the checkpoint was saved with Squeeze, "),
    ],
)
def test_a_state_of_another_run_is_refused_at_once_and_the_seed_that_was_saved_holds(changes, says):
    own = OwnLoop(plugins())
    saved = own.loop.state_dict()
    with pytest.raises(CheckpointError, match=says):
        own.loop.load_state_dict({**saved, **changes})
    own.fit(1)
    assert own.state.timestamp.epoch == 1
    other = OwnLoop(plugins())
    other.state.seed = 99
    other.loop.load_state_dict(saved)
    assert other.state.seed == 1


def test_what_was_loaded_for_a_fit_that_failed_to_start_is_not_for_the_next():
    own = OwnLoop(plugins())
    own.fit(1)
    saved, loaded = own.loop.state_dict(), OwnLoop(plugins())
    loaded.loop.load_state_dict(saved)
    loaded.loop.undo(OSError())
    loaded.loop.fit_start()
    assert loaded.state.timestamp.batch == 0


def test_it_is_written_to_two_files_and_read_back(tmp_path):
    own = OwnLoop(plugins())
    own.fit(1)
    saved, file = own.loop.state_dict(), tmp_path / "engine_core.json"
    write_state(tmp_path, saved)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["engine_core.json", "engine_core.safetensors"]
    assert str(read_state(tmp_path)) == str(saved)
    damaged = {"{": "json' is damaged, it is not JSON", "null": "json' is damaged: it holds None, and not an object"}
    for text, says in damaged.items():
        file.write_text(text)
        with pytest.raises(CheckpointError, match=f"engine_core.{says}"):
            read_state(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match="was saved without engine-core, or holds weights alone"):
        read_state(tmp_path)


def test_the_end_of_an_epoch_counts_once_until_another_starts():
    events = []
    own = OwnLoop(callbacks=[writing_down(events, ["epoch_start", "epoch_end"])])
    loop = own.loop
    loop.fit_start()
    for _ in range(2):
        loop.epoch_start()
        loop.epoch_end()
        loop.epoch_end()
    assert events == ["epoch_start", "epoch_end"] * 2
    assert own.state.timestamp.epoch == 2

    loop.close()
    with pytest.raises(ClosedEngineError):
        loop.fit_start()
