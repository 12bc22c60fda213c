"""Algorithms, callbacks and loggers by the names of installed plugins."""

import importlib

import pytest

from engine_core.errors import ArgumentError, ArgumentTypeError, PluginError

from .parts import notes, trainer, writing_down

MODULE = """
    from engine_core import Algorithm, Callback, LoggerDestination

    class Doze(Algorithm):
        def __init__(self, depth=1, *, side="left"):
            if depth < 0:
                raise ZeroDivisionError("too deep")
            self.depth, self.side = depth, side

        def match(self, event, state):
            return False

        def apply(self, event, state, logger):
            pass

    class Watch(Callback):
        def fit_start(self, state, logger):
            pass

    class Write(LoggerDestination):
        def __init__(self, path):
            self.path = path
"""


@pytest.fixture
def sleepy(install):
    """Install a distribution with an algorithm, a callback and a logger."""
    parts = {"algorithms": {"doze": "Doze", "gone": "Missing"}, "callbacks": {"watch": "Watch", "write": "Write"}}
    points = {kind: {name: f"sleepy_parts:{part}" for name, part in of.items()} for kind, of in parts.items()}
    install("sleepy", points, {"sleepy_parts": MODULE})


def message(error, **settings):
    """Return the message, after making sure that nothing has started."""
    events = []
    with pytest.raises(error) as caught:
        trainer(callbacks=[writing_down(events)], **settings)
    assert events == []
    return str(caught.value)


def test_a_name_a_pair_and_an_instance_may_be_mixed(sleepy):
    doze = importlib.import_module("sleepy_parts").Doze
    made = trainer(algorithms=["doze", ("doze", {"depth": 3, "side": "right"}), doze(2)])
    dozes = [(type(a).__name__, a.depth, a.side) for a in made.state.algorithms]
    assert dozes == [("Doze", 1, "left"), ("Doze", 3, "right"), ("Doze", 2, "left")]


@pytest.mark.parametrize("given", ["doze", ["doze"], ("doze",), "sleepy:doze"])
def test_one_name_needs_no_list(sleepy, given):
    assert [type(a).__name__ for a in trainer(algorithms=given).state.algorithms] == ["Doze"]


def test_callbacks_and_loggers_come_by_name_too(sleepy):
    made = trainer(callbacks="watch", loggers=[("write", {"path": "here"})])
    assert [type(callback).__name__ for callback in made.state.callbacks] == ["Watch"]
    assert [d.path for d in made.logger.destinations] == ["here"]


PAIR = "algorithms: a pair is (name, arguments), such as ('noise', {'std': 0.1}), not "
IN_A_LIST = "algorithms: put the pair in a list: algorithms=[('doze', {'depth': 3})]"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"algorithms": "dose"}, "'dose' is not among the installed algorithms; did you mean 'doze'?"),
        ({"algorithms": ["watch"]}, "'watch' is not among the installed algorithms, but among the callbacks: give it"),
        ({"algorithms": [("doze", {"dept": 3})]}, "algorithm 'doze': no argument 'dept'; did you mean 'depth'?"),
        ({"algorithms": [("doze", {"volume": 3})]}, "algorithm 'doze': no argument 'volume'; known: depth, side"),
        ({"loggers": "write"}, "callback 'write': missing a required argument: 'path'"),
        *(({"algorithms": given}, IN_A_LIST) for given in (("doze", {"depth": 3}), ["doze", {"depth": 3}])),
        *(({"algorithms": [no]}, f"{PAIR}{no!r}") for no in [("doze", 3), ("doze", {}, 1), (3, {}), ["doze", None]]),
    ],
)
def test_what_names_nothing_is_refused_with_what_may_be_meant(sleepy, settings, expected):
    assert message((ArgumentError, PluginError), **settings).startswith(expected)


def test_a_broken_plugin_is_an_error_with_its_cause_only_where_it_is_asked_for(sleepy):
    trainer(algorithms="doze")
    with pytest.raises(PluginError, match=r"algorithm 'gone' of sleepy 1\.0 can't be loaded") as error:
        trainer(algorithms="gone")
    assert isinstance(error.value.__cause__, AttributeError)
    with pytest.raises(ZeroDivisionError, match="too deep") as error:
        trainer(algorithms=[("doze", {"depth": -1})])
    assert notes(error) == ["while making algorithm 'doze' with {'depth': -1}"]


def test_a_logger_that_receives_nothing_is_refused(sleepy):
    said = message(ArgumentTypeError, loggers="watch")
    lacks = "no log_metrics, no log_hyperparameters and no log_traces; it is a callback: give it to callbacks=[...]"
    assert said.startswith("logger destination 0 (<sleepy_parts.Watch object at ") and said.endswith(lacks)


def test_progress_bar_true_adds_it_after_the_users_callbacks():
    made = trainer(callbacks=writing_down([]), progress_bar=True)
    assert [type(callback).__name__ for callback in made.state.callbacks] == ["Journal", "ProgressBar"]
