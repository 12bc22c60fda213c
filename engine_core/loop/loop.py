"""`Loop`: all moments of a loop, and what a checkpoint holds of ours in any loop."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from ..algorithm import unique_names
from ..checkpoint import Tensors, flatten, load, restore, save
from ..engine import Engine, listeners_of
from ..errors import CheckpointError, add_note
from ..event import Event
from ..files import read_json, write_whole
from ..messages import escaped, join_words, readable
from ..needs import Offers
from ..time import Timestamp
from .evaluation import EvaluationMoments
from .status import Phase

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
    """Raise a CheckpointError unless this engine can take back what `saved_state` returned, and set the seed."""
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
            f"the checkpoint's part of engine-core is damaged: it lacks {join_words(sorted(missing))}"
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
    """Restore the clock and the states; raise a CheckpointError for a clock that no run has."""
    clock = Timestamp(**saved["clock"])
    for name, value in clock._asdict().items():
        kinds: Any = (int, float) if name.startswith("elapsed") else int
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 2**63:
            raise CheckpointError(f"the clock in the checkpoint has {name}={value!r:.80}")
    engine.state.timestamp = clock
    put_states_back(engine, saved["algorithms"])
    _load_states("callback", _listeners_of(engine), saved["callbacks"])


def prepare_to_load(engine: Engine, names: Collection[str]) -> None:
    """Let algorithms give the model the modules that weights of these names belong to, before they are loaded."""
    for algorithm in algorithms_of(engine).values():
        if (prepare := getattr(algorithm, "prepare_to_load", None)) is not None:
            prepare(engine.state, names)


def put_states_back(engine: Engine, states: Mapping[str, Any]) -> None:
    """Restore the states of algorithms, by name; those that had finished are asked again."""
    for member in engine.members:
        member.finished.clear()
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
    """Write what `Loop.state_dict` returned to two files, JSON and tensors; the JSON comes last."""
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
    """Return what a file of JSON in a checkpoint holds of ours; raise a CheckpointError if it is damaged."""
    found = read_json(path, raises=CheckpointError)
    if not isinstance(found, dict):
        raise CheckpointError(f"{str(path)!r} is damaged: it holds {found!r:.80}, and not an object")
    return found


def algorithms_of(engine: Engine) -> dict[str, Any]:
    """Return the algorithms by their unique names."""
    return {member.name: member.algorithm for member in engine.members}


def _listeners_of(engine: Engine) -> dict[str, Any]:
    """Return callbacks and logger destinations by their unique names."""
    listeners = listeners_of(engine.state.callbacks, engine.logger.destinations)
    return dict(zip(unique_names(listeners), listeners, strict=True))


def _states_of(engine: Engine, kind: str, owners: Mapping[str, Any]) -> dict[str, Any]:
    """Return states by name, but empty ones, and those of destinations that raise; other errors get a note."""
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


class Loop(EvaluationMoments):
    """An engine in a training loop, which calls a method at each of its moments.

    Methods return what the loop has to use in place of what it gave; a loop that can't says so in its offers. Losses
    are weighted by the loop, in microbatches and over processes: whatever is given here counts as it is.

    Args:
        state: what algorithms and callbacks work on.
        offers: what the loop offers; plugins that need more are refused, with the reason.
        logger: what they log to.
        algorithm_passes: the user's own passes.

    Attributes:
        engine: its algorithms, callbacks and passes.
        status: what the run is doing.
        samples, tokens: how many were loaded since the latest step.
        needs_rows: does the loop cut batches? Then those whose rows can't be counted are refused, with what to write.
        lengths: of training, in the loop's own arguments, by name: those in `sp` or `tok` need that to be counted.
        counted_s: the time up to which the training clock has counted; it stands still while an evaluation runs.

    Raises:
        UnsupportedError: (an EngineError) if an algorithm or a callback needs what the loop does not offer.

    Example:
        >>> import torch
        >>> from engine_core import State
        >>> from engine_core.needs import EVERYTHING
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loop = Loop(State(model=model, optimizers=[optimizer]), EVERYTHING)
        >>> loop.init()
        >>> loop.fit_start()
        >>> loop.epoch_start()
        >>> for batch in [torch.ones(4, 2)] * 3:
        ...     batch = loop.take(batch)
        ...     loop.begin_step(optimizer.zero_grad)
        ...     outputs = loop.end_forward(model(loop.begin_forward(batch)))
        ...     loop.begin_loss()
        ...     loss = loop.begin_backward(loop.end_loss(outputs.square().mean()))
        ...     loss.backward()
        ...     loop.end_backward()
        ...     if loop.end_gradients():
        ...         optimizer.step()
        ...     if loop.end_step():
        ...         break
        ...     loop.batch_checkpoint()
        ... else:  # the epoch is complete
        ...     loop.epoch_end()
        ...     loop.epoch_checkpoint()
        >>> loop.fit_end()
        >>> loop.state.timestamp[:3]
        (1, 3, 12)
        >>> loop.close()
    """

    _loaded: Mapping[str, Any] | None = None  # until a fit starts
    _ended: Timestamp | None = None  # the clock after the latest EPOCH_END, until another epoch starts

    def offer(self, offers: Offers) -> None:
        """Say anew what the loop offers, as soon as it is known.

        Raises:
            UnsupportedError: (an EngineError) if an algorithm or a callback needs more.
        """
        self.state.loop.offers = offers
        self.engine.refresh()

    def init(self) -> None:
        """INIT: the model is there as the user made it, and no optimizer was made for it by the loop."""
        self.fire(Event.INIT)

    # ---- a fit

    def begin_fit(self, closure: Callable[[], Any] | None = None) -> None:
        """Training is about to begin, or to continue, and can be asked to stop; `fit_start` calls it if nothing has.

        Args:
            closure: resets the gradients and computes those of the step again; see `LoopControl.closure`.
        """
        self.status.begin_fit()
        self._look_at_lengths()
        self.counted_s = time.perf_counter()
        self._closure = closure
        self.state.loop.closure = None if closure is None else self._compute_again

    def fit_start(self, closure: Callable[[], Any] | None = None) -> None:
        """FIT_START: weights are loaded and optimizers made. For `closure` see `begin_fit`."""
        if self.status.phase is not Phase.TRAINING:
            self.begin_fit(closure)
        if self._loaded is not None:
            self._put_back(self._loaded)
        self.engine.warn_of_in_place_changes()
        self.fire("fit_start")

    def fit_end(self) -> None:
        """FIT_END: all batches of this fit are done."""
        self.status.has_ended = self.state.is_complete
        self.fire("fit_end")
        self.end_fit()

    def end_fit(self) -> None:
        """No fit is running, whatever ended it."""
        self.status.end_fit()
        self.state.loop.closure = self._closure = None
        self.samples = self.tokens = 0
        self._rates, self.state.between_batches = (), False

    @contextmanager
    def fitting(self, closure: Callable[[], Any] | None = None) -> Iterator[None]:
        """Be in a fit within the block, from `fit_start` to `fit_end`, or to `undo` after an exception."""
        try:
            self.fit_start(closure)
            yield
            self.fit_end()
        except BaseException as error:
            self.undo(error)
            raise

    def epoch_start(self) -> None:
        """EPOCH_START, before the first batch of an epoch is asked for."""
        self.fire("epoch_start")
        self.status.reopens_epoch, self._ended = False, None

    def epoch_end(self, then: Callable[[Timestamp, Timestamp], object] | None = None) -> None:
        """Count the epoch, then EPOCH_END; called again before another epoch starts, it does nothing.

        Args:
            then: called in between with the clock before and after, to step schedulers.
        """
        before = self.state.timestamp
        if before == self._ended:
            return
        self.state.timestamp = self._ended = after = before.to_next_epoch()
        if then is not None:
            then(before, after)
        self.fire("epoch_end")

    def epoch_checkpoint(self) -> None:
        """EPOCH_CHECKPOINT, after the evaluation that an epoch's end may bring."""
        self.fire("epoch_checkpoint")

    # ---- exceptions and the end

    def undo(self, error: BaseException) -> None:
        """`error` ends the fit: let algorithms put back what they changed for a while."""
        if Event.EPOCH_START in self.engine.undo(error):
            self.status.reopens_epoch = True
        self._end_evaluation()
        self.end_fit()
        self._loaded = None  # the next fit begins anew, unless something is loaded again

    def state_dict(self) -> dict[str, Any]:
        """Return what the loop's checkpoint has to hold of ours, as a tree of tensors and of values that JSON has."""
        return saved_state(self.engine) if self._loaded is None else dict(self._loaded)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, then AFTER_LOAD; before a fit runs, both wait for `fit_start`.

        Raises:
            CheckpointError: if algorithms that the saved run had are missing, or the format is newer.
        """
        check_saved(self.engine, saved)
        if self.status.phase is Phase.IDLE:
            self._loaded = saved
        else:
            self._put_back(saved)

    def _put_back(self, saved: Mapping[str, Any]) -> None:
        put_back(self.engine, saved)
        now, self._loaded = self.state.timestamp, None
        self._ended = None if now.batch_in_epoch else now
        self.fire("after_load")

    def close(self) -> None:
        """Close callbacks and loggers; safe to call twice."""
        self.engine.close()
