"""Four algorithms: one that declares all it can, one with a before and an after half, one small, one without a base."""

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import ArgumentError

from .journal import journal


class KeepFirst(Algorithm):
    """Keeps the first rows of each batch. Declares all that metadata has."""

    metadata = AlgorithmMetadata(
        name="api1_keep_first",
        description="keep the first rows of each batch",
        events=("init", "after_load", "after_dataloader"),
        tags=("api1_pruning",),
        before=("@api1_scaling", "not_installed"),
        after=("nor_is_this",),
        requires=("@api1_scaling",),
        conflicts=("@api1_never",),
        writes=("batch",),
        hook_api=1,
    )

    def __init__(self, keep=2):
        if keep < 1:
            raise ArgumentError(f"keep={keep!r} has to be 1 or more")
        self.keep = keep
        self.kept = 0

    def match(self, event, state):
        return True

    def validate(self, state):
        journal.append(f"KeepFirst validates {len(state.batch_get_item(0))} rows")

    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.kept = 0
            self.seed = state.derive_seed("api1")
            logger.log_hyperparameters({"api1/keep": self.keep})
            return None
        if event is Event.AFTER_LOAD:
            journal.append(f"KeepFirst goes on at {self.kept}")
            return None
        for key in (0, 1):
            state.batch_set_item(key, state.batch_get_item(key)[: self.keep])
        kept = len(state.batch_get_item(0))
        self.kept += kept
        journal.append(f"KeepFirst keeps {kept} at batch {state.timestamp.batch}")
        logger.log_metrics({"api1/kept": self.kept})
        return kept

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"]


class ScaleInputs(Algorithm):
    """Scales what the model gets, and puts the batch back."""

    metadata = AlgorithmMetadata(
        name="api1_scale_inputs",
        events=(Event.AFTER_DATALOADER, Event.BEFORE_FORWARD, Event.AFTER_FORWARD),
        tags=("@api1_scaling",),
        writes=("batch",),
    )

    def __init__(self, factor=2):
        self.factor = factor
        self.unscaled = None

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        journal.append(f"ScaleInputs at {event}")
        if event is Event.BEFORE_FORWARD:
            self.unscaled = state.batch
            inputs = state.batch_get_item(0)
            plain = isinstance(inputs, list)
            state.batch_set_item(0, [self.factor * x for x in inputs] if plain else self.factor * inputs)
        elif event is Event.AFTER_FORWARD:
            state.batch, self.unscaled = self.unscaled, None

    @property
    def find_unused_parameters(self):
        return True

    @staticmethod
    def required_on_load():
        return True


class DoubleLoss(Algorithm):
    """Doubles the loss in the first half of the training."""

    metadata = AlgorithmMetadata(events=("after_loss",), requires=("api1_scale_inputs",), writes=("loss",))

    def match(self, event, state):
        elapsed = state.get_elapsed_duration()
        return elapsed is not None and elapsed < 0.5

    def apply(self, event, state, logger):
        journal.append(f"DoubleLoss at {state.get_elapsed_duration().value}")
        state.loss = state.loss * 2


class Anywhere:
    """No base class and no metadata: asked at every event."""

    muted = False

    def match(self, event, state):
        return event in ("after_dataloader", "before_train_batch", "batch_end")

    def apply(self, event, state, logger):
        journal.append(f"Anywhere at {event.name}")
        return 7 if event == "batch_end" else None
