"""The page of a report: its sections, its charts, the files that a run has logged, and its size."""

import base64
import hashlib
import json
import re

import pytest

from engine_core.errors import ArgumentError
from engine_core_report import read_run, render, write_report
from engine_core_report.charts import MOST_LINES
from engine_core_report.sections import MOST_BYTES_OF_FILES

from .left_runs import EVENTS, MANIFEST, METRICS, TIMING, append, write_run
from .report_pages import Page, lines_of, page_of

SECTIONS = ["summary", "curves", "time", "algorithms", "order", "checkpoints", "config"]


def save_checkpoint(folder, name="ep1-ba2", attempt=0):
    files = ("model.safetensors", "average/model.safetensors")
    for file in files:
        (folder / "checkpoints" / name / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / name / file).write_bytes(b"x" * 1000)
    manifest = {"schema": 3, "attempt": attempt, "files": {file: {"bytes": 1000} for file in files}}
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "checkpoints" / name / "manifest.json").write_text(json.dumps({**manifest, "checksum": checksum}))


def test_the_sections_are_these_in_this_order(tmp_path):
    folder = write_run(tmp_path / "run")
    save_checkpoint(folder)
    ids = page_of(folder).ids
    assert [name for name in ids if name in SECTIONS] == SECTIONS
    assert len(ids) == len(set(ids))


def test_a_section_with_nothing_to_show_is_left_out(tmp_path):
    bare = {**MANIFEST, "order": {}}
    page = page_of(write_run(tmp_path / "run", manifest=bare, metrics=None, events=None, results=None, timing=None))
    assert [name for name in page.ids if name in SECTIONS] == ["summary", "config"]
    assert {a["href"][1:] for tag, a in page.elements if tag == "a"} == {"summary", "config", "main"}
    assert "unfinished" in page.text


def test_values_of_training_and_evaluation_share_a_chart_and_constants_have_none(tmp_path):
    extra = [
        {"step": s, "seconds": s, "own/a": s, "own/same": 1, "train/group/0": s, "train/group/1": s} for s in (5, 6)
    ]
    once = {"step": 7, "seconds": 9, "own/once": 1, "train/loss": 0.25}
    page = page_of(write_run(tmp_path / "run", metrics=[*METRICS, *extra, once]))
    drawn = [(chart["title"], [line["name"] for line in chart["lines"]]) for chart in page.data["charts"]]
    assert drawn == [
        ("loss", ["train/loss", "eval/loss"]),
        ("lr", ["train/lr/0"]),
        ("group", ["train/group/0", "train/group/1"]),
        ("batches per second", ["speed/batches per second"]),
        ("a", ["own/a"]),
    ]
    assert "evaluation is included" in page.text
    assert "own/same 1" in page.text
    assert "own/once 1" in page.text


