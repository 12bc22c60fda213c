"""Passes of plugin distributions: when they are added, what they may do, and what gets the blame."""

import sys
from importlib import import_module

import pytest

from engine_core import Engine, Logger, State
from engine_core.errors import OrderError, PluginError
from engine_core.passes import apply_declared_order, set_filo_order, warn_if_multiple_loss_interpolation

from .parts import A, B, made, source_of

ALGORITHM = source_of("Prune").replace("return None", 'if event == "fit_end": raise RuntimeError("at the end")')
FAKE = f"""{ALGORITHM}
@algorithm_pass(stage="placement", events=("after_dataloader",))
def prune_first(algorithms, event):
    return passes.sort_to_front(algorithms, Prune)
"""


def names_at(engine, event):
    return [trace.name for trace in engine.run_event(event).values()]


@pytest.fixture
def prune(install):
    """Return a function that makes an algorithm whose distribution brings a pass along."""
    points = {"algorithms": {"prune": "prune_module:Prune"}, "passes": {"prune_first": "prune_module:prune_first"}}
    install("prune-plugin", points, {"prune_module": FAKE}, version="0.7")
    return lambda: import_module("prune_module").Prune()


@pytest.fixture
def with_pass(install):
    """Return a function that makes an engine whose third algorithm brings a pass with this mark and body."""

    def make(mark, body, algorithms=()):
        text = f"{ALGORITHM}\n@algorithm_pass({mark})\ndef bad(algorithms, event):\n    {body}\n" if body else ALGORITHM
        points = {"algorithms": {"prune": "bad_module:Prune"}, "passes": {"bad": "bad_module:bad"}}
        install("bad-plugin", points, {"bad_module": text})
        return Engine(State(algorithms=[*algorithms, import_module("bad_module").Prune()]), Logger())

    return make


def test_a_placement_pass_is_truly_first_on_an_undo_event_and_filo_among_the_others(prune):
    mine = type("Mine", (type(prune()),), {})  # a class of the user's belongs to the same distribution
    for algorithm, name in ((prune(), "Prune"), (mine(), "Mine")):
        engine = Engine(State(algorithms=[A(), algorithm, B()]), Logger())
        assert names_at(engine, "after_dataloader") == [name, "B", "A"]
        assert names_at(engine, "before_dataloader") == ["A", name, "B"]
        assert names_at(engine, "after_loss") == ["B", name, "A"]


def test_installed_is_not_active(prune):
    engine = Engine(State(algorithms=[A()]), Logger())
    assert [p.__name__ for p in engine.algorithm_passes] == [
        "set_filo_order",
        "apply_declared_order",
        "warn_if_multiple_loss_interpolation",
    ]
    assert "prune_module" not in sys.modules


def test_an_algorithm_that_joins_later_brings_them_too_and_the_users_are_inserted_again(prune):
    def mine(algorithms, event):
        return algorithms

    engine = Engine(State(algorithms=[A(), B()]), Logger(), [(mine, 1), mine])
    assert names_at(engine, "after_dataloader") == ["B", "A"]
    engine.state.algorithms.append(prune())
    assert names_at(engine, "after_dataloader") == ["Prune", "B", "A"]
    prune_first = sys.modules["prune_module"].prune_first
    installed = [apply_declared_order, prune_first, warn_if_multiple_loss_interpolation]
    assert engine.algorithm_passes == [set_filo_order, mine, *installed, mine]


def test_a_plugins_pass_that_breaks_a_declared_order_is_an_error_that_names_all_unless_the_user_repairs_it(prune):
    algorithms = [prune(), made("Before", before=("prune",))]
    engine = Engine(State(algorithms=algorithms), Logger())
    assert names_at(engine, "init") == ["Before", "Prune"]
    with pytest.raises(OrderError) as refusal:
        engine.run_event("after_dataloader")
    assert str(refusal.value) == (
        "pass 'prune_first' of prune-plugin puts Prune before Before at AFTER_DATALOADER, but "
        "Before (before='prune') declares the opposite; disable that pass or fix its distribution"
    )
    engine.close()
    repaired = Engine(State(algorithms=algorithms), Logger(), lambda algorithms, event: algorithms[::-1])
    assert names_at(repaired, "after_dataloader") == ["Before", "Prune"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sorted(algorithms, key=str)", "returned None at INIT; a pass returns the list of algorithms"),
        ("return [Prune(), *algorithms[1:]]", "lost A and added Prune at INIT without declaring changes_members=True"),
    ],
)
def test_a_plugins_pass_that_returns_nonsense_is_named(with_pass, body, message):
    with pytest.raises(OrderError) as refusal:
        with_pass("", body, [A(), B()]).run_event("init")
    assert str(refusal.value).startswith(f"pass 'bad' of bad-plugin {message}")


