"""The page of a study in a real browser: what is drawn and read out, narrow and dark, with keys, for axe-core."""

import itertools
import re

import pytest
from left_runs import write_run
from left_studies import ARMS, STUDY, changed, left_study

from engine_core_report import read_study, write_study

NAME = "test/accuracy"
LONG = "an arm with a name that is much longer than the column of a narrow screen_and_has_no_space_to_break_at"
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
ROW = "document.querySelectorAll('.forest tbody tr')[{}]"


def page_at(folder, study=STUDY, *, runs=2):
    """Write the page of a study of which some runs have a folder, and return its address."""
    left_study(folder, study)
    for run in study["runs"][:runs]:
        write_run(folder / run["folder"])
    write_study(read_study(folder), folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.fixture
def address(tmp_path):
    return page_at(tmp_path / "study")


def test_it_is_drawn_and_nothing_is_asked_for_or_complained_of(show, address):
    opened = show(address)
    assert opened.value("document.documentElement.dataset.ready") == "1"
    assert opened.value("document.querySelectorAll('figure canvas').length") == 1
    assert [url for url in opened.asked if not url.startswith("data:")] == [address]
    assert opened.complaints == []


def test_a_mark_and_its_interval_lie_where_the_axis_says(show, address):
    opened = show(address)
    ticks, rows = opened.value("""() => {
      const middle = (one) => { const box = one.getBoundingClientRect(); return box.left + box.width / 2; };
      const all = (name, within = document) => [...within.querySelectorAll(name)];
      return [
        Object.fromEntries(all(".forest text").map((tick) => [tick.textContent, middle(tick)])),
        all(".forest tbody tr").slice(1).map((row) => {
          const line = row.querySelector(".whisker").getBoundingClientRect();
          return [line.left, middle(row.querySelector("use")), line.right];
        }),
      ];
    }""")
    one = (ticks["+0.02"] - ticks["0"]) / 2  # a hundredth, in pixels
    for row, middle in zip(rows, (2, -1), strict=True):
        assert row == pytest.approx([ticks["0"] + one * (middle + end) for end in (-1, 0, 1)], abs=1.5)


def test_zero_is_one_line_through_all_arms(show, address):
    opened = show(address)
    lines = opened.value(
        "[...document.querySelectorAll('.forest tbody .zero')].map((l) => l.getBoundingClientRect().toJSON())"
    )
    assert len({round(line["x"]) for line in lines}) == 1
    assert all(abs(a["bottom"] - b["top"]) <= 1.5 for a, b in itertools.pairwise(lines))


def test_marks_differ_in_shape_and_colour(show, address):
    opened = show(address)
    looks = [
        opened.value(f"""() => {{
          const use = {ROW.format(number)}.querySelector("use");
          const shape = document.querySelector(use.getAttribute("href"));
          return [shape.getAttribute("d"), getComputedStyle(use).fill];
        }}""")
        for number in (1, 2)
    ]
    assert looks[0][0] != looks[1][0]
    assert looks[0][1] != looks[1][1]


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_does_not_scroll_sideways_and_the_plot_is_seen_at_once(show, tmp_path, width):
    study = changed("arms.1.name", LONG)
    study["versions"][LONG] = LONG
    study["runs"][0] |= {"error": LONG, "name": LONG}
    opened = show(page_at(tmp_path / "study", study), width=width)
    assert opened.value("document.documentElement.scrollWidth") <= width
    assert opened.value("document.querySelector('.forest svg').getBoundingClientRect().right") <= width
    assert opened.value("document.querySelector('.forest svg').getBoundingClientRect().width") >= 150


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1280, "dark"), (1280, "light")])
def test_axe_finds_nothing(show, axe, address, width, scheme):
    opened = show(address, width=width, color_scheme=scheme)
    opened.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert opened.findings(axe) == []


def test_costs_are_read_with_keys_in_both_units(show, address):
    opened = show(address)
    plot = opened.page.locator("figure .plot")
    plot.focus()
    plot.press("Home")
    assert opened.said() == "3,000 row passes: plain 0.8, mixup 0.82, no warmup 0.79"
    plot.press("End")
    assert opened.said() == "6,000 row passes: plain 0.9, mixup 0.92, no warmup 0.89"
    opened.page.select_option("#axis", "t")
    plot.press("Home")
    assert opened.said() == "1.5 CPU s: plain 0.8, mixup 0.82, no warmup 0.79"


