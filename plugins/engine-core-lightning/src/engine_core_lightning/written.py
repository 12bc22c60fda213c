"""A step that a user wrote, which calls model and loss itself: the events within it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from engine_core.batch import get_item
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError, EngineError, did_you_mean
from engine_core.event import Event
from engine_core.loop import Loop, Patched, patched
from engine_core.messages import join_words
from engine_core.passes import Member


class WrittenStep:
    """Fires the events of forward and loss where a step calls the model and the loss function.

    `train` and `evaluate` run the step on the batch that algorithms leave. What algorithms themselves call within it is
    not the step's call.

    The targets are any item of the batch: where an algorithm replaces it for the loss, the loss gets what stands there
    then. An algorithm that takes the targets from its `target_key` has to find what the step gives the loss.

    Args:
        loop: its State gets the model and the loss function.
        owner: whose attributes the step calls.
        model: the name of the one that is the model, with dots for one further down; None: the owner is.
        loss_fn: the name of the one that it calls as `owner.<loss_fn>(outputs, targets)`; None: it is not known where
            the step calls the loss, and the events of forward and loss of training don't fire.

    Raises:
        ArgumentError: (a ValueError) if the owner has no such model or loss function, with the nearest name.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from engine_core import State
        >>> from engine_core.needs import EVERYTHING
        >>> own = SimpleNamespace(net=torch.nn.Linear(2, 1), loss=torch.nn.MSELoss())
        >>> step = WrittenStep(Loop(State(), EVERYTHING), own, model="net", loss_fn="loss")
        >>> with ExitStack() as stack:
        ...     step.watch(stack)
        ...     batch = torch.ones(3, 2), torch.ones(3, 1)
        ...     loss = step.train(lambda batch: own.loss(own.net(batch[0]), batch[1]), batch)
        >>> loss is step.loop.state.loss, own.net._forward_hooks
        (True, OrderedDict())
    """

    def __init__(self, loop: Loop, owner: Any, *, model: str | None, loss_fn: str | None) -> None:
        self.loop, self._owner, self._names = loop, owner, {"model": model, "loss_fn": loss_fn}
        self._phase: str | None = None
        self._calls = [0, 0]
        self._agrees = False  # no algorithm takes other targets than the step gives the loss
        loop.state.model = owner if model is None else self._named("model", nn.Module)
        loop.state.loss_fn = None if loss_fn is None else self._named("loss_fn", object)

    def _named(self, what: str, kind: type) -> Any:
        name = self._names[what]
        if not isinstance(name, str):
            raise ArgumentTypeError(f"{what} is the name of what the step calls, not {name!r:.80}")
        holder, own = _located(self._owner, name)
        found = getattr(holder, own, None)
        if not callable(found) or not isinstance(found, kind):
            attributes = {**vars(type(self._owner)), **vars(self._owner), **getattr(self._owner, "_modules", {})}
            fits = {n for n, value in attributes.items() if callable(value) and isinstance(value, kind)}
            known = {n for n in fits - {name} if not n.startswith("_") and not isinstance(attributes[n], Patched)}
            raise ArgumentError(
                f"{what}={name!r}: {type(self._owner).__name__} has no such {what}{did_you_mean(name, known)}"
            )
        return found

    def put_model(self) -> None:
        """Put the State's model where the step calls it, if an algorithm has replaced the whole of it."""
        if self._names["model"] is not None:
            setattr(*_located(self._owner, self._names["model"]), self.loop.state.model)

    def watch(self, stack: ExitStack) -> None:
        """Watch the calls until the stack is closed, which leaves owner and model as they were."""
        state, self._phase, self._agrees = self.loop.state, None, False
        if self._names["loss_fn"]:
            stack.enter_context(patched(*_located(self._owner, self._names["loss_fn"]), self._loss))
        model: Any = state.model
        # A function, not a method: a copy of the model would copy this object with it.
        stack.callback(
            model.register_forward_hook(lambda called, _, outputs: self._after_forward(called, outputs)).remove
        )

    def train(self, step: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step of training on a batch, from BEFORE_FORWARD to AFTER_LOSS, and return what it returns.

        Raises:
            EngineError: unless the step calls model and loss once each, and gives the loss outputs and targets by
                position; if an algorithm replaced the targets and the step gives others, or takes others itself.
        """
        if not self._names["loss_fn"]:
            return step(batch, *args, **kwargs)
        batch, self._phase, self._calls = self.loop.begin_forward(batch), "train", [0, 0]
        try:
            output = step(batch, *args, **kwargs)
        finally:
            self._phase = None
        if self._calls != [1, 1]:
            if gone := self._replaced_names():
                raise EngineError(
                    f"{join_words(gone)} got another value while training ran, so calls can't be seen: set it before, "
                    "then change its attributes alone, or let the step be a black box: loss_fn=None"
                )
            model, loss_fn = (f"self.{name}(...)" if name else "self(...)" for name in self._names.values())
            raise EngineError(
                f"the training step called {model} {self._calls[0]} times and {loss_fn} {self._calls[1]} times, and "
                "has to call each once; name others, or let the step be a black box: loss_fn=None"
            )
        return output

    def evaluate(self, step: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step of evaluation, with the events of its batch, and return what it returns.

        EVAL_AFTER_FORWARD comes at the first call of the model, without one after the step, with outputs None. A tensor
        or an item `loss` that the step returns is the loss.
        """
        batch, self._phase = self.loop.eval_batch(batch), "eval"
        try:
            output = step(batch, *args, **kwargs)
            if self._phase:
                self.loop.eval_outputs(None)
        finally:
            self._phase = None
        self.loop.eval_batch_end(output.get("loss") if isinstance(output, Mapping) else output)
        return output

    def _after_forward(self, called: Any, outputs: Any) -> Any:
        phase = self._phase
        if phase is None or called is not self.loop.state.model:  # an algorithm calls it, or it is a copy
            return None
        self._phase = None
        if phase == "eval":
            return self.loop.eval_outputs(outputs)
        outputs = self.loop.end_forward(outputs)
        self._phase, self._calls[0] = phase, self._calls[0] + 1
        return outputs

    def _replaced_names(self) -> list[str]:
        """Return the names at which no longer stands what `watch` has found there."""
        model, loss_fn = self._names["model"], self._names["loss_fn"]
        gone = [] if model is None or self._named("model", object) is self.loop.state.model else [f"self.{model}"]
        holder, own = _located(self._owner, str(loss_fn))
        return gone if isinstance(vars(holder).get(own), Patched) else [*gone, f"self.{loss_fn}"]

    def _loss(self, original: Any, /, *given: Any, **named: Any) -> Any:
        if self._phase != "train":
            return original(*given, **named)
        loop, state = self.loop, self.loop.state
        if len(given) < 2:
            raise EngineError(
                f"the training step has to call self.{self._names['loss_fn']} with outputs and targets as its first "
                f"two arguments, by position; it gave {len(given)} so, and {join_words([*named]) or 'none'} by name"
            )
        self._phase, state.outputs = None, given[0]
        if not self._agrees:
            self._check_keys(given[1])
            self._agrees = True
        rest = given[1:]
        if "before_loss" in loop.engine.unheard:
            loop.begin_loss()
        else:
            before = _items_of(state.batch)
            loop.begin_loss()
            if replaced := _replaced(before, _items_of(state.batch)):
                new = {id(item): now for _, item, now in replaced}
                if new.keys().isdisjoint(map(id, (*rest, *named.values()))):
                    raise self._unused(replaced[-1][0])
                rest = tuple(new.get(id(item), item) for item in rest)
                named = {name: new.get(id(item), item) for name, item in named.items()}
        loss = loop.end_loss(original(state.outputs, *rest, **named))
        self._phase, self._calls[1] = "train", self._calls[1] + 1
        return loss

    def _unused(self, path: Iterable[Any]) -> EngineError:
        place = _place(path)
        return EngineError(
            f"an algorithm replaced the targets, {place}, and the training step gives others to "
            f"self.{self._names['loss_fn']}: give it {place} as it is"
        )

    def _check_keys(self, targets: Any) -> None:
        """Raise unless each algorithm that works on the loss has its `target_key` where the step's targets are."""
        batch = self.loop.state.batch
        paths = [path for path, item in _items_of(batch).items() if item is targets]
        if paths and len(paths[0]) == 1:
            self.loop.state.objective.targets = paths[0][0]
        for member in self.loop.engine.members:
            key = getattr(member.algorithm, "target_key", None)
            if key is None or not _works_on_loss(member):
                continue
            try:
                found = get_item(batch, key)
            except BatchKeyError:
                found = None
            if found is targets or (not paths and _are_equal(found, targets)):  # as good as the same, if converted
                continue
            gives, remedy = "what is no item of the batch", "give it the item as it is"
            if paths:
                gives = _place(paths[0])
                remedy = f"set target_key={paths[0][0]!r}" if len(paths[0]) == 1 else "let target_key find that"
            raise EngineError(
                f"{member.title} takes the targets from target_key={key!r} of the batch, and the training step gives "
                f"self.{self._names['loss_fn']} {gives}: {remedy}"
            )


def _works_on_loss(member: Member) -> bool:
    return "row_loss" in member.metadata.needs or not member.events.isdisjoint({Event.BEFORE_LOSS, Event.AFTER_LOSS})


def _located(owner: Any, name: str) -> tuple[Any, str]:
    """Return what holds the attribute that a name with dots means, and the attribute's own name."""
    *path, own = name.split(".")
    return functools.reduce(lambda part, step: getattr(part, step, None), path, owner), own


def _items_of(batch: Any) -> dict[tuple[Any, ...], Any]:
    """Return the items of a batch by key, index or attribute, and those of the containers among them."""
    found: dict[tuple[Any, ...], Any] = {}
    for key, item in _entries(batch):
        found[key,] = item
        if not isinstance(item, torch.Tensor):
            for inner, value in _entries(item):
                found[key, inner] = value
    return found


def _entries(container: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(container, (tuple, list)):
        is_values = container and isinstance(container[0], (str, bytes, int, float))
        return () if is_values else enumerate(container)
    if isinstance(container, Mapping):
        return container.items()
    return getattr(container, "__dict__", {}).items()


def _replaced(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> list[tuple[Any, Any, Any]]:
    """Return each path at which stands something else now, with what stood there and what does."""
    return [(path, item, now[path]) for path, item in before.items() if path in now and now[path] is not item]


def _place(path: Iterable[Any]) -> str:
    return "batch" + "".join(f"[{key!r}]" for key in path)


def _are_equal(found: Any, targets: Any) -> bool:
    if not (isinstance(found, torch.Tensor) and isinstance(targets, torch.Tensor)):
        return False
    return found.dtype == targets.dtype and found.device == targets.device and torch.equal(found, targets)
