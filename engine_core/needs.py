"""What loops offer and what algorithms need of them, by name. Data: the engine decides what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .errors import ArgumentError, did_you_mean
from .event import Event

__all__ = ["ANOTHERS_LOOP", "EVERYTHING", "FSDP_OFFERS", "NEEDS", "WRITABLE", "Offers"]

WRITABLE = ("batch", "outputs", "loss", "model", "optimizers", "schedulers", "metrics", "loss_fn")
"""The fields of State that algorithms write."""

NEEDS: Mapping[str, str] = {
    "create_graph": "A gradient can be computed with a graph, and differentiated again.",
    "whole_weights": "Each weight is one whole tensor in this process, in whatever memory format.",
    "freezing": "Parameters can stop training in the middle of a run.",
    "partial_forward": "A forward pass can leave out modules that have parameters.",
    "own_forward": "One process can run the model when the others don't.",
    "late_surgery": "Modules can be replaced, or join, after INIT: a resumed run has them before it loads weights.",
    "surgery": "Modules can be replaced at INIT, before the model is wrapped, and optimizers follow.",
    "first_batch": "The first batch of the training can be looked at, at INIT and at FIT_START.",
    "duration": "The length of training is known when it starts.",
    "whole_batch": "All rows of a step are in one batch, from AFTER_DATALOADER on.",
    "row_loss": "The loss function is known: the loss of each row can be computed, also outside of the step.",
    "global_batch": "Rows can be chosen among those of all processes, and moved between them.",
    "closure": "The gradients of a step can be computed again before the optimizers step.",
    "skip_step": "The optimizers' step can be left out after the gradients are computed.",
    "stop": "Training can be ended, or paused, after any batch.",
    "snapshot": "A copy of the whole run can be taken after any batch, from which it can be resumed.",
    "go_back": "Weights and states can be restored from a saved run, and training goes on from there.",
    "epoch_order": "The examples that an epoch loads, and their order, can be given when it starts.",
}
"""What an algorithm or a callback may need of a loop besides events and fields, with a sentence each."""

_EVENTS = tuple(event.value for event in Event)


@dataclass(frozen=True)
class Offers:
    """What a loop offers.

    Args:
        loop: its name in messages, with a version if that matters.
        events: those that it fires.
        writes: the fields of State that have an effect if an algorithm writes them.
        gives: names of `NEEDS`.
        why: for a name that is missing, the reason and the remedy, in words for a user.

    Example:
        >>> offers = replace(EVERYTHING, loop="my loop").without("before_loss", why="the loss is inside the model")
        >>> Event.BEFORE_LOSS in offers.events, offers.why["before_loss"]
        (False, 'the loss is inside the model')
    """

    loop: str
    events: frozenset[Event] = frozenset(Event)
    writes: frozenset[str] = frozenset(WRITABLE)
    gives: frozenset[str] = frozenset(NEEDS)
    why: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for given, known, kind in (
            (self.events, _EVENTS, "an event"),
            (self.writes, WRITABLE, "a field to write"),
            (self.gives, tuple(NEEDS), "a need"),
            (self.why, (*_EVENTS, *WRITABLE, *NEEDS), "an event, a field to write or a need"),
        ):
            for name in sorted(given):
                if name not in known:
                    raise ArgumentError(f"Offers: {name!r} is not {kind}{did_you_mean(name, known)}")

    def without(self, *names: str, why: str) -> Offers:
        """Return the same offers without some needs, events or fields of State.

        Args:
            why: the reason, and after a semicolon what the user can do.
        """
        return replace(
            self,
            events=frozenset(event for event in self.events if event not in names),
            writes=self.writes.difference(names),
            gives=self.gives.difference(names),
            why={**self.why, **dict.fromkeys(names, why)},
        )


EVERYTHING = Offers("the Trainer")
"""What the Trainer offers on one process."""

ANOTHERS_LOOP = (
    replace(EVERYTHING, loop="another library's loop")
    .without("first_batch", why="the loader is not the engine's; start from weights that the Trainer has made")
    .without("epoch_order", why="the loader is not the engine's; give that DataLoader a sampler")
    .without("late_surgery", why="it loads weights into the model as INIT leaves it; train with the engine's Trainer")
)
"""What a loop may offer at most whose loader is made by another library, or by the user."""

_INSTEAD = "; train with DDP instead, parallel='ddp', or leave it out"

FSDP_OFFERS = (
    replace(EVERYTHING, loop="fsdp")
    .without("create_graph", why=f"weights are gathered for one backward pass and freed after it{_INSTEAD}")
    .without("whole_weights", why=f"each process has a part of each weight, laid out contiguously{_INSTEAD}")
    .without("freezing", why=f"which parameters train is settled when they are sharded{_INSTEAD}")
    .without("partial_forward", why=f"a process waits for the gradients of a block that did not run{_INSTEAD}")
    .without("own_forward", why=f"each forward pass gathers weights from all, so all have to make the same{_INSTEAD}")
    .without("late_surgery", why=f"only modules that are there after INIT are sharded{_INSTEAD}")
)
"""What the Trainer offers where FSDP shards the model."""
