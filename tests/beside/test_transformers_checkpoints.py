"""Checkpoints of Hugging Face's Trainer hold the engine's part: resumed equals uninterrupted."""

import json

import pytest
import safetensors.torch
import torch
import transformers

from engine_core.errors import CheckpointError, CheckpointWarning
from engine_core_transformers import EngineTrainer

from . import cases
from .cases import differences, make_algorithms
from .transformers_runs import KEYS, Digits, InOrder, Losses, Net, Trainer, arguments, left_by, make_trainer

CASES = {
    "ema": cases.CASES["ema"],
    "drawing": {"stochastic_depth": {"drop_rate": 0.5}, "cutout": {}},
    "choosing": {"selective_backprop": cases.SB, "mixup": {}, "ema": {"decay": 0.9}},
}
STEPS = 7  # of an epoch
EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}


def run(folder, case="ema", resume=None, algorithms=None, **args):
    """Train, all of it or from a checkpoint on, and return the trainer and what it left."""
    losses, model = Losses(), Net()
    if resume:
        torch.nn.init.zeros_(model.net[0].weight)  # the checkpoint has the weights
    algorithms = make_algorithms(case, keys=KEYS) if algorithms is None else algorithms
    trainer = make_trainer(folder, algorithms, model=model, args=args, engine_callbacks=[losses])
    trainer.train(resume_from_checkpoint=resume)
    return trainer, left_by(trainer, losses)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_the_uninterrupted_one(case, tmp_path, monkeypatch):
    monkeypatch.setitem(cases.CASES, case, CASES[case])
    _, whole = run(tmp_path / "steps", case, **EVERY_STEP)
    _, by_epoch = run(tmp_path / "epochs", case, save_strategy="epoch")
    assert differences(whole, by_epoch) == []

    places = (f"epochs/checkpoint-{STEPS}", f"steps/checkpoint-{STEPS}", "steps/checkpoint-9")
    for place in places:
        _, resumed = run(tmp_path / "resumed", case, str(tmp_path / place))
        same_evaluations = resumed._replace(losses=whole.losses[-len(resumed.losses) :])
        assert differences(whole._replace(losses=same_evaluations.losses), resumed) == [], place


def test_after_the_last_step_of_an_epoch_its_end_comes_first(tmp_path):
    run(tmp_path, **EVERY_STEP)
    fired = []

    class Watch(Losses):
        def after_load(self, state, logger):
            fired.append("after_load")

        def fit_start(self, state, logger):
            fired.append("fit_start")

        def epoch_end(self, state, logger):
            fired.append(("epoch_end", state.timestamp.epoch, state.timestamp.batch))

        def epoch_checkpoint(self, state, logger):
            fired.append("epoch_checkpoint")

        def epoch_start(self, state, logger):
            fired.append("epoch_start")

    for number in (STEPS, STEPS - 1):
        trainer = make_trainer(tmp_path, make_algorithms("ema"), engine_callbacks=[Watch()])
        trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{number}"))

    ending = [("epoch_end", 1, STEPS), "epoch_checkpoint"]
    rest = ["epoch_start", ("epoch_end", 2, 2 * STEPS), "epoch_checkpoint"]
    begun = ["after_load", "fit_start"]
    assert fired == begun + ending + rest + begun + ending + rest


def with_dropout(folder, kind, resume=None, **args):
    """Train with dropout and a loader that shuffles, and return the weights."""
    model = Net()
    model.net.append(torch.nn.Dropout(0.2))
    given = {"algorithms": make_algorithms("ema")} if issubclass(kind, EngineTrainer) else {}
    data = {"train_dataset": Digits(), "eval_dataset": Digits(53, 73)}
    kind(model, arguments(folder, **EVERY_STEP, **args), **data, **given).train(resume_from_checkpoint=resume)
    return [weight.clone() for weight in model.state_dict().values()]


@pytest.mark.parametrize(("evaluates", "number", "same"), [("epoch", 7, False), ("epoch", 6, True)])
def test_a_resumed_run_draws_from_torch_what_the_plain_trainer_draws(evaluates, number, same, tmp_path):
    found = []
    for kind in (transformers.Trainer, EngineTrainer):
        whole = with_dropout(tmp_path / kind.__name__, kind, eval_strategy=evaluates)
        place = str(tmp_path / kind.__name__ / f"checkpoint-{number}")
        found.append((whole, with_dropout(tmp_path / "resumed", kind, place, eval_strategy=evaluates)))

    (plain, plain_resumed), (ours, ours_resumed) = found
    assert all(map(torch.equal, plain, ours)) and all(map(torch.equal, plain_resumed, ours_resumed))
    assert all(map(torch.equal, ours, ours_resumed)) is same


