"""What the doctor finds in a plugin that can be imported: hooks that are never called, declarations that can't hold."""

import pytest

from engine_core.registry import Registry
from engine_core_author.doctor import examine

ALGORITHM = """
    from engine_core import Algorithm, AlgorithmMetadata, Callback, PassMetadata, algorithm_pass
    from engine_core.hookspecs import hookimpl

    class Acme(Algorithm):
        metadata = AlgorithmMetadata(events=("init",))

        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            return None
"""
CALLBACK = """
    from engine_core import Callback
    from engine_core.hookspecs import hookimpl

    class Acme(Callback):
        def batch_end(self, state, logger):
            pass
"""
METHOD = """
        {mark}
        def {name}(self, state, logger):
            pass
"""


@pytest.fixture
def problems(install):
    """Return `problems(text, kind)`: what is wrong with the plugin `acme` in a module of this text."""

    def problems(text, kind="algorithms", **others):
        entries = {kind: {"acme": "acme_module:Acme"}}
        for name, other in others.items():
            entries.setdefault(other, {})[name] = f"acme_module:{name}"
        install("acme-plugin", entries, {"acme_module": text})
        (found,) = examine([r for r in Registry.scan().records if r.name == "acme"])
        assert found.record.status == "available"
        return list(found.problems)

    return problems


def test_a_hook_of_a_callback_with_a_misspelt_name(problems):
    assert problems(CALLBACK + METHOD.format(mark="", name="after_los"), "callbacks") == [
        "Acme.after_los is never called: no event has that name; did you mean 'after_loss'?"
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", ["helper", "_after_los", "around_apply", "after_loss", "state_dict", "close"])
def test_a_method_that_is_not_a_misspelt_hook(problems, name):
    assert problems(CALLBACK + METHOD.format(mark="", name=name), "callbacks") == []


def test_a_string_that_is_nearly_an_event(problems):
    text = "\n        def match(self, event, state):\n            return event == 'after_los'\n"
    assert problems(ALGORITHM + text) == [
        "Acme.match mentions 'after_los', and no event has that name; did you mean 'after_loss'?"
    ]


def test_a_name_of_an_installed_algorithm_that_is_written_otherwise(problems):
    named = ALGORITHM.replace('events=("init",)', 'events=("init",), before=("nobody",), conflicts=("Not-Ours",)')
    assert problems(named, not_ours="algorithms") == [
        "conflicts='Not-Ours' in its metadata names no algorithm; did you mean 'not_ours'?"
    ]


def test_a_hook_of_an_algorithm_is_never_called(problems):
    (problem,) = problems(ALGORITHM + METHOD.format(mark="", name="batch_end"))
    assert problem.startswith("Acme.batch_end is never called: ") and problem.endswith(" or register a callback")


def test_an_algorithm_that_is_a_callback_too_may_have_hooks(problems):
    both = ALGORITHM.replace("Acme(Algorithm)", "Acme(Algorithm, Callback)")
    assert problems(both + METHOD.format(mark="", name="batch_end")) == []


@pytest.mark.parametrize(("text", "kind"), [(ALGORITHM, "algorithms"), (CALLBACK, "callbacks")])
def test_a_marked_hook_that_is_not_an_event(problems, text, kind):
    found = problems(text + METHOD.format(mark="@hookimpl", name="on_train_epoch_start"), kind)
    said = "Acme.on_train_epoch_start is marked with @hookimpl but is not an event; did you mean 'epoch_start'?"
    assert found == [said]


def test_metadata_that_was_made_without_a_check_is_checked(problems):
    unchecked = ALGORITHM.replace("AlgorithmMetadata(", "AlgorithmMetadata.model_construct(tags=(3,), before=['a'], ")
    assert problems(unchecked) == [
        (
            "AlgorithmMetadata: tags[0]: Input should be a valid string, not 3; "
            "before: Input should be a valid tuple, not ['a']"
        )
    ]


def test_metadata_of_a_pass_that_was_made_without_a_check_is_checked(problems):
    text = "    @algorithm_pass()\n    def Acme(algorithms, event):\n        return algorithms\n"
    wrong = "    Acme.metadata = PassMetadata.model_construct(stage='first')\n"
    imports = "    from engine_core import PassMetadata, algorithm_pass\n"
    assert problems(imports + text + wrong, "passes") == [
        "PassMetadata: stage: Input should be 'direction', 'placement' or 'check', not 'first'"
    ]


PASS = """
    from engine_core import passes

    class First(Acme):
        metadata = AlgorithmMetadata(events=("init",), before=("Second",))

        def __init__(self, needed=None):
            assert not needed

    class Second(Acme):
        metadata = AlgorithmMetadata(events=("init",))

    Algorithm = Acme

    @algorithm_pass(stage="placement")
    def Acme(algorithms, event):
        return passes.sort_to_front(algorithms, Second)
"""


def test_a_pass_that_sorts_against_what_its_own_distribution_declares(problems):
    (problem,) = problems(ALGORITHM + PASS, "passes", First="algorithms", Second="algorithms")
    assert problem.startswith("pass 'Acme' of acme-plugin puts Second before First at INIT, but First (acme-plugin 1.0")


BORROWED = """
    from engine_core import algorithm_pass
    from extra_module import First, Second

    @algorithm_pass()
    def Acme(algorithms, event):
        return algorithms
"""


@pytest.mark.full
def test_a_pass_is_not_taken_for_one_of_the_same_name_in_a_distribution_with_a_similar_name(install):
    install(
        "acme-plugin",
        {"algorithms": {"a": "acme_module:First", "b": "acme_module:Second"}, "passes": {"acme": "acme_module:Acme"}},
        {"acme_module": BORROWED},
    )
    install(
        "acme-plugin-extra",
        {"algorithms": {n: f"extra_module:{n}" for n in ("First", "Second")}, "passes": {"acme": "extra_module:Acme"}},
        {"extra_module": ALGORITHM + PASS},
    )
    found = examine([r for r in Registry.scan().records if r.name == "acme"])
    blamed = [d.record.distribution for d in found if any(" puts Second before First" in p for p in d.problems)]
    assert blamed == ["acme-plugin-extra"]


@pytest.mark.parametrize("change", [("needed=None", "needed"), ("before=", "conflicts=('Second',), before=")])
def test_algorithms_that_need_arguments_or_exclude_each_other_have_no_order(problems, change):
    text = (ALGORITHM + PASS).replace(*change)
    assert problems(text, "passes", First="algorithms", Second="algorithms") == []


def test_a_plugin_that_cannot_be_inspected(problems, tmp_path):
    text = """
    class Meta(type):
        def __dir__(cls):
            raise RuntimeError("look away")

    class Acme(metaclass=Meta):
        def init(self, state, logger):
            pass
    """
    assert problems(text, "callbacks") == [
        (
            "it was imported, but examining it failed: RuntimeError: look away "
            f"(at {tmp_path / 'site-packages' / 'acme_module.py'}:4)"
        )
    ]
