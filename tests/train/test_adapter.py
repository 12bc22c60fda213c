"""What adapters to other trainers begin with: plugins by name, and names of the trainer that have to be there."""

import pytest

from engine_core import Callback, LoggerDestination
from engine_core.errors import ArgumentError, ArgumentTypeError, PluginError, UnsupportedError
from engine_core.loop import adapter, check_names, make_loop
from engine_core.needs import EVERYTHING

OFFERS = EVERYTHING.without("freezing", why="it is settled; use another")


class OnEach(Callback):
    """Is used on every rank."""


class OnFirst(Callback):
    """Is used on rank 0 only."""

    every_rank = False


class Freezes(Callback):
    """Needs what the loop lacks."""

    needs = ("freezing",)


def test_plugins_are_named_or_instances_and_of_this_rank():
    own = OnEach()
    loop = make_loop(
        EVERYTHING,
        callbacks=["loss_guard", "audit", own, OnFirst()],
        loggers=[LoggerDestination()],
        max_duration="2ep",
        rank=1,
    )
    assert [type(callback).__name__ for callback in loop.state.callbacks] == ["LossGuard", "OnEach"]
    assert loop.engine.logger.destinations == []
    assert str(loop.state.max_duration) == "2ep"


def test_what_is_not_installed_and_what_the_loop_lacks_is_refused():
    with pytest.raises(PluginError, match="did you mean 'audit'"):
        make_loop(EVERYTHING, callbacks=["audits"])
    with pytest.raises(UnsupportedError, match="Freezes can't work in the Trainer: no freezing: it is settled"):
        make_loop(OFFERS, callbacks=[Freezes()])


def test_names_that_are_there_pass_and_those_that_are_gone_are_named_with_version_and_range(monkeypatch):
    requires = ["torch", "Some_Trainer<3,>=2; python_version>'3'"]
    monkeypatch.setattr(adapter, "required_by", {"my-adapter": requires}.get)
    monkeypatch.setattr(adapter, "installed_version", {"some-trainer": "4.0"}.get)
    there = ["collections:OrderedDict.move_to_end", "os.path:join"]
    check_names("my-adapter", "some-trainer", there)
    gone = ["collections:OrderedDict._nothing", "no_module:name", *there, "os:path.nothing"]
    message = (
        "my-adapter can't work with some-trainer 4.0: it lacks OrderedDict._nothing, name and path.nothing; install "
        "'Some_Trainer<3,>=2', or another version of my-adapter"
    )
    with pytest.raises(UnsupportedError) as caught:
        check_names("my-adapter", "some-trainer", gone)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("given", "says"), [({"loss_fn": 3}, "loss_fn has to be callable"), ({"seed": -1}, "seed has")]
)
def test_a_loss_function_and_a_seed_are_checked(given, says):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=says):
        make_loop(EVERYTHING, **given)
