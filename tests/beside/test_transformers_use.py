"""Bad use of EngineTrainer is refused by name; models and accelerators are left as found; other uses work."""

import copy
from contextlib import nullcontext

import pytest
import torch
import transformers
from accelerate.utils import DistributedType
from torch import nn

from engine_core import Event
from engine_core.errors import ArgumentError, PluginError, UnsupportedError
from engine_core_author.probes import Injected, at_events, raise_at
from engine_core_transformers import EngineTrainer, EngineTrainerMixin

from .cases import LEARNING_RATE, MOMENTUM, differences, make_algorithms, train_ours
from .transformers_runs import KEYS, Digits, InOrder, Losses, Net, Trainer, arguments, left_by, make_trainer

QUIET = {"eval_strategy": "no"}


def hold(thing):
    """Return what a module or an accelerator has: its class, its attributes, its hooks."""
    hooks = {name: len(value) for name, value in vars(thing).items() if "hooks" in name}
    return type(thing), sorted(vars(thing)), hooks


@pytest.mark.parametrize(
    "given",
    [{"compute_loss_func": lambda *_, **__: 0}, {"args": {"label_smoothing_factor": 0.1}}],
    ids=["compute_loss_func", "label_smoothing_factor"],
)
def test_two_losses_are_refused(given, tmp_path):
    model = Net()
    model.config = transformers.BertConfig()
    with pytest.raises(ArgumentError, match="give no compute_loss_func and no label_smoothing_factor"):
        make_trainer(tmp_path, model=model, **given)
    del model.config
    make_trainer(tmp_path, compute_loss_func=lambda *_, **__: 0, loss_fn=None)


def test_what_splits_batches_or_weights_is_refused(tmp_path, monkeypatch):
    two = arguments(tmp_path)
    assert two.n_gpu <= 1  # asks for the devices, once
    two._n_gpu = 2
    with pytest.raises(UnsupportedError, match="can't work with DataParallel: train with DDP, as torchrun"):
        EngineTrainer(Net(), two, train_dataset=Digits(), eval_dataset=Digits())
    with pytest.raises(UnsupportedError, match="leave auto_find_batch_size out"):
        make_trainer(tmp_path, args={"auto_find_batch_size": True})
    trainer = make_trainer(tmp_path)
    for kind in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        monkeypatch.setitem(vars(trainer.accelerator.state), "distributed_type", kind)
        with pytest.raises(UnsupportedError, match=f"can't work with {kind.name}: "):
            trainer._check()
    monkeypatch.setitem(vars(trainer.accelerator.state), "distributed_type", DistributedType.MULTI_CPU)
    trainer._check()
    trainer.args.fsdp = ["full_shard"]  # which accelerate does not mention where there is no GPU
    with pytest.raises(UnsupportedError, match="can't work with FSDP: train with DDP"):
        trainer._check()


def test_a_private_name_that_is_gone_is_told_with_version_and_range(tmp_path, monkeypatch):
    monkeypatch.delattr(transformers.Trainer, "_save_optimizer_and_scheduler")
    says = (
        r"can't work with transformers 5\..*: it lacks Trainer._save_optimizer_and_scheduler; install 'transformers.*>="
    )
    with pytest.raises(UnsupportedError, match=says):
        make_trainer(tmp_path)


def test_all_that_are_refused_are_named_at_once_before_the_model_changes(tmp_path):
    model = Net()
    names = [*model.state_dict()]
    algorithms = [("squeeze_excite", {"min_channels": 1}), ("label_smoothing", {"target_key": "labels"}), "mixup"]
    with pytest.raises(UnsupportedError) as caught:
        make_trainer(tmp_path, algorithms, model=model, loss_fn=None)
    lines = str(caught.value).splitlines()
    assert [line.partition(" (")[0] for line in lines[1:]] == ["- LabelSmoothing", "- MixUp"]
    assert all("give EngineTrainer(loss_fn=...)" in line for line in lines[1:])
    assert [*model.state_dict()] == names
    with pytest.raises(PluginError, match="ema"):
        make_trainer(tmp_path, ["emma"])


def fixed(logits, labels):
    """Return a loss that takes no reduction."""
    return nn.functional.cross_entropy(logits, labels)


def test_a_loss_without_rows_and_arguments_that_changed_are_refused(tmp_path):
    algorithms = make_algorithms("selective_backprop", keys=KEYS)
    with pytest.raises(UnsupportedError, match="no row_loss: loss_fn takes no `reduction`; let it, and give rows"):
        make_trainer(tmp_path, algorithms, loss_fn=fixed)
    make_trainer(tmp_path, algorithms, loss_fn=nn.functional.cross_entropy)

    trainer = make_trainer(tmp_path, make_algorithms("sam"), args=QUIET)
    trainer.args.gradient_accumulation_steps = 2
    with pytest.raises(UnsupportedError, match="no closure: a step is several batches; don't accumulate gradients"):
        trainer.train()


@pytest.mark.parametrize("event", [None, Event.AFTER_FORWARD, Event.AFTER_BACKWARD, Event.EVAL_AFTER_FORWARD])
def test_the_model_and_the_accelerator_are_left_as_found(event, tmp_path):
    plain = transformers.Trainer(Net(), arguments(tmp_path, max_steps=1, **QUIET), train_dataset=Digits())
    plain.train()
    trainer, weights = make_trainer(tmp_path, make_algorithms("together", keys=KEYS)), []
    watch = at_events([Event.BATCH_END], lambda _, s: weights.append(copy.deepcopy(s.model.state_dict())))
    trainer.engine_state.callbacks.append(watch)
    if event is not None:
        trainer.engine_state.callbacks.append(raise_at(event, 2))
    with nullcontext() if event is None else pytest.raises(Injected):
        trainer.train()

    assert hold(trainer.model) == hold(plain.model)
    assert hold(trainer.accelerator) == hold(plain.accelerator)
    convolution = {name: w for name, w in trainer.model.state_dict().items() if "net.0." in name}
    assert all(torch.equal(weight, weights[-1][name]) for name, weight in convolution.items())
    assert trainer.engine_state.loop.closure is None

    if event is not None:  # and it can train again
        trainer.engine_state.callbacks.pop()
        trainer.train()
        assert trainer.engine_state.timestamp[:2] == (2, 14)


