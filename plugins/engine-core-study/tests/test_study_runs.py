"""A study from its file to its table: the core's runs, paired by seed; none is trained twice, and none is lost."""

import csv
import json
import shutil
import subprocess
import sys

import pytest

from engine_core.cli import main
from engine_core.errors import ArgumentError, EngineError
from engine_core_study import read_results, study
from engine_core_study.file import read_study
from engine_core_study.folder import StudyRun
from engine_core_study.record import RECORD
from engine_core_study.running import processes

ARMS = """\
arms:
  plain: {}
  noisy: {with: {target: "study_parts:Noise"}}
report: [test/accuracy, test/loss]
seeds: 3
"""


@pytest.fixture
def command(here, capfd):
    """Return a function that runs `engine-core` with arguments and gives exit code, stdout and stderr."""

    def run(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)], prog_name="engine-core")
        return ended.value.code, *capfd.readouterr()

    return run


def table(folder):
    """Return what `study.json` says of each run and arm, without times."""
    content = json.loads((folder / "study.json").read_text())
    runs = [(r["arm"], r["seed"], r["status"], r["values"], r["samples"], r["forward_rows"]) for r in content["runs"]]
    return runs, [(arm["name"], arm["values"]) for arm in content["arms"]]


def test_the_runs_are_the_cores_own_and_equal_those_that_train_makes(command, write, here):
    assert command("study", write(ARMS))[0] == 0
    folder = here / "studies" / "study" / "runs" / "noisy" / "seed-2"
    options = ("--seed", 2, "--out", "alone", "--set", "algorithms+={target: 'study_parts:Noise'}", "--quiet")
    assert command("train", "run.yaml", *options)[0] == 0
    alone, ours = (json.loads((path / "results.json").read_text()) for path in (here / "alone", folder))
    names = ("test/accuracy", "test/loss", "val/loss", "best", "algorithms", "samples")
    assert {name: ours[name] for name in names} == {name: alone[name] for name in names}
    shown = read_results(here / "studies" / "study").content
    record = next(r for r in shown["runs"] if (r["arm"], r["seed"]) == ("noisy", 2))
    assert record["values"] == {name: alone[name] for name in record["values"]}
    assert {*record["values"]} == {"test/accuracy", "test/loss", "val/accuracy", "val/loss"}
    assert command("explain", folder)[0] == 0
    assert command("report", folder)[0] == 0


def test_arms_of_a_seed_begin_with_equal_weights_and_get_equal_batches_and_costs_are_counted(command, write, here):
    code, shown, _ = command("study", write(ARMS + "baseline: plain"))
    assert code == 0
    assert "the weights before training are equal in all arms of a seed" in shown
    assert "the first batches of each epoch are equal in all arms of a seed" in shown
    content = read_results(here / "studies/study").content
    by_seed = {}
    for run in content["runs"]:
        by_seed.setdefault(run["seed"], set()).add((run["weights"], tuple(run["data"])))
        # 2 epochs of 48 rows, forward and backward; evaluation is not counted
        assert (run["samples"], run["forward_rows"], run["backward_rows"], len(run["data"])) == (96, 96, 96, 2)
        assert run["seconds"] > 0
    assert [len(found) for found in by_seed.values()] == [1, 1, 1]
    assert len(set.union(*by_seed.values())) == 3
    noisy = read_results(here / "studies/study").arms["noisy"]
    assert noisy["cost"]["ratio"]["n"] == 3
    assert noisy["cost"]["ratio"]["adjacent"]


@pytest.mark.full
def test_an_arm_with_other_weights_or_batches_is_named(command, write):
    arms = ARMS.replace("noisy:", "small: {set: {data.args.batch_size: 4}}\n  noisy:")
    _, shown, _ = command("study", write(arms))
    assert "the first batches of each epoch differ between plain and small of the same seed" in " ".join(shown.split())


def test_a_failing_run_is_a_row_with_its_error_and_the_same_command_tries_it_again(command, write, here):
    arms = ARMS.replace("study_parts:Noise", "study_parts:Breaks")
    code, shown, told = command("study", write(arms))
    assert code == 1
    assert "noisy, seed 1: failed: RuntimeError: it breaks here" in told
    assert "1 of 6 runs failed: noisy, seed 1; the output.txt of each" in " ".join(shown.split())
    broken = here / "studies/study/runs/noisy/seed-1"
    record = json.loads((broken / RECORD).read_text())
    assert record["status"] == "failed"
    assert record["wall_s"] > 0
    assert "in apply" in (broken / "output.txt").read_text()
    text = (here / "study_parts.py").read_text()
    (here / "study_parts.py").write_text(text.replace('raise RuntimeError("it breaks here")', "pass"))
    kept = {path: path.stat().st_mtime_ns for path in here.glob(f"studies/study/runs/*/*/{RECORD}")}
    code, shown, told = command("study", write(arms))
    assert code == 0
    assert [path.parent.name for path, time in kept.items() if path.stat().st_mtime_ns != time] == ["seed-1"]
    assert told.count("seed") == 1
    lines = [json.loads(line) for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines if line["kind"] in ("start", "resume")] == ["start", "resume"]


