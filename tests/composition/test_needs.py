"""Which of the algorithms each loop of the core refuses, and for which need."""

import pytest

from engine_core import Algorithm, Engine, Logger, State
from engine_core.errors import UnsupportedError
from engine_core.needs import FSDP_OFFERS
from engine_core.registry import Registry

from .conftest import NAMES

REFUSED_IN_FSDP = {
    "channels_last": "whole_weights",
    "gradient_penalty": "create_graph",
    "layer_freezing": "freezing",
    "sam": "whole_weights",
    "stochastic_depth of batches": "partial_forward",
}


def made() -> dict[str, Algorithm]:
    algorithms = {name: Registry.scan().load("algorithms", name)() for name in NAMES}
    return {**algorithms, "stochastic_depth of batches": type(algorithms["stochastic_depth"])(drop_per="batch")}


def test_fsdp_refuses_exactly_these_of_the_17() -> None:
    assert len(NAMES) == 17
    missing = {}
    for name, algorithm in made().items():
        try:
            Engine(State(algorithms=[algorithm], offers=FSDP_OFFERS), Logger()).close()
        except UnsupportedError as error:
            missing[name] = str(error).partition(" can't work in fsdp: no ")[2].partition(":")[0]
    assert missing == REFUSED_IN_FSDP


@pytest.mark.parametrize("name", [*NAMES, "stochastic_depth of batches"])
def test_the_trainer_on_one_process_refuses_none(name: str) -> None:
    Engine(State(algorithms=[made()[name]]), Logger()).close()