def test_all_that_can_be_used_is_reached_with_tab(show, address):
    opened = show(address)
    reached = set()
    for _ in range(40):
        opened.page.keyboard.press("Tab")
        reached.add(opened.value("(document.activeElement.className || document.activeElement.tagName) + ''"))
    assert {"skip", "A", "scroll", "SELECT", "INPUT", "BUTTON", "plot", "SUMMARY"} <= reached


def test_each_run_with_a_folder_is_one_click_away(show, address):
    opened = show(address)
    links = opened.page.locator("#runs a")
    assert links.all_text_contents() == [run["name"] for run in STUDY["runs"][:2]]
    links.nth(1).click()
    opened.page.wait_for_selector("html[data-ready='2']")
    assert opened.page.url.endswith("/study/runs/mixup/1ep/seed-0/report.html")


def test_a_run_that_failed_is_told_at_once_with_its_error_and_its_output(show, axe, tmp_path):
    study = changed(
        "runs.5", {**STUDY["runs"][5], "status": "failed", "error": "RuntimeError: no room", "seconds": None}
    )
    output = tmp_path / "study" / study["runs"][5]["folder"] / "output.txt"
    page_at(tmp_path / "study", study, runs=0)
    output.parent.mkdir(parents=True)
    output.write_text("Traceback")
    write_study(read_study(tmp_path / "study"), tmp_path / "study" / "report.html")
    opened = show((tmp_path / "study" / "report.html").as_uri(), width=360)
    assert opened.value("document.documentElement.scrollWidth") <= 360
    assert opened.findings(axe) == []
    opened.page.get_by_role("link", name="Which, and why").press("Enter")
    assert re.match(r"Runs that failed\s.*RuntimeError: no room", opened.page.inner_text("#runs"), re.DOTALL)
    opened.page.get_by_role("link", name=f"output of {study['runs'][5]['name']}").press("Enter")
    opened.page.wait_for_url("**/output.txt")
    assert opened.page.inner_text("body") == "Traceback"


def test_it_is_dark_where_the_system_is_and_light_on_paper(show, address):
    opened = show(address, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.value(ground) == "rgb(21, 23, 26)"
    opened.page.emulate_media(media="print")
    assert opened.value(ground) == "rgb(255, 255, 255)"
    assert opened.page.pdf().startswith(b"%PDF")


def test_without_scripts_differences_are_drawn_and_the_numbers_of_costs_are_there(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert "scripts are off" in page.inner_text("header")
    assert page.locator(".forest use").count() == len(ARMS) - 1
    page.locator("figure summary").click()
    assert re.search(r"plain\s+1ep\s+3\s+0.8\s+0.013\s+3,000\s+1.5", page.inner_text("figure"))
    context.close()


def test_what_is_read_out_has_a_name(show, address):
    opened = show(address)
    told = "mixup against plain: +0.02, interval +0.01 to +0.03; gains 0.02 (0.01 to 0.03)"
    assert told in opened.page.locator(".forest").aria_snapshot()
    assert "test/accuracy by row passes: plain 0.8 for 3,000" in opened.page.locator("figure").aria_snapshot()


def test_hostile_names_run_nothing(show, tmp_path):
    study = changed("arms.1.name", HOSTILE)
    study |= {"devices": [HOSTILE], "notes": [HOSTILE], "versions": {HOSTILE: HOSTILE}}
    study["arms"][1] |= {"setting": HOSTILE, "algorithms": [HOSTILE]}
    study["runs"][0] |= {"name": HOSTILE, "error": HOSTILE, "status": HOSTILE}
    opened = show(page_at(tmp_path / "study", study))
    opened.page.locator("figure .plot").press("Home")
    assert opened.value("window.hacked") is None
    assert "<img src=x" in opened.page.inner_text("body")
    assert opened.complaints == []


def test_a_study_without_costs_has_a_page_that_is_ready(show, axe, tmp_path):
    study = changed("arms.0.ladder", [])
    for arm in study["arms"]:
        arm["ladder"] = []
    opened = show(page_at(tmp_path / "study", study, runs=0))
    assert opened.value("document.documentElement.dataset.ready") == "0"
    assert opened.findings(axe) == []
    assert opened.complaints == []
