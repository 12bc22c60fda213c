"""Files that runs have logged, on the page of a report: which are shown, how, and how many."""

import base64

import pytest

from engine_core_report import read_run, render
from engine_core_report.sections import MOST_BYTES_OF_FILES

from .left_runs import write_run
from .report_pages import Page, page_of

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
