"""Train a conv net on digits with Lightning and three algorithms; the module knows nothing of them."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from engine_core_lightning import EngineCallback


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, digits = batch
        return self.loss(self.net(images), digits)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, digits = batch
        self.log("accuracy", (self.net(images).argmax(1) == digits).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


lightning.seed_everything(0)
images, digits = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits))
train, held_out = random_split(data, [1500, 297])

selects = ("selective_backprop", {"start": 0.2, "end": 0.8, "scale_factor": 1})
algorithms = [selects, "label_smoothing", ("ema", {"half_life": "20ba"})]
callback = EngineCallback(algorithms, model="net", loss_fn="loss", seed=0)
trainer = lightning.Trainer(max_epochs=5, callbacks=[callback], logger=False, enable_checkpointing=False)
trainer.fit(Digits(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=99))
print(f"accuracy of the averaged weights: {trainer.callback_metrics['accuracy']:.2f}")
