"""The complete order of a fit: events, algorithms, callbacks."""

import itertools

from .parts import acting, batches, trainer, writing_down

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

    class Into(list):
        def __init__(self, name):
            self.name = name

        def append(self, event):
            heard.append((event, self.name))

    def noting(name):
        return acting(lambda event, state: heard.append((event.value, name)), *PAIRED, name=name)

    evaluated = {"eval_dataloader": batches(3), "algorithms": [noting("A"), noting("B")]}
    callbacks = [writing_down(Into(name), name=name) for name in ("one", "two")]
    with trainer(batches(4, 4), max_duration="2ep", microbatch_size=2, callbacks=callbacks, **evaluated) as made:
        made.fit()
    lines = []
    for event, at_once in itertools.groupby(heard, key=lambda told: told[0]):  # no event fires twice in a row
        lines.append(" ".join([f"{event:<20}", *(name for _, name in at_once)]))
    assert lines == [line for line in FIT.splitlines() if line]