@pytest.mark.full
def test_a_changed_study_is_refused_with_what_changed_and_more_seeds_are_not_a_change(command, write, here):
    assert command("study", write(ARMS))[0] == 0
    code, _, told = command("study", write(ARMS + "set: {optimizer.args.lr: 0.1}"))
    assert code == 2
    assert "optimizer.args.lr was 0.5 and is 0.1" in told
    assert "--out" in told
    assert command("study", write(ARMS.replace("seeds: 3", "seeds: 4")))[0] == 0
    assert len(table(here / "studies/study")[0]) == 8
    code, _, told = command("study", write(ARMS))
    assert (code, "seeds" in told) == (2, True)
    code, shown, told = command("study", write(ARMS.replace("test/loss]", "val/loss]").replace("seeds: 3", "seeds: 4")))
    assert (code, "val/loss, lower is better" in shown, told) == (0, True, "")
    assert read_results(here / "studies/study").arms["plain"]["values"]["val/loss"]["n"] == 4
    code, _, told = command("study", write(ARMS.replace("study_parts:Noise", "study_parts:Slow").replace("3", "4")))
    assert (code, "study_parts:Slow" in told) == (2, True)
    shutil.rmtree(here / "studies/study/runs")
    (here / "studies/study/plan.json").unlink()
    code, _, told = command("study", write(ARMS))
    assert (code, "not empty" in told) == (2, True)


@pytest.mark.full
def test_arms_may_be_added_and_are_tried_first_but_not_taken_away(command, write, here):
    assert command("study", write(ARMS))[0] == 0
    kept = {path: path.stat().st_mtime_ns for path in here.glob(f"studies/study/runs/*/*/{RECORD}")}
    more = ARMS.replace("  noisy:", '  slow: {with: {target: "study_parts:Slow"}}\n  noisy:')
    code, _, told = command("study", write(more.replace("study_parts:Slow", "study_parts:Slwo")))
    assert (code, "arm 'slow'" in told) == (2, True)
    assert command("study", write(ARMS))[0] == 0
    code, shown, _ = command("study", write(more))
    assert (code, "of 9 runs" not in shown) == (0, True)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    arms = read_results(here / "studies/study").arms
    assert (list(arms), arms["slow"]["values"]["test/loss"]["n"]) == (["plain", "slow", "noisy"], 3)
    code, _, told = command("study", write(ARMS))
    assert (code, "arms.slow" in told) == (2, True)


def test_what_can_not_be_made_is_refused_before_anything_trains(command, write, here):
    for change, words in (
        ({"optimizer.args.lrr": 1}, "lrr"),
        ({"model.args.in_features": 5}, "5"),
        ({"metrics.strange": {"target": "study_parts:Accuracy"}}, None),
    ):
        text = ARMS.replace("plain: {}", f"plain: {{set: {json.dumps(change)}}}")
        text = text if words else text.replace("test/loss]", "test/loss, test/strange]").replace(
            "noisy: {", f"noisy: {{set: {json.dumps(change)}, "
        )  # fmt: skip
        code, _, told = command("study", write(text))
        assert code == 2
        assert (words or "nothing says which value of 'test/strange' is better") in told
        assert not (here / "studies").exists()


@pytest.mark.full
def test_the_plan_names_all_runs_in_order_and_trains_none(command, write, here):
    text = ARMS + "tune: {optimizer.args.lr: [0.1, 0.5]}\nchoose_by: val/loss"
    code, shown, _ = command("study", write(text), "--plan")
    assert code == 0
    assert not (here / "studies").exists()
    lines = shown.splitlines()
    assert len(lines) == 4 + 6 + 1
    assert "optimizer.args.lr=0.1" in lines[0]
    assert all("to be chosen" in line for line in lines[4:10])
    assert "10 runs left of 10" in lines[-1]
    assert command("study", write(text))[0] == 0
    code, shown, _ = command("study", write(text), "--plan")
    assert shown.splitlines()[-1].startswith("0 runs left of 10")


