"""A model of transformers in engine-core's own Trainer, through a view that takes a whole batch."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from engine_core import Trainer
from engine_core.embed import batch_view

torch.manual_seed(0)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=8, num_labels=2, **sizes))
rows = [{"input_ids": words, "labels": words[0] % 2} for words in torch.randint(1, 50, (192, 8))]

view = batch_view(
    model,
    lambda call, batch: call(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask")),
    loss=lambda outputs, batch, reduction: cross_entropy(outputs.logits, batch["labels"], reduction=reduction),
)
with Trainer(
    view,
    DataLoader(rows, batch_size=8),
    max_duration="3ep",
    optimizers=torch.optim.AdamW(model.parameters(), lr=5e-5),
    algorithms=[("label_smoothing", {"target_key": "labels"}), "ema"],
) as trainer:
    trainer.fit()
model.save_pretrained("bert")
print(type(BertForSequenceClassification.from_pretrained("bert")).__name__)