def test_a_plugins_pass_may_change_members_if_it_says_so(with_pass):
    engine = with_pass("changes_members=True", "return [Prune(), *algorithms[1:]]", [A(), B()])
    assert names_at(engine, "init") == ["Prune-2", "B", "Prune"]


@pytest.mark.parametrize(
    ("mark", "body", "said"),
    [
        ("", "", r"pass 'bad' of bad-plugin .* can't be loaded from 'bad_module:bad'"),
        ("stage='direction', name='set_filo_order'", "return algorithms", "DISABLE_PLUGINS=bad-plugin:bad"),
    ],
    ids=["not there", "named like a built-in"],
)
def test_a_broken_pass_of_a_distribution_in_use_is_an_error(with_pass, mark, body, said):
    with pytest.raises(PluginError, match=said):
        with_pass(mark, body)


def test_a_latecomer_whose_pass_is_broken_is_refused_each_time_and_nothing_is_half_done(install):
    entry_points = {"algorithms": {"prune": "half_module:Prune"}, "passes": {"gone": "half_module:gone"}}
    install("half-plugin", entry_points, {"half_module": FAKE})
    engine = Engine(State(algorithms=[A()]), Logger())
    engine.state.algorithms.append(import_module("half_module").Prune())
    for _ in range(2):
        with pytest.raises(PluginError, match="pass 'gone' of half-plugin "):
            engine.run_event("init")
    engine.state.algorithms.pop()
    assert names_at(engine, "init") == ["A"]


def test_passes_of_two_distributions_are_sorted_by_name_never_by_install_order(install):
    algorithms = []
    for name in ("zebra", "aardvark"):
        text = FAKE.replace("prune_first", f"{name}_first").replace("Prune", name.capitalize())
        module = f"{name}_module"
        points = {"algorithms": {name: f"{module}:{name.capitalize()}"}, "passes": {name: f"{module}:{name}_first"}}
        install(f"{name}-plugin", points, {module: text})
        algorithms.append(getattr(import_module(module), name.capitalize())())
    engine = Engine(State(algorithms=[*algorithms, A()]), Logger())
    assert [p.__name__ for p in engine.algorithm_passes][2:4] == ["aardvark_first", "zebra_first"]
    assert names_at(engine, "after_dataloader") == ["Zebra", "Aardvark", "A"]


def test_a_plugins_pass_given_as_an_argument_is_the_users_own_and_what_its_algorithm_raises_names_it(prune):
    module = import_module("prune_module")
    engine = Engine(State(algorithms=[A(), B()]), Logger(), module.prune_first)
    assert engine.explain("after_dataloader")[0].why.endswith("FILO, the list is reversed on AFTER events")
    engine.state.algorithms = [prune()]
    with pytest.raises(RuntimeError, match="at the end") as failure:
        engine.run_event("fit_end")
    assert failure.value.__notes__ == ["raised by apply of algorithm Prune (prune-plugin 0.7) at FIT_END"]


def test_an_instance_of_a_disabled_plugin_is_refused_rather_than_run_without_its_passes(prune, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "prune-plugin")
    with pytest.raises(PluginError) as error:
        Engine(State(algorithms=[A(), prune()]), Logger())
    assert str(error.value) == (
        "algorithm Prune is 'prune' of prune-plugin 0.7, which is disabled: "
        "listed in ENGINE_CORE_DISABLE_PLUGINS; leave it out, or enable it"
    )
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "prune-plugin:prune_first")  # the pass alone
    engine = Engine(State(algorithms=[A(), prune(), B()]), Logger())
    assert names_at(engine, "after_dataloader") == ["B", "Prune", "A"]
