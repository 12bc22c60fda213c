"""Which arguments exclude each other, reported when the algorithm is created."""

import re
from typing import Any

import pytest

from sb_plugin import SelectiveBackprop

IDS = {"index_key": 2}


def scorer(batch: Any, state: Any) -> Any: ...


def selector(scores: Any, k: int, generator: Any) -> Any: ...


def named(value: Any) -> str:
    """Return a test's id, the same in each process that runs the tests: no addresses."""
    return re.sub(r" at 0x\w+", "", str(value))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scorer": "carried"}, "scorer='carried' keeps scores by example and needs index_key"),
        ({"scorer": "stale"}, "scorer='stale' keeps scores by example and needs index_key"),
        ({"selector": "uniform", "scorer": "carried", **IDS}, "'carried' is not used with selector='uniform'"),
        ({"selector": "uniform", "floor": 0.1}, "floor=0.1 mixes with the uniform law, which selector='uniform' is"),
        ({"selector": selector, "floor": 0.1}, "floor=0.1 is not used with your own selector"),
        (IDS, "index_key=2 needs scorer='stale' or scorer='carried'; leave it out"),
        ({"refresh": 4}, "refresh=4 needs scorer='stale'"),
        ({"scorer": "carried", "refresh": 4, **IDS}, "refresh=4 needs scorer='stale'"),
        ({"momentum": 0.1}, "momentum=0.1 needs scorer='carried'"),
        ({"scorer": "carried", "bn": "eval", **IDS}, "bn='eval' needs a scoring forward, and there is none with"),
        ({"selector": "uniform", "bn": "train"}, "bn='train' needs a scoring forward, and there is none with"),
        ({"scorer": "carried", "precision": "bf16", **IDS}, "precision='bf16' needs a scoring forward"),
        ({"selector": "uniform", "scale_factor": 0.3}, "scale_factor=0.3 needs scorer='forward' or scorer='stale'"),
        ({"scorer": "carried", "scale_factor": 0.3, **IDS}, "scale_factor=0.3 needs scorer='forward'"),
        ({"scorer": scorer, "scale_factor": 0.3}, "scale_factor=0.3 needs scorer='forward'"),
        ({"reuse": "on"}, "needs scale_factor=1, not 0.5"),
        ({"reuse": "auto"}, "reuse='auto' reuses what the scoring forward computed"),
        ({"reuse": "on", "scale_factor": 1, "bn": "eval"}, "needs bn='frozen', not 'eval'"),
        ({"reuse": "on", "scale_factor": 1, "precision": "bf16"}, "needs precision='engine', not 'bf16'"),
        ({"reuse": "on", "scale_factor": 1, "scorer": "stale", **IDS}, "needs scorer='forward', not 'stale'"),
        ({"reuse": "on", "scale_factor": 1, "selector": "uniform"}, "needs a scoring forward"),
        ({"scorer": "carried", "index_key": 1}, "index_key=1 is where inputs or targets are"),
        ({"selector": "cfd"}, "selector='cfd' has to be one of 'composer', 'cdf', 'topk', 'uniform', or"),
        (
            {"scorer": "carry"},
            "scorer='carry' has to be one of 'forward', 'stale', 'carried', or, in Python, a function",
        ),
        ({"bn": "freeze"}, "bn='freeze' has to be one of 'frozen', 'eval', 'train'"),
        ({"precision": "fp16"}, "precision='fp16' has to be one of 'engine', 'fp32', 'bf16'"),
        ({"reuse": "yes"}, "reuse='yes' has to be one of 'off', 'auto', 'on'"),
        ({"floor": 1}, "floor=1 has to be within [0, 1)"),
        ({"multiple_of": 0}, "multiple_of=0 has to be within [1, inf)"),
        ({"refresh": 0, "scorer": "stale", **IDS}, "refresh=0 has to be within [1, inf)"),
        ({"momentum": 1, "scorer": "carried", **IDS}, "momentum=1 has to be within [0, 1)"),
        ({"generator_seed": -1}, "generator_seed=-1 has to be within [0, inf)"),
    ],
    ids=named,
)
def test_it_is_refused_with_what_and_why(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        SelectiveBackprop(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"selector": 3}, "selector=3 (int) has to be one of"),
        ({"scorer": None}, "scorer=None (NoneType) has to be one of"),
        ({"reuse": True}, "reuse=True (bool) has to be one of"),
        ({"index_key": 1.5}, "index_key=1.5 has to be an index"),
        ({"generator_seed": "x"}, "generator_seed='x' (str) has to be a whole number"),
        ({"multiple_of": 2.5}, "multiple_of=2.5 (float) has to be a whole number"),
    ],
    ids=named,
)
def test_another_type_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        SelectiveBackprop(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scorer": scorer, "selector": selector, "floor": 0.0},
        {"scorer": scorer, "bn": "eval", "precision": "bf16"},
        {"scorer": "stale", "refresh": 1, "floor": 0.2, "selector": "topk", "bn": "eval", **IDS},
        {"scorer": "carried", "momentum": 0, "selector": "cdf", "index_key": "id"},
        {"selector": "uniform", "multiple_of": 8, "generator_seed": 0},
        {"reuse": "on", "scale_factor": 1},
        {"scorer": "stale", "scale_factor": 0.3, **IDS},
        {"scorer": "carried", "scale_factor": 1, **IDS},
    ],
    ids=named,
)
def test_it_is_taken(arguments: dict[str, Any]) -> None:
    algorithm = SelectiveBackprop(**arguments)
    assert {name: getattr(algorithm, name) for name in arguments} == arguments
