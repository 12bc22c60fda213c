"""What a checkpoint of somebody else's loop holds of ours: clock, seed, and the states of algorithms and callbacks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..algorithm import unique_names
from ..checkpoint import Tensors, flatten, load, restore, save
from ..engine import Engine
from ..errors import CheckpointError, add_note
from ..files import read_json, write_whole
from ..messages import enumerated
from ..state import State
from ..time import Timestamp

FORMAT = 1
"""Of the tree; a newer one is refused."""
JSON, TENSORS = "engine_core.json", "engine_core.safetensors"


def saved_state(engine: Engine) -> dict[str, Any]:
    """Return a tree of tensors and of values that JSON has."""
    state = engine.state
    return {
        "format": FORMAT,
        "clock": state.timestamp._asdict(),
        "seed": state.seed,
        "algorithms": states_of(algorithms_of(engine), "algorithm"),
        "callbacks": states_of(_callbacks(state), "callback"),
        "required": [name for name, a in algorithms_of(engine).items() if getattr(a, "required_on_load", bool)()],
    }


def check_saved(engine: Engine, saved: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless this engine can take back what `saved_state` returned, and set the seed.

    Raises:
        CheckpointError: for a newer format, and for algorithms whose states or changes to the model need them.
    """
    if "format" not in saved:
        raise CheckpointError(
            "the checkpoint has no part of engine-core: resume from another one, or load its weights and train anew"
        )
    number = saved["format"]
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise CheckpointError(
            f"the checkpoint's part of engine-core has format {number!r:.80}, and this version reads up to {FORMAT}: "
            "pip install -U engine-core"
        )
    if missing := {"clock", "seed", "algorithms", "callbacks", "required"} - {*saved}:
        raise CheckpointError(
            f"the checkpoint's part of engine-core is damaged: it lacks {enumerated(sorted(missing))}"
        )
    present = algorithms_of(engine)
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
    for kind, owners in (("algorithm", algorithms_of(engine)), ("callback", _callbacks(state))):
        for name, own in saved[f"{kind}s"].items():
            if name not in owners:  # a callback that only watches may be left out
                continue
            try:
                owners[name].load_state_dict(own)
            except BaseException as error:
                add_note(error, f"raised by load_state_dict of {kind} {name}, for a checkpoint")
                raise


def write_state(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write what `EmbeddedLoop.state_dict` returned to two files, JSON and tensors; the JSON comes last."""
    tensors: Tensors = {}
    text = json.dumps(flatten(dict(tree), "engine_core", tensors))
    save(folder / TENSORS, {name: tensor.cpu() for name, tensor in tensors.items()})
    write_whole(folder / JSON, text)


def read_state(folder: Path) -> Any:
    """Return what `write_state` was given. Runs no stored code.

    Raises:
        CheckpointError: if the files are not there, or are damaged.
    """
    if not (folder / JSON).exists():
        raise CheckpointError(
            f"{str(folder)!r} was saved without engine-core, or holds weights alone: resume from another checkpoint, "
            "or load its weights into the model and train anew"
        )
    return restore(read_part(folder / JSON), load(folder / TENSORS))


def write_part(path: Path, saved: Mapping[str, Any]) -> None:
    """Write to a file of JSON what `check_saved` looks at: all of a saved state but the states themselves."""
    part = {**saved, "algorithms": [*saved["algorithms"]], "callbacks": []}
    write_whole(path, json.dumps(part), by=f".{os.getpid()}")  # several processes may write the same file


def read_part(path: Path) -> Any:
    """Return what a file of JSON in a checkpoint holds of ours.

    Raises:
        CheckpointError: if it is damaged, with its name.
    """
    found = read_json(path, raises=CheckpointError)
    if not isinstance(found, dict):
        raise CheckpointError(f"{str(path)!r} is damaged: it holds {found!r:.80}, and not an object")
    return found


def algorithms_of(engine: Engine) -> dict[str, Any]:
    """Return the algorithms by their unique names."""
    return {member.name: member.algorithm for member in engine.lineup[0]}


def _callbacks(state: State) -> dict[str, Any]:
    return dict(zip(unique_names(state.callbacks), state.callbacks, strict=True))


def states_of(owners: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return their states by name, without the empty ones; what they raise has a note that names them."""
    found = {name: state_of(owner, name, kind) for name, owner in owners.items()}
    return {name: state for name, state in found.items() if state}


def state_of(owner: Any, name: str, kind: str) -> dict[str, Any]:
    """Return the state of an algorithm or a callback, which may have none; what it raises has a note that names it."""
    try:
        own: dict[str, Any] = getattr(owner, "state_dict", dict)()
    except BaseException as error:
        add_note(error, f"raised by state_dict of {kind} {name}, for a checkpoint")
        raise
    return own
