"""A loop as somebody might write it on the seam, and two algorithms for it."""

import torch
from torch.nn.functional import cross_entropy

from engine_core import Algorithm, AlgorithmMetadata, Event, State
from engine_core.loop import Loop
from engine_core.needs import EVERYTHING

from .parts import batches, linear

DATA = batches(4, 4, 2)


class OwnLoop:
    """What somebody might write: forward, loss, backward, an evaluation after each epoch."""

    def __init__(self, algorithms=(), callbacks=()):
        self.model = linear()
        self.state = State(
            model=self.model,
            algorithms=[*algorithms],
            callbacks=[*callbacks],
            loss_fn=cross_entropy,
            max_duration="2ep",
            train_dataloader=DATA,
            seed=1,
        )
        self.loop = Loop(self.state, EVERYTHING)
        self.loop.init()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state.optimizers = [self.optimizer]

    def gradients(self, batch):
        loop = self.loop
        inputs, targets = loop.begin_forward(batch)
        outputs = loop.end_forward(self.model(inputs))
        loop.begin_loss()
        loss = loop.begin_backward(loop.end_loss(cross_entropy(outputs, targets)))
        loss.backward()
        loop.end_backward()
        return loss.detach()

    def again(self):
        self.optimizer.zero_grad()
        return self.gradients(self.state.batch)

    def loaded(self, skipped):
        """Yield the batches of an epoch, with the events around the loader."""
        batches = iter(DATA[skipped:])
        while True:
            self.loop.before_dataloader()
            try:
                batch = next(batches)
            except StopIteration:
                self.loop.exhausted()
                return
            yield self.loop.take(batch)

    def fit(self, epochs):
        loop, state = self.loop, self.state
        state.dataloader, state.dataloader_label, state.dataloader_len = DATA, "train", len(DATA)
        try:
            loop.fit_start(self.again)
            while state.timestamp.epoch < epochs:
                if not state.timestamp.batch_in_epoch:
                    loop.epoch_start()
                for batch in self.loaded(state.timestamp.batch_in_epoch):
                    loop.begin_step(self.optimizer.zero_grad)
                    self.gradients(batch)
                    if loop.end_gradients():
                        self.optimizer.step()
                    ends = loop.end_step()
                    loop.batch_checkpoint()
                    if ends:
                        loop.fit_end()
                        return
                loop.epoch_end()
                self.evaluate()
                loop.epoch_checkpoint()
            loop.fit_end()
        except BaseException as error:
            loop.undo(error)
            raise

    def evaluate(self):
        loop, losses = self.loop, []
        loop.eval_start("eval", DATA)
        with torch.no_grad():
            for inputs, targets in map(loop.eval_batch, DATA):
                loss = cross_entropy(loop.eval_outputs(self.model(inputs)), targets)
                loop.eval_batch_end(loss)
                losses.append((loss.item(), len(inputs)))
        rows = sum(n for _, n in losses)
        loop.eval_end({"eval/loss": sum(loss * n for loss, n in losses) / rows})


class Average(Algorithm):
    """Evaluates a moving average of the weight, and saves it."""

    metadata = AlgorithmMetadata(events=[Event.BATCH_END, Event.EVAL_START, Event.EVAL_END], writes=["model"])
    average = None
    kept = None

    def match(self, event, state):
        return True

    @torch.no_grad()
    def apply(self, event, state, logger):
        weight = state.model.weight
        if event is Event.BATCH_END:
            self.average = weight.clone() if self.average is None else (self.average + weight) / 2
        else:
            self.kept, new = weight.clone(), self.average if event is Event.EVAL_START else self.kept
            weight.copy_(new)

    def state_dict(self):
        return {} if self.average is None else {"average": self.average}

    def load_state_dict(self, state):
        self.average = state["average"]


class Ascends(Algorithm):
    """Takes the gradients a little further up, as SAM does."""

    metadata = AlgorithmMetadata(events=[Event.AFTER_TRAIN_BATCH], writes=["model"])

    def match(self, event, state):
        return True

    @torch.no_grad()
    def apply(self, event, state, logger):
        model = state.model
        closure = state.loop.closure
        step = 0.1 * model.weight.grad
        model.weight.add_(step)
        with torch.enable_grad():
            closure()
        model.weight.sub_(step)


def plugins():
    return [Average(), Ascends()]
