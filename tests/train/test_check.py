"""`engine-core train --check`: everything is made and run for a batch, and nothing stays."""

import json

import pytest
import torch

from .leaving import CONFIG, cli, of_file, train

__all__ = ["cli", "train"]


def test_a_config_that_works_is_ok_and_leaves_no_trace(train, tmp_path):
    def there():
        return {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if "__pycache__" not in str(path)}

    config = CONFIG + "callbacks: [{name: checkpoint_saver, args: {folder: own}}]\n"
    train("--check", config=config)
    before = there()
    done = train("--check", config=config)
    assert (done.exit_code, there()) == (0, before)
    assert done.stdout.startswith("ok: a batch of training, a batch of dev and test, and a checkpoint of ")
    assert "eval test   ? samples, 2 batches\n" in done.stderr and "folder      out\n" in done.stderr
    told = json.loads(train("--check", "--json").stdout)
    assert (told["kind"], told["model"], told["checkpoint_bytes"] > 0) == ("check", "Sequential", True)


def test_the_run_after_it_is_the_same_and_a_taken_folder_is_refused(train, tmp_path):
    for arguments in ([], ["--out", "checked", "--check"], ["--out", "again"]):
        assert train(*arguments).exit_code == 0
    assert of_file(tmp_path / "again" / "model.safetensors") == of_file(tmp_path / "out" / "model.safetensors")
    done = train("--check", "--seed", "8")
    assert (done.exit_code, done.stdout, "'out' holds another run" in done.stderr) == (2, "", True)


def test_one_batch_of_each_loader_is_run_loggers_get_nothing_and_workers_end_with_it(train, tmp_path):
    counting = CONFIG.replace("left:loader", "left:Counted") + "loggers: [{target: 'left:Loud'}]\n"
    done = train("--check", config=counting)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "counted").read_text() == "111"
    assert (tmp_path / "loud").read_text() == "made"
    assert train("--check", config=CONFIG.replace('"left:loader"', '"left:with_workers"')).exit_code == 0
    assert not torch.multiprocessing.active_children()


def test_what_would_fail_in_the_first_batch_of_an_evaluation_is_found(train, tmp_path):
    done = train("--check", config=CONFIG + "metrics: {bad: {target: 'left:BadMetric'}}\n")
    assert (done.exit_code, type(done.exception)) == (1, ZeroDivisionError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "config", "problem"),
    [
        (["--no-checkpoints"], "callbacks: [{name: time_limit, args: {limit: 1h}}]", "the time limit can't pause"),
        (["--keep-best", "loss"], "", "has to be the label of an evaluation loader"),
        (["--out", "/proc/out"], "", "can't write to '/proc/out': "),
    ],
)
def test_what_the_run_would_refuse_is_refused(train, arguments, config, problem):
    done = train("--check", *arguments, config=CONFIG + config)
    assert (done.exit_code, problem in done.stderr) == (2, True), done.output