def test_an_exception_in_evaluate_alone_takes_averages_out_again(tmp_path):
    trainer = make_trainer(tmp_path, make_algorithms("ema"), args=QUIET)
    trainer.train()
    trained = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.engine_state.callbacks.append(raise_at(Event.EVAL_AFTER_FORWARD, 1))
    with pytest.raises(Injected):
        trainer.evaluate()
    assert all(torch.equal(weight, trained[name]) for name, weight in trainer.model.state_dict().items())
    assert trainer.engine_state.dataloader_label is None


def test_a_second_training_of_one_module_knows_nothing_of_the_first(tmp_path):
    plain, engined = Net(), Net()
    for model, first in ((plain, ()), (engined, ("ema",))):
        make_trainer(tmp_path, first, model=model, args=QUIET).train()
        make_trainer(tmp_path, model=model, args=QUIET).train()
    assert all(map(torch.equal, plain.state_dict().values(), engined.state_dict().values()))
    assert [*vars(plain)] == [*vars(engined)]


def test_model_init_has_init_on_each_model(tmp_path):
    class WithOptimizer(Trainer):
        def create_optimizer(self, *_):
            if self.optimizer is None:
                parameters = self.model.parameters()
                self.optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
            return self.optimizer

    losses, models = Losses(), []
    data = {"train_dataset": Digits(), "eval_dataset": Digits(53, 73), "loss_fn": nn.CrossEntropyLoss()}
    given = {"algorithms": make_algorithms("squeeze_excite"), "engine_callbacks": [losses], **data}
    trainer = WithOptimizer(None, arguments(tmp_path), model_init=lambda: models.append(Net()) or models[-1], **given)
    for _ in range(2):
        del losses.losses[:]
        trainer.train()
        assert differences(left_by(trainer, losses), train_ours("squeeze_excite")) == []
    assert len(models) == 3 and all(len([*model.parameters()]) == len([*models[0].parameters()]) for model in models)


def test_a_loader_without_length_counts_epochs_as_they_end(tmp_path):
    epochs = []
    watch = at_events([Event.EPOCH_START, Event.EPOCH_END], lambda e, s: epochs.append((e.value, s.timestamp.batch)))
    args = {"max_steps": 5, **QUIET}
    rows = {"__iter__": lambda self: iter([Digits()[number] for number in range(20)])}
    endless = type("Endless", (torch.utils.data.IterableDataset,), rows)()
    trainer = make_trainer(tmp_path, make_algorithms("swa"), train_dataset=endless, args=args, engine_callbacks=[watch])
    trainer.train()
    assert epochs == [("epoch_start", 0), ("epoch_end", 3), ("epoch_start", 3)]
    assert trainer.engine_state.dataloader_len is None
    assert trainer.engine_state.timestamp[:3] == (1, 5, 36) and trainer.engine_state.get_elapsed_duration().value == 1


def test_the_mixin_stands_before_the_sequence_trainer(tmp_path):
    sequence_trainer = type("SequenceTrainer", (InOrder, EngineTrainerMixin, transformers.Seq2SeqTrainer), {})
    sizes = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config)
    rows = [{"input_ids": torch.arange(1, 6) + n, "labels": torch.arange(2, 6) + n} for n in range(6)]
    same = vars(arguments(tmp_path, num_train_epochs=1))
    kept = ("output_dir", "eval_strategy", "save_strategy", "num_train_epochs", "use_cpu", "report_to", "disable_tqdm")
    args = transformers.Seq2SeqTrainingArguments(
        **{name: same[name] for name in kept}, predict_with_generate=True, generation_max_length=6
    )
    events = []
    watch = at_events([Event.EVAL_AFTER_FORWARD, Event.EVAL_END], lambda event, _: events.append(event.value))
    trainer = sequence_trainer(
        model, args, train_dataset=rows, eval_dataset=rows, algorithms=["ema"], engine_callbacks=[watch]
    )
    trainer.train()

    assert events == ["eval_after_forward", "eval_end"]
    assert trainer.predict(rows).predictions.shape[0] == 6
    assert isinstance(trainer.engine_state.model, transformers.T5ForConditionalGeneration)


class Plain(nn.Module):
    """A model that gives a tensor."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, pixel_values):
        return self.net(pixel_values)["logits"]


def test_a_model_that_gives_a_tensor_and_outputs_that_are_replaced_in_an_evaluation(tmp_path):
    rows, double = Digits(53, 73), lambda _, state: setattr(state, "outputs", 2 * state.outputs)
    plain = make_trainer(tmp_path, model=Plain(), args=QUIET).predict(rows)
    doubling = [at_events([Event.EVAL_AFTER_FORWARD], double)]
    twice = make_trainer(tmp_path, model=Plain(), args=QUIET, engine_callbacks=doubling).predict(rows)

    labels = torch.tensor([row["labels"] for row in rows])
    assert plain.predictions.shape == (20, 10)
    torch.testing.assert_close(2 * plain.predictions, twice.predictions)
    expected = nn.functional.cross_entropy(torch.tensor(twice.predictions), labels).item()
    assert twice.metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
