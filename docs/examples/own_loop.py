"""A custom training loop that fires the engine's events: no Trainer, no loader, no duration."""

import torch

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State


class Standardise(Algorithm):
    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        inputs, targets = state.batch
        state.batch = (inputs - inputs.mean(0)) / inputs.std(0), targets


model, inputs = torch.nn.Linear(4, 1), 5 + 3 * torch.randn(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Engine(State(model=model, algorithms=[Standardise()]), Logger()) as engine:
    for _ in range(100):
        engine.state.batch = (inputs, inputs.sum(1, keepdim=True) - 20)
        engine.run_event("after_dataloader")
        x, y = engine.state.batch
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.6f}")
