"""How a run ends: its last lines, its exit code, and what it left."""

import json
import os
import signal

import pytest

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content
from engine_core.run import result

from .leaving import CONFIG, cli, of_file, read, train
from .parts import at, trainer

__all__ = ["cli", "train"]
pytestmark = pytest.mark.filterwarnings("always::engine_core.errors.CheckpointWarning")

MODEL = ["model: out/model.safetensors", "load it: engine_core.load_model('out', trust=True)"]
RESUME = "resume: engine-core train run.yaml --out out --autoresume"


def callback(target, **arguments):
    return f"{CONFIG}callbacks: [{{target: 'left:{target}', args: {arguments}}}]"


@pytest.mark.parametrize(
    ("number", "event", "batch"),
    [(signal.SIGINT, "batch_end", 6), (signal.SIGTERM, "batch_end", 6), (signal.SIGTERM, "eval_batch_end", 4)],
)
def test_a_signal_saves_the_run_and_its_model_and_the_resumed_run_is_the_whole_one(
    train, tmp_path, number, event, batch
):
    done = train(config=callback("Signals", number=int(number), event=event, batch=batch))
    latest = f"out/checkpoints/ep1-ba{batch}"
    lines = [f"interrupted at batch {batch}", *MODEL, f"latest checkpoint: {latest}", RESUME]
    assert (done.exit_code, done.stdout.splitlines()[-5:]) == (128 + number, lines)
    assert of_file(tmp_path / "out" / "model.safetensors") == of_file(tmp_path / latest / "model.safetensors")
    awaited = read_content(tmp_path / latest).state["awaited"]
    assert awaited == ("epoch_checkpoint" if event == "eval_batch_end" else None)
    assert not (tmp_path / "out" / "results.json").exists()
    assert train("--autoresume").exit_code == 0
    assert train("--out", "whole").exit_code == 0
    for name in ("model.safetensors", "checkpoints/ep2-ba8/model.safetensors"):
        assert of_file(tmp_path / "out" / name) == of_file(tmp_path / "whole" / name)
    assert (tmp_path / "out" / "metrics.csv").read_text() == (tmp_path / "whole" / "metrics.csv").read_text()


def test_a_signal_without_checkpoints_says_that_nothing_resumes_and_what_comes_after_two_dashes_is_no_option(cli):
    stopping = callback("Signals", number=int(signal.SIGINT))
    done = cli("train", "run.yaml", "--out", "without", "--no-checkpoints", config=stopping)
    model = [line.replace("out", "without") for line in MODEL]
    lines = ["interrupted at batch 6", *model, "no checkpoint was saved, so the run can't be resumed"]
    assert (done.exit_code, done.stdout.splitlines()[-4:]) == (130, lines)
    done = cli("train", "--out", "out", "--", "run.yaml", config=stopping)
    assert done.stdout.splitlines()[-1] == "resume: engine-core train --out out --autoresume -- run.yaml"


def test_a_signal_while_the_model_is_written_ends_nothing_as_training_is_over(train, tmp_path, monkeypatch):
    written = result.write_weights

    def signalled(*arguments, **about):
        os.kill(os.getpid(), signal.SIGTERM)
        written(*arguments, **about)

    monkeypatch.setattr(result, "write_weights", signalled)
    assert train().exit_code == 0
    assert read(tmp_path / "out" / "results.json")["batches"] == 8
    assert (tmp_path / "out" / "model.safetensors").exists()
    # and an attempt that is resumed removes the results and the model of the one before
    assert train("--autoresume", "--max-duration", "9ep", config=callback("Bad", at=10)).exit_code == 1
    assert not any((tmp_path / "out" / name).exists() for name in ("results.json", "model.safetensors"))


def test_a_run_that_can_not_be_made_is_a_failure_in_json_too(train):
    done = train("--json", "--set", "model.target=left:nothing")
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert (done.exit_code, told["kind"], told["status"], told["exit_code"]) == (2, "fail", "failed", 2)
    assert train("--json", "--keep-last", "0").stdout.count('"kind": "fail"') == 1


LIMIT = f"{CONFIG}callbacks: [{{target: 'left:Naps'}}, {{name: time_limit, args: {{limit: 600sec}}}}"


def test_a_time_limit_says_so_and_how_to_resume_and_is_exit_code_74_if_it_could_not_be_saved(train):
    assert train("--load", "nowhere", config=LIMIT + "]").exit_code == 2
    done = train("--keep-last=2", config=LIMIT + "]")
    lines = ["paused at batch 5: TimeLimit: 600sec have passed", *MODEL, "latest checkpoint: out/checkpoints/ep1-ba5"]
    assert (done.exit_code, done.stdout.splitlines()[-5:-1]) == (75, lines)
    assert done.stdout.endswith("resume: engine-core train run.yaml --out out --keep-last=2 --autoresume\n")
    done = train("--out", "full", config=LIMIT + ", {target: 'left:FullFrom'}]")
    says = "not saved: the run paused at batch 5 and was not saved in "
    assert (done.exit_code, says in done.stdout) == (74, True)


def test_an_early_stop_is_a_finished_run_that_says_why(train, tmp_path):
    stopper = "callbacks: [{name: threshold_stopper, args: {metric: dev/loss, threshold: 100}}]"
    done = train(config=CONFIG + stopper)
    assert done.exit_code == 0
    assert "\nstopped at batch 4: ThresholdStopper: dev/loss is 1." in done.stdout
    assert "\nresume:" not in done.stdout
    assert read(tmp_path / "out" / "results.json")["batches"] == 4


def test_a_disk_that_stays_full_is_exit_code_74_and_named(train, tmp_path):
    done = train(config=callback("FullFrom", batch=5))
    assert done.exit_code == 74, done.output
    kinds = ["not saved", "not saved", "load it", "latest checkpoint", "results in out"]
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[-5:]] == kinds
    assert "not saved: the run ended at batch 8 and was not saved in " in done.stdout
    assert "not saved: no model was written: 'out/model.safetensors' can't be written: " in done.stdout
    assert done.stdout.splitlines()[-2] == "latest checkpoint: out/checkpoints/ep1-ba4"
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_disk_that_was_full_for_a_while_is_told_and_is_exit_code_0(train):
    done = train("--checkpoint-every", "1ba", config=callback("FullFrom", batch=2, to=5))
    assert done.exit_code == 0
    assert done.stderr.count("no checkpoint was written") == 1
    assert done.stderr.count("checkpoints could not be written") == 1


def test_a_signal_ends_fit_with_a_keyboard_interrupt_itself(tmp_path):
    """A shell ends a loop over trainings only if Python saw KeyboardInterrupt and not a subclass."""
    signals = at("batch_end", lambda state: os.kill(os.getpid(), signal.SIGINT))
    made = trainer(callbacks=[signals, CheckpointSaver(tmp_path)])
    with pytest.raises(KeyboardInterrupt, match="ended after batch 1") as raised, made:
        made.fit()
    assert raised.type is KeyboardInterrupt
