"""What the faulty algorithms are made of: algorithms without a fault, and a table of which check catches which."""

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import ArgumentError

CLASSES = {}
ALSO = {}


def caught_by(check, *, also=()):
    """Enter a class under the check that is made for its fault, and under those that find it too."""

    def enter(cls):
        CLASSES[cls] = check
        ALSO[cls] = also
        return cls

    return enter


class AtItsEvents(Algorithm):
    """Runs at the events that it lists."""

    def match(self, event, state):
        return event in self.metadata.events


class AtLoss(AtItsEvents):
    """Scales the loss, and does nothing wrong."""

    metadata = AlgorithmMetadata(events=("after_loss",), writes=("loss",))

    def apply(self, event, state, logger):
        state.loss = state.loss * self.factor(state)

    def factor(self, state):
        return 0.5


class Counting(AtLoss):
    """Scales the loss by a count that begins with each run, is saved, and is not wrong either."""

    metadata = AlgorithmMetadata(events=("init", "after_loss"), writes=("loss",))
    count = 0

    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.count = 0
        else:
            super().apply(event, state, logger)

    def factor(self, state):
        self.count += 1
        return 1 + 0.1 * (self.count % 3)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class OnTuples(AtItsEvents):
    """Works on tuples and lists, and says so."""

    def validate(self, state):
        if not isinstance(state.batch, (tuple, list)):
            raise ArgumentError(f"{type(self).__name__} takes tuples, not a {type(state.batch).__name__}")


class OfAPair(OnTuples):
    """Scales the inputs for the forward, and puts the batch back."""

    metadata = AlgorithmMetadata(events=("before_forward", "after_forward"), writes=("batch",))
    kept = None

    def apply(self, event, state, logger):
        if event is Event.BEFORE_FORWARD:
            self.kept = state.batch
            state.batch_set_item(0, state.batch[0] / 3)
        elif self.kept is not None:
            state.batch, self.kept = self.kept, None


def fault(check, name, *, base=AtLoss, also=(), **members):
    """Enter a class of this name whose fault is what these members do."""
    return caught_by(check, also=also)(type(name, (base,), {"__module__": __name__, **members}))
