"""The complete order of a fit: events, algorithms, callbacks."""

from engine_core import Algorithm, AlgorithmMetadata, Event

from .parts import batches, trainer, writing_down

PAIRED = ("init", "after_dataloader", "before_train_batch", "after_train_batch", "before_forward", "after_forward",
         "epoch_start", "epoch_end", "eval_before_forward", "eval_after_forward")  # fmt: skip

MICROBATCH = """
before_forward       A B one two
after_forward        B A one two
before_loss          one two
after_loss           one two
before_backward      one two
after_backward       one two
"""
BATCH = f"""
after_dataloader     B A one two
batch_start          one two
before_train_batch   A B one two
{2 * MICROBATCH}
after_train_batch    B A one two
batch_end            one two
batch_checkpoint     one two
before_dataloader    one two
"""
EPOCH = f"""
epoch_start          A B one two
before_dataloader    one two
{2 * BATCH}
epoch_end            A B one two
eval_start           one two
eval_batch_start     one two
eval_before_forward  A B one two
eval_after_forward   B A one two
eval_batch_end       one two
eval_end             one two
epoch_checkpoint     one two
"""
FIT = f"""
init                 one two A B
fit_start            one two
{2 * EPOCH}
fit_end              one two
"""


def test_every_event_algorithm_and_callback_of_a_fit_in_order():
    """2 epochs of 2 batches in 2 microbatches, an evaluation each epoch, 2 algorithms, 2 callbacks."""
    heard = []

    class A(Algorithm):
        metadata = AlgorithmMetadata(events=tuple(map(Event, PAIRED)))

        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            heard.append((event.value, type(self).__name__))

    class B(A):
        pass

    with _listening(heard, [A(), B()]) as made:
        made.fit()
    assert _one_line_an_event(heard) == [line for line in FIT.splitlines() if line]


def _listening(heard, algorithms):
    class Into(list):
        def __init__(self, name):
            self.name = name

        def append(self, event):
            heard.append((event, self.name))

    return trainer(
        batches(4, 4),
        max_duration="2ep",
        microbatch_size=2,
        eval_dataloader=batches(3),
        algorithms=algorithms,
        callbacks=[writing_down(Into("one"), name="One"), writing_down(Into("two"), name="Two")],
    )


def _one_line_an_event(heard):
    """Join what was heard at one event; no event fires twice in a row."""
    lines = []
    for event, name in heard:
        if lines and lines[-1].split()[0] == event:
            lines[-1] += f" {name}"
        else:
            lines.append(f"{event:<20} {name}")
    return lines