def test_true_takes_the_last_checkpoint_and_another_training_starts_anew(tmp_path):
    _, whole = run(tmp_path, **EVERY_STEP)
    for folder in tmp_path.glob("checkpoint-1[1-4]"):
        folder.rename(tmp_path / f"not-{folder.name}")

    resumed, left = run(tmp_path, resume=True)
    assert differences(whole._replace(losses=whole.losses[1:]), left) == []
    resumed.train()
    assert resumed.engine_state.timestamp[:2] == (2, 2 * STEPS)


def test_the_files_are_json_and_tensors_and_there_before_others_are_told(tmp_path):
    seen = []

    class Uploads(transformers.TrainerCallback):
        def on_save(self, args, state, control, **_):
            folder = tmp_path / f"checkpoint-{state.global_step}"
            seen.append(json.loads((folder / "engine_core.json").read_text())["clock"]["batch"])

    class First(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.callback_handler.callbacks.insert(0, Uploads())

    trainer = make_trainer(tmp_path, make_algorithms("ema"), kind=First, args={"save_strategy": "epoch"})
    trainer.train()

    folder = tmp_path / f"checkpoint-{2 * STEPS}"
    tensors = safetensors.torch.load_file(folder / "engine_core.safetensors")
    averages = trainer.engine_state.algorithms[0].averaged_state_dict()
    assert seen == [STEPS, 2 * STEPS]
    assert sorted(file.name for file in folder.iterdir() if "engine" in file.name) == [
        *("engine_core.json", "engine_core.safetensors")
    ]
    assert any(torch.equal(t, averages["net.0.weight"]) for t in tensors.values() if t.shape == (8, 1, 3, 3))


def test_weights_alone_are_saved_without_the_engine_and_can_not_be_resumed(tmp_path):
    run(tmp_path, save_strategy="epoch", save_only_model=True)

    assert not [*tmp_path.glob("*/engine_core*")]
    with pytest.raises(CheckpointError, match=r"checkpoint-7' was saved without engine-core, or holds weights alone"):
        run(tmp_path, resume=str(tmp_path / f"checkpoint-{STEPS}"))


def test_the_best_model_is_loaded_with_one_warning(tmp_path):
    with pytest.warns(CheckpointWarning, match="load_best_model_at_end loads weights alone, no averages") as caught:
        run(tmp_path, save_strategy="epoch", load_best_model_at_end=True)

    assert len([each for each in caught if each.category is CheckpointWarning]) == 1
    run(tmp_path, algorithms=[], save_strategy="epoch", load_best_model_at_end=True)  # no averages, no warning


def test_what_can_not_be_resumed_is_refused_by_name_before_weights_are_loaded(tmp_path):
    one = str(tmp_path / "ema" / f"checkpoint-{STEPS}")
    run(tmp_path / "ema", save_strategy="epoch")
    with pytest.raises(CheckpointError, match="saved with EMA, and this run does not have it"):
        run(tmp_path, algorithms=[], resume=one)

    run(tmp_path / "surgery", "squeeze_excite", save_strategy="epoch")
    with pytest.raises(CheckpointError, match="saved with SqueezeExcite, and this run does not have it"):
        run(tmp_path, algorithms=[], resume=str(tmp_path / "surgery" / f"checkpoint-{STEPS}"))

    path = tmp_path / "ema" / f"checkpoint-{STEPS}" / "engine_core.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "format": 7}))
    trainer = make_trainer(tmp_path, make_algorithms("ema"))
    weight = trainer.model.net[0].weight.clone()
    with pytest.raises(CheckpointError, match="has format 7, and this version reads up to 1"):
        trainer.train(resume_from_checkpoint=one)
    assert torch.equal(trainer.model.net[0].weight, weight)

    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"engine_core\.json' is damaged, it is not JSON"):
        trainer.train(resume_from_checkpoint=one)


def test_a_checkpoint_of_the_trainer_alone_is_refused(tmp_path):
    class Plain(InOrder, transformers.Trainer):
        """Hugging Face's own."""

    Plain(Net(), arguments(tmp_path, eval_strategy="no", save_strategy="epoch"), train_dataset=Digits()).train()

    with pytest.raises(CheckpointError, match="was saved without engine-core"):
        run(tmp_path, resume=True)
