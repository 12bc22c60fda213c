"""Train in a loop with Accelerate and two algorithms; started again, it goes on where it was."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from engine_core_accelerate import EngineLoop

EPOCHS, FOLDER = 3, Path("checkpoint")
inputs = torch.randn(640, 20, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
accelerator = Accelerator(cpu=True)
loop = EngineLoop(
    accelerator,
    algorithms=["label_smoothing", ("ema", {"decay": 0.9})],
    loss_fn=torch.nn.CrossEntropyLoss(),
    max_duration=f"{EPOCHS}ep",
    max_grad_norm=1.0,
)
model = loop.init(torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)  # after init, which may replace modules
loaders = DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=32)
model, optimizer, train, held = accelerator.prepare(model, optimizer, *loaders)
if FOLDER.exists():
    accelerator.load_state(FOLDER)
with loop.fit(model, optimizer, train):
    for epoch in range(loop.state.timestamp.epoch, EPOCHS):
        for batch in loop.batches(train):
            loss = loop.gradients(batch)
            optimizer.step()
        if loop.state.loop.stop_requested:  # by a callback
            break
        with loop.evaluation("eval", held) as results:  # with the averaged weights
            right = [accelerator.gather_for_metrics(model(x).argmax(1) == y) for x, y in held]
            results["accuracy"] = torch.cat(right).float().mean()
        accelerator.print(f"epoch {epoch}: {loop.state.metrics['eval/accuracy']:.2f}")
        accelerator.save_state(FOLDER)
loop.close()
