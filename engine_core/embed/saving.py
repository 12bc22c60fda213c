"""What a checkpoint holds of ours in any loop: clock, seed, and the states of algorithms, callbacks, destinations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from ..algorithm import unique_names
from ..checkpoint import Tensors, flatten, load, restore, save
from ..engine import Engine, listeners_of
from ..errors import CheckpointError, add_note
from ..files import read_json, write_whole
from ..messages import enumerated, escaped, readable
from ..time import Timestamp

FORMAT = 1
"""Of the tree; a newer one is refused."""
JSON, TENSORS = "engine_core.json", "engine_core.safetensors"


def saved_state(engine: Engine) -> dict[str, Any]:
    """Return a tree of tensors and of values that JSON has."""
    state, algorithms = engine.state, algorithms_of(engine)
    return {
        "format": FORMAT,
        "clock": state.timestamp._asdict(),
        "seed": state.seed,
        "algorithms": _states_of(engine, "algorithm", algorithms),
        "callbacks": _states_of(engine, "callback", _listeners_of(engine)),
        "required": [name for name, a in algorithms.items() if getattr(a, "required_on_load", bool)()],
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
    needed = dict.fromkeys([*saved["algorithms"], *saved["required"]])
    if absent := [name for name in needed if name not in present]:
        raise CheckpointError("; ".join(map(what_is_missing, absent)))
    engine.state.seed = saved["seed"]


def what_is_missing(name: Any, registered: Any = None, distribution: Any = None, version: Any = None) -> str:
    """Return a message with an algorithm that a run lacks and the saved one had, and what to do.

    All of these may be a stranger's text: only a name and a version get into a command, and all is printable.
    """
    pinned = _pinned(distribution, version)
    of = f" ({pinned.replace('==', ' ')})" if pinned else ""
    of = of or (f" (of {distribution!r:.80} {version!r:.80})" if distribution else "")
    install = f"pip install {pinned}, and " if pinned else ""
    what = "it" if registered is None else repr(readable(str(registered)))
    return escaped(
        f"the checkpoint was saved with {readable(str(name))}{of}, and this run does not have it: "
        f"{install}add {what} to the algorithms, or load the weights alone"
    )


def _pinned(distribution: Any, version: Any) -> str | None:
    """Return the requirement for pip, if this is just a name and a version and nothing else that pip would act on."""
    try:
        requirement = Requirement(f"{distribution}=={Version(version)}")
    except (InvalidRequirement, InvalidVersion, TypeError):
        return None
    return str(requirement) if requirement.name == distribution else None


def put_back(engine: Engine, saved: Mapping[str, Any]) -> None:
    """Restore the clock and the states.

    Raises:
        CheckpointError: for a clock that no run has, and for a state that its owner does not load, with its name.
    """
    clock = Timestamp(**saved["clock"])
    for name, value in clock._asdict().items():
        kinds: Any = (int, float) if name.startswith("elapsed") else int
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 2**63:
            raise CheckpointError(f"the clock in the checkpoint has {name}={value!r:.80}")
    engine.state.timestamp = clock
    put_states_back(engine, saved["algorithms"])
    _load_states("callback", _listeners_of(engine), saved["callbacks"])


def put_states_back(engine: Engine, states: Mapping[str, Any]) -> None:
    """Restore the states of algorithms, by name."""
    _load_states("algorithm", algorithms_of(engine), states)


def _load_states(kind: str, owners: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    for name, state in states.items():
        if name in owners:  # a callback that only watches may be left out
            load_part(f"{kind} {name}", owners[name].load_state_dict, state)


def load_part(label: str, load_state_dict: Callable[[Any], Any], state: Any) -> None:
    """Load the state of a part of the run, and name the part if it refuses."""
    try:
        load_state_dict(state)
    except Exception as error:
        raise CheckpointError(f"{label} can't load its state from the checkpoint: {error}") from error


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


def _listeners_of(engine: Engine) -> dict[str, Any]:
    """Return callbacks and logger destinations by their unique names."""
    listeners = listeners_of(engine.state.callbacks, engine.logger.destinations)
    return dict(zip(unique_names(listeners), listeners, strict=True))


def _states_of(engine: Engine, kind: str, owners: Mapping[str, Any]) -> dict[str, Any]:
    """Return their states by name, without empty ones, and without those of logger destinations that raise.

    What others raise has a note that names them.
    """
    states, isolation = dict[str, Any](), engine.logger.isolation
    for name, owner in owners.items():
        isolated = any(owner is d for d in engine.logger.destinations) and not any(
            owner is callback for callback in engine.state.callbacks
        )
        try:
            own: dict[str, Any] = getattr(owner, "state_dict", dict)()
        except BaseException as error:
            if not isolated or not isinstance(error, Exception):
                add_note(error, f"raised by state_dict of {kind} {name}, for a checkpoint")
                raise
            isolation.report(owner, "state_dict", error)
            continue
        if isolated:
            isolation.recover(owner, "state_dict")
        if own:
            states[name] = own
    return states
