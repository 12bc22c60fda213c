"""A model of transformers in engine-core's own Trainer, with an objective."""

from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from engine_core import Objective, Trainer

torch.manual_seed(0)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=8, num_labels=2, **sizes))
rows = [{"input_ids": words, "labels": words[0] % 2} for words in torch.randint(1, 50, (192, 8))]


def cross_entropy(outputs: Any, labels: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Return the loss of the logits; label smoothing gives it probabilities."""
    return functional.cross_entropy(outputs.logits, labels, reduction=reduction)


with Trainer(
    model,
    DataLoader(rows, batch_size=8),
    objective=Objective(cross_entropy, inputs=("input_ids",), targets="labels"),
    max_duration="3ep",
    optimizers=torch.optim.AdamW(model.parameters(), lr=5e-5),
    algorithms=[("label_smoothing", {"target_key": "labels"}), "ema"],
) as trainer:
    trainer.fit()
model.save_pretrained("bert")
print(type(BertForSequenceClassification.from_pretrained("bert")).__name__)
