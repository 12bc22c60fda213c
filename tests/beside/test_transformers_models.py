"""A small BERT with attention masks: in Hugging Face's Trainer, and in ours with the same objective."""

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from engine_core import Event
from engine_core import Trainer as OurTrainer
from engine_core_author.probes import at_events
from engine_core_transformers.logits import LogitsLoss

from . import cases
from .cases import EPOCHS, LEARNING_RATE, MOMENTUM, SEED, make_algorithms
from .transformers_runs import Losses, Trainer, arguments

KEYS = {"input_key": "input_ids", "target_key": "labels"}
THREE = {**cases.TOGETHER, "selective_backprop": {**cases.SB, "scale_factor": 1}}


def bert():
    """Return a small BERT without dropout, the same each time."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 12}
    config = transformers.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertForSequenceClassification(config)


def sentences(count=27):
    """Return rows of different lengths, padded and masked."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(count):
        length = 4 + number % 7
        ids = torch.randint(3, 30, (length,), generator=generator)
        mask = torch.arange(10) < length
        row = {"input_ids": F.pad(ids, (0, 10 - length)), "attention_mask": mask.long()}
        rows.append({**row, "labels": (ids[0] + ids[-1]) % 3})
    return rows


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def in_transformers(folder, rows, **given):
    """Return a model that Hugging Face's Trainer trained, the trainer, and the losses of its evaluations."""
    model, losses = bert(), Losses()
    trainer = Trainer(
        model,
        arguments(folder, **given),
        train_dataset=rows,
        eval_dataset=rows[:10],
        optimizers=(sgd(model), None),
        algorithms=make_algorithms("three", keys=KEYS),
        engine_callbacks=[losses],
        loss_fn=nn.CrossEntropyLoss(),
    )
    trainer.train()
    return model, trainer, losses.losses


def in_ours(rows):
    """Return a model that our Trainer trained and the losses of its evaluations."""
    model, losses = bert(), []

    keep = at_events([Event.EVAL_END], lambda _, state: losses.append(state.metrics["eval/loss"]))
    with OurTrainer(
        model,
        DataLoader(rows, batch_size=8),
        eval_dataloader=DataLoader(rows[:10], batch_size=8),
        objective=LogitsLoss(nn.CrossEntropyLoss(), "labels"),
        max_duration=f"{EPOCHS}ep",
        optimizers=sgd(model),
        algorithms=make_algorithms("three", keys=KEYS),
        callbacks=[keep],
        seed=SEED,
        device="cpu",
        progress_bar=False,
    ) as trainer:
        trainer.fit()
        averages = trainer.state.algorithms[-1].averaged_state_dict()
    return model, averages, losses


def test_it_trains_to_the_very_weights_of_our_trainer_and_from_pretrained_reads_them(tmp_path, monkeypatch):
    monkeypatch.setitem(cases.CASES, "three", THREE)
    rows = sentences()
    model, trainer, losses = in_transformers(tmp_path, rows, save_strategy="epoch")
    own, averages, own_losses = in_ours(rows)

    assert [name for name, w in model.state_dict().items() if not torch.equal(w, own.state_dict()[name])] == []
    average = trainer.engine_state.algorithms[-1].averaged_state_dict()
    assert [*average] == [*averages]
    assert all(torch.equal(average[name], averages[name]) for name in averages)
    torch.testing.assert_close(losses, own_losses, rtol=1e-6, atol=0)

    trainer.save_model(tmp_path / "saved")
    for folder in ("saved", "checkpoint-8"):
        read = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / folder)
        assert type(read) is transformers.BertForSequenceClassification
        assert all(torch.equal(w, own.state_dict()[name]) for name, w in read.state_dict().items())