@pytest.mark.full
def test_each_arm_chooses_its_setting_by_the_result_that_chooses_and_says_of_how_many(command, write, here):
    text = ARMS + "tune: {optimizer.args.lr: [0.001, 0.5]}\nchoose_by: val/loss"
    assert command("study", write(text))[0] == 0
    content = read_results(here / "studies/study").content
    tried = [run for run in content["runs"] if run["folder"].startswith("tune/")]
    assert len(tried) == 4
    assert {run["seed"] for run in tried} == {9999}
    for arm in content["arms"]:
        losses = [run["values"]["val/loss"] for run in tried if run["arm"] == arm["name"]]
        assert losses[1] < losses[0]
        assert (arm["setting"], arm["settings_tried"]) == ("optimizer.args.lr=0.5", 2)
        manifest = json.loads(
            (here / "studies/study/runs" / arm["name"] / "setting-1/seed-0/manifest.json").read_text()
        )
        assert manifest["config"]["optimizer"]["args"]["lr"] == 0.5
    text = text.replace("val/loss", "test/loss")
    shown = command("study", write(text, "other.yaml"))[1]
    assert "test/loss chose the settings and is reported" in shown


@pytest.mark.full
def test_another_order_of_tuned_values_is_refused_as_their_runs_would_change_labels(command, write):
    text = ARMS + "tune: {optimizer.args.lr: [0.1, 0.5]}\nchoose_by: val/loss"
    assert command("study", write(text))[0] == 0
    code, _, told = command("study", write(text.replace("[0.1, 0.5]", "[0.5, 0.1]")))
    assert (code, "optimizer.args.lr" in told) == (2, True)


@pytest.mark.full
def test_an_arm_whose_settings_all_diverge_is_said_to_have_no_runs(command, write, here):
    parts = here / "study_parts.py"
    parts.write_text(parts.read_text().replace("self.right / self.seen", 'float("nan")'))
    text = ARMS + "tune:\n  algorithms[Noise].args.scale: [1, 2]\nchoose_by: val/accuracy\n"
    code, shown, _ = command("study", write(text))
    assert code == 1
    assert "noisy is not trained with the seeds: none of its settings has a finite val/accuracy" in " ".join(
        shown.split()
    )


def test_options_that_a_finished_study_can_not_follow_are_refused(command, here):
    (here / "studies").mkdir()
    code, _, told = command("study", "studies", "--seeds", 9)
    assert (code, "give --seeds with the study's file" in told) == (2, True)


@pytest.mark.full
def test_lengths_are_a_ladder_that_tells_the_cost_to_reach_a_target(command, write, here):
    text = ARMS + "tune: {trainer.max_duration: [1ep, 4ep]}\ntarget: {test/loss: 0.3}"
    assert command("study", write(text))[0] == 0
    plain = read_results(here / "studies/study").arms["plain"]
    assert [(rung["length"], rung["samples"], rung["n"]) for rung in plain["ladder"]] == [
        ("1ep", 48, 3),
        ("4ep", 192, 3),
    ]
    first, last = (rung["values"]["test/loss"] for rung in plain["ladder"])
    assert first > 0.3 > last
    cost = plain["to_target"]["test/loss"]["compute"]
    share = (first - 0.3) / (first - last)
    assert cost["cost"] == pytest.approx(144 * 4**share)
    assert plain["values"]["test/loss"]["mean"] == last


@pytest.mark.full
def test_what_does_not_fit_into_the_budget_is_left_out_and_said(command, write, here):
    slow = ARMS.replace("study_parts:Noise", "study_parts:Slow")
    text = slow.replace('{target: "study_parts:Slow"}', '{target: "study_parts:Slow", args: {seconds: 0.3}}')
    code, shown, _ = command("study", write(text + "budget: 5s"))
    assert code == 75
    runs = table(here / "studies/study")[0]
    assert 0 < sum(run[2] == "finished" for run in runs) < 6
    assert "of 6 runs are not done" in shown


@pytest.mark.full
def test_two_processes_give_the_same_values_as_one(write, here):
    for jobs in (1, 2):
        run = StudyRun(read_study(write(ARMS)), here / f"by-{jobs}")
        run.prepare()
        with processes(jobs, 1) as pool:
            run.train(pool)
    assert table(here / "by-1") == table(here / "by-2")


@pytest.mark.full
def test_csv_markdown_json_and_a_folder_show_the_same(command, write, here):
    _, shown, _ = command("study", write(ARMS))
    folder = here / "studies/study"
    assert command("study", folder)[1] == shown.rpartition("study in")[0]
    rows = list(csv.DictReader((folder / "study.csv").read_text().splitlines()))
    content = json.loads(command("study", folder, "--json")[1])
    assert [(row["arm"], int(row["seed"]), float(row["test/loss"])) for row in rows] == [
        (run["arm"], run["seed"], run["values"]["test/loss"]) for run in content["runs"]
    ]
    markdown = command("study", folder, "--markdown")[1]
    words = content["arms"][1]["values"]["test/loss"]["difference"]["words"]
    assert f"| {words} |" in markdown
    assert command("study", folder, "--csv")[1] == (folder / "study.csv").read_text()


