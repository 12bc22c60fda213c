"""Small algorithms that tests of the core share, and the source of one for a distribution."""

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State


class Always(Algorithm):
    """Runs wherever it may, and does nothing."""

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


class Quiet(Always):
    """Runs nowhere."""

    def match(self, event, state):
        return False


class A(Always):
    pass


class B(Always):
    pass


class C(Always):
    pass


def made(class_name, base=Always, /, **metadata):
    """Return an instance of a class of its own that declares this."""
    return type(class_name, (base,), {"metadata": AlgorithmMetadata(**metadata)})()


def order_at(event, algorithms, algorithm_passes=None):
    """Return the names of the algorithms that run at an event, in their order."""
    with Engine(State(algorithms=algorithms), Logger(), algorithm_passes) as engine:
        return [trace.name for trace in engine.run_event(event).values()]


def source_of(name, **metadata):
    """Return the source of a module with an algorithm that declares this."""
    declared = ", ".join(f"{field}={value!r}" for field, value in metadata.items())
    return f"""
from engine_core import Algorithm, AlgorithmMetadata, Callback, algorithm_pass, passes

class {name}(Algorithm):
    metadata = AlgorithmMetadata({declared})

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None
"""
