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
MATCH = "\n        def match(self, event, state):\n            return event == 'after_los'\n"
UNCHECKED_PASS = """
    from engine_core import PassMetadata, algorithm_pass

    @algorithm_pass()
    def Acme(algorithms, event):
        return algorithms

    Acme.metadata = PassMetadata.model_construct(stage='first')
"""
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


def method(name, mark=""):
    return METHOD.format(mark=mark, name=name)


def declaring(declared):
    return ALGORITHM.replace("AlgorithmMetadata(", f"AlgorithmMetadata{declared}")


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


MEANT = "no event has that name; did you mean 'after_loss'?"
MARKED = "Acme.on_train_epoch_start is marked with @hookimpl but is not an event; did you mean 'epoch_start'?"
HARMLESS = ("helper", "_after_los", "around_apply", "after_loss", "state_dict", "close")
FAULTS = [
    (CALLBACK + "".join(method(name) for name in HARMLESS), "callbacks", None),
    (CALLBACK + method("after_los"), "callbacks", f"Acme.after_los is never called: {MEANT}"),
    (ALGORITHM + MATCH, "algorithms", f"Acme.match mentions 'after_los', and {MEANT}"),
    (ALGORITHM + method("batch_end"), "algorithms", "Acme.batch_end is never called: "),
    (ALGORITHM + method("on_train_epoch_start", "@hookimpl"), "algorithms", MARKED),
    (CALLBACK + method("on_train_epoch_start", "@hookimpl"), "callbacks", MARKED),
    (
        declaring('(before=("nobody",), conflicts=("Not-Ours",), '),
        "algorithms",
        "conflicts='Not-Ours' in its metadata names no algorithm; did you mean 'not_ours'?",
    ),
    (
        declaring(".model_construct(tags=(3,), before=['a'], "),
        "algorithms",
        "AlgorithmMetadata: tags[0]: Input should be a valid string, not 3; before: Input should be a valid tuple",
    ),
    (UNCHECKED_PASS, "passes", "PassMetadata: stage: Input should be 'direction', 'placement' or 'check', not 'first'"),
    (ALGORITHM + PASS, "passes", "pass 'Acme' of acme-plugin puts Second before First at INIT, but First (acme-plugin"),
    ((ALGORITHM + PASS).replace("needed=None", "needed"), "passes", None),  # can't be made, so it has no order
    ((ALGORITHM + PASS).replace("before=", "conflicts=('Second',), before="), "passes", None),
    ((ALGORITHM + method("batch_end")).replace("Acme(Algorithm)", "Acme(Algorithm, Callback)"), "algorithms", None),
]


@pytest.mark.parametrize(("text", "kind", "problem"), FAULTS)
def test_what_the_plugin_can_not_have_meant_is_one_problem(problems, text, kind, problem):
    named = [name for name in ("First", "Second", "not_ours") if name == "not_ours" or f"class {name}(" in text]
    found = problems(text, kind, **dict.fromkeys(named, "algorithms"))
    assert [one[: len(problem or "")] for one in found] == [problem] * (problem is not None)


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
