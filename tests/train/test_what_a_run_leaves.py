"""`engine-core train` leaves checkpoints and the model, and says where."""

import json

import pytest

import engine_core

from .leaving import CONFIG, checkpoints, cli, of_file, read, train, weights

__all__ = ["cli", "train"]
GAP = "metrics: {gap: {target: 'left:Gap'}}\n"


LOAD_IT = "load it: engine_core.load_model('out', trust=True)"


def test_a_training_leaves_the_latest_checkpoint_and_its_model(train, tmp_path):
    done = train()
    assert done.exit_code == 0, done.output
    assert checkpoints(tmp_path) == ["ep2-ba8", "latest"]
    trained = of_file(tmp_path / "out" / "model.safetensors")
    assert trained == of_file(tmp_path / "out" / "checkpoints" / "ep2-ba8" / "model.safetensors")
    assert not (tmp_path / "out" / "model-average.safetensors").exists()
    modes = {(tmp_path / "out" / name).stat().st_mode for name in ("model.safetensors", "manifest.json")}
    assert len(modes) == 1  # who may read the results may read the model
    told = ["model: out/model.safetensors", LOAD_IT, "latest checkpoint: out/checkpoints/ep2-ba8", "results in out"]
    assert done.output.splitlines()[-4:] == told


@pytest.mark.parametrize(
    ("arguments", "config", "kept"),
    [
        (["--checkpoint-every", "3ba", "--keep-last", "1"], "", ["ep1-ba6", "ep2-ba8", "latest"]),
        (["--keep-last", "2"], "checkpoints: {every: 3ba}", ["ep0-ba3", "ep1-ba6", "ep2-ba8", "latest"]),
        ([], "checkpoints: {keep_last: null}", ["ep1-ba4", "ep2-ba8", "latest"]),
        (["--checkpoint-every", "1ep"], "checkpoints: false", ["ep2-ba8", "latest"]),
        (["--keep-best", "max:dev/loss"], "", None),
    ],
)
def test_options_and_config_say_which_checkpoints_stay(train, tmp_path, arguments, config, kept):
    assert train(*arguments, config=CONFIG + config).exit_code == 0
    if kept is None:  # by the values that were logged
        rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
        worst = max((row["dev/loss"], row["step"]) for row in rows if "dev/loss" in row)[1]
        name = f"ep{worst // 4}-ba{worst}"
        kept = sorted({name, "ep2-ba8", "latest", "best"})
        assert (tmp_path / "out" / "checkpoints" / "best").read_text() == f"{name}\n"
        assert read(tmp_path / "out" / "results.json")["checkpoints"]["best"] == f"checkpoints/{name}"
        assert engine_core.load_model("out/checkpoints/best", trust=True)
    assert checkpoints(tmp_path) == kept


@pytest.mark.parametrize("config", ["checkpoints: false", ""])
def test_without_checkpoints_only_the_model_stays(train, tmp_path, config):
    assert train(*([] if config else ["--no-checkpoints"]), config=CONFIG + config).exit_code == 0
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_saver_of_the_config_stands_alone_unless_more_is_said(train, tmp_path):
    own = CONFIG + "callbacks: [{name: checkpoint_saver, args: {folder: own}}]\n"
    assert train(config=own).exit_code == 0
    assert (tmp_path / "own" / "ep2-ba8").exists()
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert train("--out", "both", "--keep-last", "1", config=own.replace("own}", "other}")).exit_code == 0
    assert (tmp_path / "other" / "ep2-ba8").exists()
    assert (tmp_path / "both" / "checkpoints" / "ep2-ba8").exists()


@pytest.mark.parametrize(
    ("arguments", "config", "problem"),
    [
        (["--no-checkpoints"], "callbacks: [{name: time_limit, args: {limit: 1h}}]", "the time limit can't pause"),
        (["--checkpoint-every", "2"], "", "checkpoints.every: '2' has no unit"),
        ([], "checkpoints: {evry: 1ep}", "checkpoints.evry: unknown key; did you mean 'every'?"),
        (["--keep-best", "dev/los"], "", "no evaluation has a result 'dev/los'; did you mean 'dev/loss'?"),
        (["--keep-best", "dev/gap"], GAP, "run.yaml: metric='dev/gap': neither the metric nor its name says which"),
        ([], f"{GAP}callbacks: [{{name: early_stopper, args: {{metric: dev/gap}}}}]", "write 'min:dev/gap' if it is"),
        ([], "checkpoints: true", "checkpoints: has to be a mapping (every, keep_last, keep_best), not True"),
        ([], "results: {lower: [dev/f1]}", "results.lower[0]: no evaluation has a result 'dev/f1'"),
        ([], "results: {lower: [loss], higher: [loss]}", "'loss' is both under lower and under higher"),
    ],
)
def test_what_contradicts_itself_is_refused_and_leaves_nothing(train, tmp_path, arguments, config, problem):
    done = train(*arguments, config=CONFIG + config)
    assert (done.exit_code, problem in done.output, (tmp_path / "out").exists()) == (2, True, False), done.output


def test_the_same_run_again_names_the_command_that_resumes_it(train):
    assert train("--max-duration", "1ep").exit_code == 0
    again = train("--max-duration", "1ep")
    said, remedy = again.output.splitlines()
    assert again.exit_code == 2
    assert remedy == "resume: engine-core train run.yaml --out out --max-duration 1ep --autoresume"
    assert said.startswith("Error: 'out' holds this very run, which has finished: train it longer (autoresume), or")


def test_a_result_without_a_direction_has_no_best_until_the_config_gives_it_one(train, tmp_path):
    done = train(config=CONFIG + GAP)
    assert read(tmp_path / "out" / "results.json")["best"]["dev/gap"] is None
    assert read(tmp_path / "out" / "manifest.json")["higher_is_better"] == {}
    assert [line.split() for line in done.output.splitlines() if line.startswith("  dev/gap")] == [["dev/gap", "3"]]
    told = f"{CONFIG}{GAP}results: {{lower: [gap]}}\ncallbacks: [{{name: early_stopper, args: {{metric: dev/gap}}}}]"
    best = {"value": 1.0, "step": 4, "epoch": 1}
    for duration in ("2ep", "3ep"):  # the resumed one too
        options = ["--keep-best", "dev/gap", "--autoresume", "--set", f"trainer.max_duration={duration}"]
        assert train("--out", "told", *options, config=told).exit_code == 0
        assert read(tmp_path / "told" / "results.json")["best"]["dev/gap"] == best
    assert (tmp_path / "told" / "checkpoints" / "best").read_text() == "ep1-ba4\n"


def test_a_crash_leaves_the_latest_checkpoint_and_no_model(train, tmp_path):
    done = train(config=CONFIG + "callbacks: [{target: 'left:Bad'}]")
    latest = "latest checkpoint: out/checkpoints/ep1-ba4"
    resume = "resume: engine-core train run.yaml --out out --autoresume"
    told = ["failed at batch 6", "no model was written, since the run failed", LOAD_IT, latest, resume]
    assert (done.exit_code, done.output.splitlines()[-5:]) == (1, told)
    for text in ("Traceback (most recent call last)", "Error: crashed on purpose", "raised by callback Bad"):
        assert text in done.stderr
    assert not (tmp_path / "out" / "model.safetensors").exists()
    saved = of_file(tmp_path / "out" / "checkpoints" / "ep1-ba4" / "model.safetensors")
    assert weights(engine_core.load_model("out", trust=True)) == saved
    assert train("--autoresume", config=CONFIG).exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").exists()