def test_in_python_a_config_gives_the_same_table_and_a_notebook_shows_it(write, here):
    arms = {"plain": {}, "noisy": {"with": ["mine"]}}
    with pytest.raises(EngineError, match="mine"):
        study("run.yaml", arms, out="a")
    arms["noisy"] = {"with": {"target": "study_parts:Noise"}}
    results = study("run.yaml", arms, 2, out="a", report=["test/loss"])
    assert "two seeds show nothing" in str(results)
    assert results._repr_html_().count("<table") == 2
    assert [*results.arms] == ["plain", "noisy"]


def test_in_python_a_function_makes_the_trainers(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    import torch  # noqa: PLC0415
    from study_parts import Accuracy, Noise, make_loader  # noqa: PLC0415

    from engine_core import Trainer  # noqa: PLC0415

    made = []

    def make(seed, algorithms):
        made.append((seed, algorithms))
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 2)
        named = {"noise": Noise}
        return Trainer(
            model,
            make_loader("train"),
            max_duration="2ep",
            loss_fn=torch.nn.functional.cross_entropy,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
            eval_dataloader={"test": make_loader("test")},
            metrics={"accuracy": Accuracy()},
            algorithms=[named[name](**args) for name, args in algorithms],
            seed=seed,
            progress_bar=False,
        )

    results = study(
        make, {"plain": [], "noisy": [("noise", {"scale": 2.0})]}, [4, 7], out="f", report=["test/accuracy"]
    )
    assert [seed for seed, _ in made] == [4, 4, 4, 4, 7, 7]  # first each arm is tried
    assert results.arms["plain"]["values"]["test/accuracy"]["n"] == 2
    assert "the weights before training are equal" in str(results)
    assert study(make, {"plain": [], "noisy": [("noise", {"scale": 2.0})]}, [4, 7], out="f", report=["test/accuracy"])
    assert len(made) == 6
    arms = {"plain": [], "noisy": [("noise", {"scale": 2.0})]}
    with pytest.raises(ArgumentError, match="seeds has to be a number of seeds"):
        study(make, arms, [], out="g", report="test/loss")
    results = study(make, arms, 1, out="h", report="test/acuracy")
    assert "no evaluation gave 'test/acuracy'; did you mean 'test/accuracy'?" in " ".join(str(results).split())
    made.clear()
    assert study(make, arms, 1, out="h", report="test/accuracy").arms["noisy"]["values"]["test/accuracy"]["n"] == 1
    assert made == []
    for arms, words in (({"a": []}, "two arms"), ({"a": [], "b": "x"}, "list"), ({"a": [], "b": [Noise()]}, "made")):
        with pytest.raises((ArgumentError, TypeError), match=words):
            study(make, arms, out="g", report=["test/loss"])


def test_ctrl_c_ends_a_study_in_this_process(here):
    (here / "pressing.py").write_text(
        "from engine_core import Callback\n\n"
        "class CtrlC(Callback):\n    def batch_end(self, state, logger):\n"
        "        if state.timestamp.batch > 2:\n            raise KeyboardInterrupt\n"
    )
    arms = {"a": {"set": {"callbacks": [{"target": "pressing:CtrlC"}]}}, "b": {}}
    with pytest.raises(KeyboardInterrupt):
        study("run.yaml", arms, 2, out="a")
    found = [run["status"] for run in read_results("a").content["runs"]]
    assert found == ["interrupted", "missing", "missing", "missing"]


@pytest.mark.full
def test_two_commands_in_a_folder_do_not_disturb_each_other_and_the_first_claims_it(write, here, monkeypatch):
    run = StudyRun(read_study(write(ARMS)), "out")
    run.prepare()
    program = (
        "from engine_core_study.file import read_study; from engine_core_study.folder import StudyRun\n"
        "run = StudyRun(read_study('study.yaml'), 'out')\n"
        "for _ in range(100): run.write()"
    )
    both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    other = StudyRun(read_study(write(ARMS + "set: {optimizer.args.lr: 0.1}")), "late")
    monkeypatch.setattr(
        "engine_core_study.folder.check_jobs", lambda *_, **__: shutil.copytree(here / "out", here / "late")
    )
    with pytest.raises(ArgumentError, match="holds another study"):
        other.prepare()
