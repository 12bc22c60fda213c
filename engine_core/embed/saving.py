"""What a checkpoint of somebody else's loop holds of ours: clock, seed, and the states of algorithms and callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algorithm import unique_names
from ..engine import Engine
from ..errors import CheckpointError, add_note
from ..messages import enumerated
from ..state import State
from ..time import Timestamp

FORMAT = 1
"""Of the tree; a newer one is refused."""


def saved_state(engine: Engine) -> dict[str, Any]:
    """Return a tree of tensors and of values that JSON has."""
    state = engine.state
    return {
        "format": FORMAT,
        "clock": state.timestamp._asdict(),
        "seed": state.seed,
        "algorithms": _states(_algorithms(engine), "algorithm"),
        "callbacks": _states(_callbacks(state), "callback"),
        "required": [name for name, a in _algorithms(engine).items() if getattr(a, "required_on_load", bool)()],
    }


def check_saved(engine: Engine, saved: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless this engine can take back what `saved_state` returned, and set the seed.

    Raises:
        CheckpointError: for a newer format, and for algorithms whose states or changes to the model need them.
    """
    number = saved.get("format")
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise CheckpointError(
            f"the checkpoint's part of engine-core has format {number!r:.80}, and this version reads up to {FORMAT}: "
            "pip install -U engine-core"
        )
    present = _algorithms(engine)
    absent = [name for name in [*saved["algorithms"], *saved["required"]] if name not in present]
    if absent:
        names = enumerated([*dict.fromkeys(absent)])
        raise CheckpointError(
            f"the checkpoint was saved with {names}, and this run does not have it: add it to the algorithms, or load "
            "the weights alone"
        )
    engine.state.seed = saved["seed"]


def put_back(engine: Engine, saved: Mapping[str, Any]) -> None:
    """Restore the clock and the states."""
    state = engine.state
    state.timestamp = Timestamp(**saved["clock"])
    for kind, owners in (("algorithm", _algorithms(engine)), ("callback", _callbacks(state))):
        for name, own in saved[f"{kind}s"].items():
            if name not in owners:  # a callback that only watches may be left out
                continue
            try:
                owners[name].load_state_dict(own)
            except BaseException as error:
                add_note(error, f"raised by load_state_dict of {kind} {name}, for a checkpoint")
                raise


def _algorithms(engine: Engine) -> dict[str, Any]:
    return {member.name: member.algorithm for member in engine.lineup[0]}


def _callbacks(state: State) -> dict[str, Any]:
    return dict(zip(unique_names(state.callbacks), state.callbacks, strict=True))


def _states(owners: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, owner in owners.items():
        try:
            found[name] = getattr(owner, "state_dict", dict)()
        except BaseException as error:
            add_note(error, f"raised by state_dict of {kind} {name}, for a checkpoint")
            raise
    return {name: state for name, state in found.items() if state}