def test_a_line_has_what_is_drawn(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert page.data["charts"][0] == {
        "title": "loss",
        "lines": [
            {"name": "train/loss", "colour": 0, "dash": 0, "x": [0, 1, 2, 3], "t": [1.0, 2.0, 3.0, 4.0]}
            | {"y": [2.0, 1.0, 0.75, 0.5], "low": [], "high": []},
            {"name": "eval/loss", "colour": 1, "dash": 1, "x": [2, 4], "t": [2.5, 4.5]}
            | {"y": [0.125, 0.25], "low": [], "high": []},
        ],
        "resumed": {"x": [], "t": []},
    }


def test_each_chart_has_words_a_live_region_and_a_table(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    charts = [a for tag, a in page.elements if tag == "figure"]
    plots = [a for tag, a in page.elements if a.get("class") == "plot"]
    assert [a["data-chart"] for a in charts] == [str(n) for n in range(len(page.data["charts"]))]
    assert [a["tabindex"] for a in plots] == ["0"] * len(charts)
    assert plots[0]["aria-label"] == (
        "loss: train/loss from 2 to 0.5, lowest 0.5, highest 2; "
        "eval/loss from 0.125 to 0.25, lowest 0.125, highest 0.25"
    )
    assert sum("aria-live" in a for _, a in page.elements) == len(charts)
    assert "train/loss 2 0.5 2 0.5 4" in page.text


def test_the_time_is_cut_into_these_parts(tmp_path):
    text = page_of(write_run(tmp_path / "run")).text
    parts = re.findall(r"(\w+) (\d+\.\d) % (\d\.\d\d s|\d+\.\d+ ms) \d", text)
    assert parts == [
        ("data", "10.0", "1.00 s"),
        ("forward", "20.0", "2.00 s"),
        ("loss", "5.0", "500.000 ms"),
        ("backward", "30.0", "3.00 s"),
        ("optimizer", "5.0", "500.000 ms"),
        ("algorithms", "15.0", "1.50 s"),
        ("callbacks", "2.5", "250.000 ms"),
        ("evaluation", "7.5", "750.000 ms"),
        ("rest", "5.0", "500.000 ms"),
    ]


def test_an_algorithm_is_shown_with_its_runs_and_its_cost(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert "A before_forward 3 75.0 %" in page.text
    assert "1.50 s 500.000 ms" in page.text
    assert "eval/loss 0.25 0.125 step 2, epoch 1" in page.text
    labels = [a["aria-label"] for _, a in page.elements if a.get("class") == "strip"]
    assert labels == ["A/BEFORE_FORWARD ran 3 times in 4 steps, from 0.0 % to 100.0 % of the run"]


def test_a_timing_of_a_resumed_attempt_says_so(tmp_path):
    page = page_of(write_run(tmp_path / "run", timing={**TIMING, "resumed_at": 1200}))
    assert "of the attempt that began after 1,200 batches" in page.text


def test_checkpoints_are_listed_oldest_first_with_marks(tmp_path):
    folder = write_run(tmp_path / "run")
    for name in ("ep1-ba2", "ep10-ba20", "ep2-ba4"):
        save_checkpoint(folder, name)
    (folder / "checkpoints" / "latest").write_text("ep10-ba20\n")
    (folder / "checkpoints" / "best").write_text("ep2-ba4\n")
    append(folder / "checkpoints" / "ep1-ba2" / "model.safetensors", "more")
    (folder / "checkpoints" / "ep9-ba9").symlink_to(folder)
    text = page_of(folder).text
    assert re.findall(r"(ep\d+-ba\d+) ((?:latest|best|damaged) )?\d+ \d+ 2\.\d+ kB", text) == [
        ("ep1-ba2", "damaged "),
        ("ep2-ba4", "best "),
        ("ep10-ba20", "latest "),
    ]
    assert "the checkpoint ep1-ba2 is damaged" in text
    assert "ep9-ba9" not in text


@pytest.mark.parametrize("change", [("1000", "1001"), ("{", "")])
def test_a_checkpoint_whose_manifest_was_changed_is_damaged(tmp_path, change):
    folder = write_run(tmp_path / "run")
    save_checkpoint(folder)
    file = folder / "checkpoints" / "ep1-ba2" / "manifest.json"
    file.write_text(file.read_text().replace(*change, 1))
    assert [saved.marks for saved in read_run(folder).checkpoints] == [("damaged",)]


def test_several_runs_lie_over_each_other_with_a_colour_and_a_dash_each(tmp_path):
    changed = {**MANIFEST, "seed": 2}
    page = page_of(write_run(tmp_path / "one"), write_run(tmp_path / "two", manifest=changed))
    lines = lines_of(page)
    assert {name: (line["colour"], line["dash"]) for name, line in lines.items() if "loss" in name} == {
        "one train/loss": (0, 0),
        "one eval/loss": (0, 3),
        "two train/loss": (1, 1),
        "two eval/loss": (1, 4),
    }
    assert "What differs: one → two" in page.text
    assert "setting seed 1 2" in page.text


def test_runs_called_alike_are_told_apart_and_one_given_twice_is_drawn_once(tmp_path):
    folders = [write_run(tmp_path / place / "run") for place in ("a", "b")]
    page = page_of(*folders, folders[0] / "manifest.json", tmp_path / "a" / ".." / "a" / "run")
    assert [line["name"] for line in page.data["charts"][1]["lines"]] == ["a/run", "b/run"]


def test_a_chart_has_at_most_24_lines_and_says_how_many_are_left_out(tmp_path):
    rows = [{"step": s, "seconds": s, **{f"train/lr/{i}": s + i for i in range(30)}} for s in range(3)]
    page = page_of(write_run(tmp_path / "run", metrics=rows))
    (chart,) = page.data["charts"]
    assert len(chart["lines"]) == MOST_LINES == 24
    assert len({(line["colour"], line["dash"]) for line in chart["lines"]}) == 24
    assert "6 more lines are not drawn" in page.text


def test_warnings_and_damage_are_told(tmp_path):
    warning = {"kind": "warning", "step": 1, "epoch": 0, "seconds": 1, "category": "UserWarning", "message": "odd <b>"}
    folder = write_run(tmp_path / "run", events=[*EVENTS, warning])
    append(folder / "metrics.jsonl", "damaged\n")
    append(folder / "metrics.jsonl", '{"step": 5, "seconds": 6, "train/loss": null}\n')
    text = page_of(folder).text
    for said in ("UserWarning: odd <b>", "1 line of metrics.jsonl", "train/loss was not finite 1 time"):
        assert said in text


def long_run(folder, lines=100_000):
    values = lambda s: {"train/loss": 1 / (1 + s), "train/lr/0": s / 3, "own/norm": (s * 7919 % 1000) / 7}  # noqa: E731
    metrics = [{"step": s, "seconds": s / 100, **values(s)} for s in range(lines)]
    metrics[54_321]["train/loss"] = 99.0
    return write_run(folder, metrics=metrics)


@pytest.mark.full
def test_a_page_of_100_000_lines_is_below_500_kb_and_loses_no_spike(tmp_path):
    folder = long_run(tmp_path / "run")
    write_report([read_run(folder)], folder / "report.html")
    content = (folder / "report.html").read_bytes()
    assert len(content) < 500_000
    line = lines_of(Page(content.decode()))["train/loss"]
    assert len(line["x"]) == len(line["low"]) == 1000
    assert max(line["high"]) == 99.0
    assert line["x"][:2] == [99, 199]


def test_a_report_without_a_run_is_refused():
    with pytest.raises(ArgumentError, match="a report needs a run"):
        render([])


PNG = b"\x89PNG\r\n\x1a\n and so on"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


def keep(folder, step, name, content=b"x"):
    path = folder / "files" / str(step) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def test_a_run_without_files_has_no_such_section(run):
    assert "files" not in page_of(run).ids


def test_the_latest_of_each_name_comes_first_and_then_those_before(run):
    for step, name in ((9, "b.txt"), (10, "a.txt"), (100, "b.txt"), (20, "b.txt")):
        keep(run, step, name)
    assert [(file.name, file.step) for file in read_run(run).files] == [
        ("a.txt", 10),
        ("b.txt", 100),
        ("b.txt", 20),
        ("b.txt", 9),
    ]
    page = page_of(run)
    assert page.ids.index("curves") < page.ids.index("files") < page.ids.index("time")
    assert page.text.count("b.txt step") == 3


def test_pictures_are_images_and_the_rest_is_text(run):
    keep(run, 1, "a.png", PNG)
    keep(run, 1, "b.svg", SVG)
    keep(run, 1, "c.json", b'{"<b>": 1}')
    keep(run, 1, "d.txt", "two\tcolumns\n\u202eturned\n".encode() + b"\xff")
    page = page_of(run)
    images = {attributes["alt"]: attributes["src"] for tag, attributes in page.elements if tag == "img"}
    assert images["a.png of step 1"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert images["b.svg of step 1"] == f"data:image/svg+xml;base64,{base64.b64encode(SVG).decode()}"
    assert '{"<b>": 1}' in page.texts
    assert "two\tcolumns\n\\u202eturned\n\ufffd" in page.texts
    assert not any("alert" in script for script in page.scripts)


def test_what_is_no_png_is_left_out_and_counted(run):
    keep(run, 1, "a.png", SVG)
    keep(run, 1, "b.txt")
    text = page_of(run).text
    assert "a.png" not in text
    assert "1 more file is in the run's folder, and not on this page." in text


def test_a_page_has_at_most_2_mb_of_files_the_latest_of_each_run_first(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        for step in (1, 2):
            keep(run, step, "large.txt", b"%d" % step * (MOST_BYTES_OF_FILES // 2 - 10))
        keep(run, 1, "small.txt", b"small")
    html = render([read_run(run) for run in runs])
    text = Page(html).text
    assert text.count("large.txt step 2") == 2
    assert text.count("large.txt step 1") == 0
    assert text.count("small.txt step 1") == 2
    assert "2 more files are in the runs' folders" in text
    assert len(html) < MOST_BYTES_OF_FILES + 200_000


@pytest.mark.parametrize("name", ["a.html", ".b.txt", "d<b>.txt"])
def test_what_log_file_would_refuse_is_passed_over(run, name):
    keep(run, 1, name)
    assert read_run(run).files == []


def test_links_folders_and_odd_steps_are_passed_over(run, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    for step in ("1", "-2", "3a", "9" * 19):
        keep(run, step, "kept.txt")
    (run / "files" / "1" / "linked.txt").symlink_to(tmp_path / "secret.txt")
    (run / "files" / "2").symlink_to(tmp_path)
    (run / "files" / "1" / "folder.txt").mkdir()
    (run / "files" / "3").write_text("a file")
    assert [(file.name, file.step) for file in read_run(run).files] == [("kept.txt", 1)]
    assert "secret" not in page_of(run).text


def test_a_folder_that_is_a_link_is_not_followed(run, tmp_path):
    keep(tmp_path / "other", 1, "a.txt")
    (run / "files").symlink_to(tmp_path / "other" / "files")
    assert read_run(run).files == []


def test_a_file_that_is_gone_by_now_is_shown_empty(run):
    keep(run, 1, "a.txt", b"once")
    data = read_run(run)
    (run / "files" / "1" / "a.txt").unlink()
    assert "a.txt step 1, 0 B" in Page(render([data])).text
