"""The page of a study: what is read, where it is drawn, what it links to, and what can't run or be read."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import engine_core_report
from engine_core.cli import main
from engine_core.errors import ArgumentError
from engine_core_report import read_study, write_study
from engine_core_report.forest import Scale, forest_of, ladders_of

from .left_runs import write_run
from .left_studies import ARMS, STUDY, changed, left_study
from .report_pages import Page
from .test_report_hostile import HOSTILE

NAME = "test/accuracy"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(main, ["report", *arguments])


def study_of(study=STUDY):
    shutil.rmtree("study", ignore_errors=True)
    return read_study(left_study("study", study))


def page_of(study=STUDY):
    write_study(study_of(study), "study/report.html")
    return page_at("study/report.html")


def page_at(path):
    return Page(Path(path).read_text(encoding="utf-8"))


def links_of(page):
    return [attributes["href"] for tag, attributes in page.elements if tag == "a" and attributes["href"][0] != "#"]


def test_the_page_tells_what_was_found_of_what_and_when():
    text = page_of().text
    told = ["A study of 3 arms with 3 seeds and 2 lengths; plain is the baseline", "2020-01-02", "a processor"]
    told += ["higher is better", "gains 0.02 (0.01 to 0.03)", "+0.02 +0.01 to +0.03 0.92 0.005 3 0.002"]
    told += ["optimizer.args.lr=0.1 (of 3)", "x 1.25 (1.00 to 1.50)", "row passes to test/accuracy 0.85", "4,243"]
    told += ["the first batches of each epoch are equal in all arms", "engine-core 0.1.0, torch 2.4.0"]
    assert [part for part in told if part not in text] == []


def test_differences_are_drawn_by_seed_with_their_interval_and_a_mark_for_their_verdict():
    forest = forest_of(study_of(), NAME)
    assert (forest.scale, forest.zero) == (pytest.approx((-0.024, 0.034)), 41.38)
    assert [(row.mark, row.at, row.ends) for row in forest.rows] == [
        ("", None, None),
        ("gains", 75.86, (58.62, 93.1)),
        ("loses", 24.14, (6.9, 41.38)),
    ]
    assert [row.seeds for row in forest.rows] == [[], [67.24, 84.48, 75.86], [15.52, 32.76, 24.14]]
    assert forest.legend == [("gains", "gains"), ("loses", "loses")]


def test_a_mark_is_told_without_colour_and_in_words():
    page = page_of()
    used = [attributes["href"] for tag, attributes in page.elements if tag == "use"]
    assert used == ["#m-gains", "#m-loses"] * 2  # in the plot and in its legend
    assert {use[1:] for use in used} <= set(page.ids)
    labels = [attributes["aria-label"] for tag, attributes in page.elements if attributes.get("role") == "img"]
    assert labels[0] == "mixup against plain: +0.02, interval +0.01 to +0.03; gains 0.02 (0.01 to 0.03)"


def test_an_arm_far_away_does_not_squeeze_the_others():
    far = {**STUDY["arms"][2]["values"][NAME]["difference"], "mean": -0.9, "low": -0.91, "high": -0.89}
    study = changed(f"arms.2.values.{NAME}.difference", far)
    study["arms"].append({**STUDY["arms"][1], "name": "mixup twice"})
    forest = forest_of(study_of(study), NAME)
    assert forest.scale == pytest.approx((-0.0024, 0.0324))
    assert [(row.mark, row.at) for row in forest.rows][1:3] == [("gains", 64.37), ("left", 4)]
    assert ("left", "beyond the plot, to the left") in forest.legend


@pytest.mark.parametrize(
    ("scale", "ticks"), [((-1, 1), ["-0.5", "0", "+0.5"]), ((-1e300, 3e-3), ["-5e+299"]), ((0, 7e-9), ["+2e-09"])]
)
def test_ticks_are_round_and_few(scale, ticks):
    words = [text for _, text in Scale(*scale).ticks()]
    assert words[: len(ticks)] == ticks
    assert len(words) <= 4


def test_lower_is_better_points_to_the_left():
    assert "← lower is better" in page_of(changed("lower_is_better", {NAME: True})).text


def test_a_point_of_each_length_is_drawn_for_each_arm_over_its_cost():
    (chart,) = page_of().data["charts"]
    assert chart["units"] == {"x": "row passes", "t": "CPU s"}
    assert [line["name"] for line in chart["lines"]] == [*ARMS]
    assert {axis: chart["lines"][0][axis] for axis in "xty"} == {"x": [3e3, 6e3], "t": [1.5, 2.5], "y": [0.8, 0.9]}


def test_seconds_are_the_cost_where_a_run_tells_no_row_passes():
    (ladder,) = ladders_of(study_of(changed("arms.1.ladder.0.compute", None)))
    assert ladder.units == {"t": "CPU s"}
    assert ladder.words.startswith("test/accuracy by CPU s: plain 0.8 for 1.5, plain 0.9 for 2.5, mixup 0.82 for 1.5")


def test_a_study_of_which_no_run_has_finished_has_a_page():
    nothing = {"n": 0, "mean": None, "sd": None, "by_seed": {}, "difference": None}
    few = {"verdict": "too few seeds", "n": 0, "mean": None, "low": None, "high": None, "p_corrected": None, "arms": 1}
    few["words"] = "no seed has a value of both"
    study = changed("units.seconds", "GPU s")
    for arm in study["arms"]:
        arm |= {
            "ladder": [],
            "to_target": {},
            "cost": {"seconds": None, "samples": None, "tokens": None, "ratio": None},
        }
        arm["values"] = {NAME: {**nothing, "difference": None if arm["name"] == "plain" else few}}
    study["runs"] = [{**run, "status": "missing", "values": {}, "seconds": None} for run in study["runs"]]
    page = page_of(study)
    assert page.data == {"charts": []}
    assert "18 of 18 runs have not finished" in page.text
    assert "no seed has a value of both" in page.text


def test_runs_with_a_folder_are_linked_and_get_their_pages():
    folders = [run["folder"] for run in STUDY["runs"][:2]]
    study = study_of()
    for folder in folders:
        write_run(study.folder / folder)
    write_study(study, "study/report.html")
    links = links_of(page_at("study/report.html"))
    assert links == ["runs/plain/1ep/seed-0/report.html", "runs/mixup/1ep/seed-0/report.html"]
    assert all("Where the time goes" in page_at(f"study/{link}").text for link in links)
    Path("else where").mkdir()
    write_study(study, "else where/#1.html")
    assert links_of(page_at("else where/#1.html")) == [f"../study/{link}" for link in links]


def test_a_runs_output_is_one_click_away_also_of_a_run_without_a_page():
    study = changed("runs.0", {**STUDY["runs"][0], "status": "failed", "error": "RuntimeError: no room"})
    folder = study_of(study).folder / study["runs"][0]["folder"]
    folder.mkdir(parents=True)
    (folder / "output.txt").write_text("Traceback")
    (Path("study") / study["runs"][1]["folder"]).mkdir(parents=True)
    (Path("study") / study["runs"][1]["folder"] / "output.txt").symlink_to(folder / "output.txt")
    write_study(read_study("study"), "study/report.html")
    page = page_at("study/report.html")
    assert links_of(page) == ["runs/plain/1ep/seed-0/output.txt"]
    assert "plain, 1ep, seed 0 · output of plain, 1ep, seed 0 failed" in page.text
    assert page.text.index("Runs that failed run") < page.text.index("Runs run")


def test_the_numbers_of_a_ladder_have_their_deviation():
    assert "arm length seeds mean sd row passes CPU s plain 1ep 3 0.8 0.013 3,000 1.5" in page_of().text
    study = changed("arms.0.ladder.0.sd", {})
    assert "plain 1ep 3 0.8 - 3,000 1.5" in page_of(study).text


@pytest.mark.parametrize(
    ("tried", "setting", "told"), [(3, "lr=1", "lr=1 (of 3)"), (3, "", "not known (of 3)"), (0, "", "not tuned")]
)
def test_the_chosen_setting_is_told_with_the_number_that_was_tried(tried, setting, told):
    study = changed("arms.1.setting", setting)
    study["arms"][1]["settings_tried"] = tried
    assert "algorithms plain optimizer.args.lr=0.1 (of 3) 2.5" in page_of(study).text
    assert f"mixup {told} 2.5 x 1.25" in page_of(study).text


def test_the_address_of_a_link_has_no_character_with_a_meaning():
    folder = "runs/a b?c#d%e:f/seed-0"
    write_run(study_of(changed("runs.0.folder", folder)).folder / folder)
    write_study(read_study("study"), "study/report.html")
    assert links_of(page_at("study/report.html")) == ["runs/a%20b%3Fc%23d%25e%3Af/seed-0/report.html"]


@pytest.mark.parametrize(
    "folder",
    ["../out", "runs/../../out", "out", "/out", "runs", "runs/linked/seed-0", "runs//../../out", "runs/\0", "\ud800"],
)
def test_a_folder_outside_of_the_studys_runs_is_no_link_and_nothing_is_written_there(folder):
    write_run("out/seed-0")
    write_run("study/out")
    Path("study/runs").mkdir()
    Path("study/runs/linked").symlink_to(Path("out").absolute())
    Path("study/study.json").write_text(json.dumps(changed("runs.0.folder", folder)))
    write_study(read_study("study"), "study/report.html")
    assert links_of(page_at("study/report.html")) == []
    assert [str(path) for path in Path().rglob("report.html")] == ["study/report.html"]


def test_a_run_that_can_not_be_shown_is_told_and_the_others_are():
    study = study_of()
    damaged, foreign, whole = (write_run(study.folder / run["folder"]) for run in STUDY["runs"][:3])
    (damaged / "manifest.json").write_text("{")
    (foreign / "report.html").write_text("mine")
    write_study(study, "study/report.html")
    page = page_at("study/report.html")
    assert links_of(page) == ["runs/no-warmup/1ep/seed-0/report.html"]
    assert "plain, 1ep, seed 0 has no page:" in page.text
    assert "mixup, 1ep, seed 0 has no page:" in page.text
    assert (foreign / "report.html").read_text() == "mine"
    write_study(study, "study/report.html", force=True)
    assert len(links_of(page_at("study/report.html"))) == 2
    assert whole.is_dir()


def test_the_error_of_a_run_and_its_status_are_in_the_table_and_runs_that_chose_have_their_own():
    failed = {**STUDY["runs"][0], "status": "failed", "error": "RuntimeError: no room", "values": {}}
    tuned = {**STUDY["runs"][1], "folder": "tune/mixup/setting-1/seed-0"}
    text = page_of(changed("runs", [failed, tuned])).text
    assert re.search(
        r"Runs that failed run status test/accuracy CPU s error plain, 1ep, seed 0 failed - 2.5 RuntimeError: no", text
    )
    assert "Runs that chose the settings run status" in text
    assert "1 of 2 runs have not finished" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text_wherever_it_comes_from(text):
    def with_text(value, key=""):
        if isinstance(value, dict):
            names = dict.fromkeys(value) if key in ("", "units", "cost", "ladder", "arms", "runs") else {}
            return {name if name in names or name in KEPT else text: with_text(v, name) for name, v in value.items()}
        if isinstance(value, list):
            return [with_text(each, key) for each in value]
        return text if isinstance(value, str) and key != "folder" else value

    page, calm = page_of(with_text(STUDY)), page_of()
    assert page.scripts[1:] == calm.scripts[1:]
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in calm.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not set("\u2028\u202e\x1b") & set("".join(page.texts))
    assert page.data["charts"][0]["lines"]


KEPT = {"median", "low", "high", "n", "adjacent", "verdict", "mean", "sd", "p_corrected", "arms", "words", "by_seed"}
KEPT |= {"difference", "compute", "seconds", "cost", "bound", "target", "without_arm", "p", "left_out"}


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ([], "no schema number"),
        ({}, "no schema number"),
        ({**STUDY, "schema": 2}, "has schema 2, this engine-core-report reads schema 1; install a newer one"),
        ({"schema": 1}, "is damaged: written: Field required; the study's command writes it anew"),
        (changed("baseline", "other"), "is damaged: no arm is the baseline"),
        (changed("report", ["test/loss"]), "is damaged: an arm lacks a reported value"),
        (changed("units", {"seconds": "s"}), "is damaged: a unit is missing"),
        (changed("arms.1.cost.seconds", "2"), "is damaged: arms.1.cost.seconds: Input should be a valid number"),
        (changed("arms.1.ladder", None), "arms.1.ladder: Input should be a valid list"),
        (changed("arms.0.name", 1), "arms.0.name: Input should be a valid string"),
        (changed("seeds", [1.5]), "seeds.0: Input should be a valid integer"),
        (changed("arms.0.ladder.0.compute", float("nan")), "arms.0.ladder.0.compute: Input should be"),
        (changed("arms.0.ladder.0.compute", 1e301), "arms.0.ladder.0.compute: Input should be less than"),
        (changed("arms.0.ladder.0.compute", 10**400), "arms.0.ladder.0.compute: "),
    ],
)
def test_a_damaged_study_is_refused_with_what_is_wrong(study, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        study_of(study)


def test_what_a_later_version_adds_is_passed_over():
    assert study_of(changed("arms.1.cost.joules", 3)).arms[1].cost == study_of().arms[1].cost


@pytest.mark.parametrize("arms", [slice(None), slice(1, 2)], ids=["of all arms", "of one"])
@pytest.mark.parametrize("size", [1e300, -1e300, 5e-324, 0.0])
def test_extreme_numbers_are_drawn_at_the_edge(size, arms):
    study = changed("target", {NAME: size})
    for arm in study["arms"][arms]:
        value = arm["values"][NAME]
        value |= {"mean": size, "sd": size, "by_seed": {"0": size, "1": -size}}
        if value["difference"]:
            value["difference"] |= {"mean": size, "low": -size, "high": size}
        arm["cost"] |= {"seconds": size, "samples": size}
        arm["ladder"][0] |= {"compute": size, "seconds": size, "values": {NAME: size}}
    page = page_of(study)
    places = [
        float(text[:-1]) for tag, told in page.elements for text in told.values() if re.fullmatch(r"\S+%", text or "")
    ]
    assert len(places) > 20
    assert all(-10 <= place <= 110 for place in places)


def test_the_command_writes_the_page_into_the_folder_and_prints_its_path():
    left_study("study")
    result = run("study")
    assert (result.exit_code, result.output) == (0, "study/report.html\n")
    assert run("study").exit_code == 0  # its own page is overwritten
    assert run("study", "--out", "page.html").output == "page.html\n"
    assert links_of(page_at("page.html")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "one"], "a study has a page of its own: give its folder alone"),
        (["damaged"], "is damaged, it is not JSON"),
        (["study", "--out", "mine.html"], "'mine.html' is there and is not a report"),
    ],
)
def test_what_is_refused_has_exit_code_2(arguments, message):
    left_study("study")
    write_run("one")
    (left_study("damaged") / "study.json").write_text("{")
    Path("mine.html").write_text("mine")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_folder_without_a_study_is_told_to_be_none():
    write_run("one")
    with pytest.raises(ArgumentError, match=r"'one' holds no study\.json: it is not a study's folder"):
        read_study("one")


def test_the_package_that_trains_studies_is_not_needed():
    for path in Path(engine_core_report.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) engine_core_study", path.read_text(encoding="utf-8"), re.MULTILINE)
