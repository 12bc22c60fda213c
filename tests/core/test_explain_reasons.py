"""Each place in the order has a reason for programs, beside the sentence for people."""

import json

from engine_core import Algorithm, AlgorithmMetadata, algorithm_pass
from engine_core.explain import explain_algorithms


class Quiet(Algorithm):
    match = apply = lambda self, *arguments: None


class A(Quiet):
    metadata = AlgorithmMetadata(events=("init",))


class B(Quiet):
    metadata = AlgorithmMetadata(events=("init",))


class First(Quiet):
    metadata = AlgorithmMetadata(events=("init", "after_loss"), before=("b",))


class Echo(Quiet):
    metadata = AlgorithmMetadata(events=("after_loss",))


def reasons(event, algorithms, *arguments):
    told = json.loads(json.dumps(explain_algorithms(algorithms, *arguments).records()))
    return [(place["algorithm"], *place["reason"].values()) for place in told[event]]


def test_the_only_one():
    assert reasons("init", [A()]) == [("A", "only", None, None)]


def test_the_list():
    assert reasons("init", [A(), B()]) == [("A", "list", None, None), ("B", "list", None, None)]


def test_the_first_is_about_the_second_and_the_others_about_the_one_before():
    assert reasons("init", [First(), B(), A()]) == [
        ("First", "declared", "First", None),
        ("B", "declared", "First", None),
        ("A", "list", None, None),
    ]


def test_a_chain_is_attributed_to_the_first_that_declares():
    class Between(Quiet):
        metadata = AlgorithmMetadata(events=("init",), after=("a",), before=("b",))

    @algorithm_pass(changes_members=True)
    def drop(algorithms, event):
        return [algorithm for algorithm in algorithms if not isinstance(algorithm, Between)]

    assert reasons("init", [B(), Between(), A()], drop) == [
        ("A", "declared", "Between", None),
        ("B", "declared", "Between", None),
    ]


def test_filo():
    assert reasons("after_loss", [First(), Echo()])[0] == ("Echo", "filo", "set_filo_order", "engine-core")


def test_one_that_was_moved_by_others():
    class Last(Quiet):
        metadata = AlgorithmMetadata(events=("init",), after=("b",))

    assert reasons("init", [Last(), A(), B()])[2] == ("Last", "declared", "Last", None)
    assert reasons("init", [B(), A(), First()])[0] == ("A", "list", None, None)


def test_the_users_pass():
    def mine(algorithms, event):
        return algorithms[::-1]

    assert reasons("init", [A(), B()], mine)[1] == ("A", "user", "mine", None)


def test_a_pass_that_adds():
    extra = B()

    @algorithm_pass(changes_members=True)
    def add(algorithms, event):
        return [*algorithms, extra]

    assert reasons("init", [A()], add)[1] == ("B", "added", "add", None)


def test_a_pass_of_a_distribution(install):
    text = """
        from engine_core import Algorithm, AlgorithmMetadata, algorithm_pass

        class Turned(Algorithm):
            metadata = AlgorithmMetadata(events=("init",))
            match = apply = lambda self, *arguments: None

        @algorithm_pass(stage="placement")
        def turn_round(algorithms, event):
            return algorithms[::-1]
    """
    points = {"algorithms": {"turned": "turned:Turned"}, "passes": {"turn_round": "turned:turn_round"}}
    install("turn-plugin", points, {"turned": text})
    from turned import Turned  # noqa: PLC0415 - it is installed just now

    assert reasons("init", [A(), Turned()])[0] == ("Turned", "pass", "turn_round", "turn-plugin")
