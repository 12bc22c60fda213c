"""A small BERT, trained by Hugging Face's Trainer with three algorithms of engine-core."""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from engine_core_transformers import EngineTrainer

torch.manual_seed(0)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=8, num_labels=2, **sizes))
words = torch.randint(1, 50, (256, 8))
mask = (torch.arange(8) < torch.randint(4, 9, (256, 1))).long()
rows = [{"input_ids": w, "attention_mask": m, "labels": w[0] % 2} for w, m in zip(words, mask, strict=True)]

each_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch"}
keys = {"input_key": "input_ids", "target_key": "labels"}
trainer = EngineTrainer(
    model,
    TrainingArguments("checkpoints", num_train_epochs=3, learning_rate=0.01, report_to=[], **each_epoch),
    train_dataset=rows[:192],
    eval_dataset=rows[192:],
    loss_fn=torch.nn.CrossEntropyLoss(),
    algorithms=[
        ("selective_backprop", {**keys, "start": 0.3, "end": 1, "scale_factor": 1}),
        ("label_smoothing", {"target_key": "labels", "smoothing": 0.1}),
        "ema",
    ],
)
trainer.train()
print(f"loss of the averaged weights: {trainer.evaluate()['eval_loss']:.3f}")
print(f"at batch {trainer.engine_state.timestamp.batch}")
