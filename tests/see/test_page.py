"""The page of a report in a real browser: what is drawn, read out, zoomed, and what can't run; for all who read it."""

import json
import re

import pytest
from left_runs import MANIFEST, write_run

from .runs_to_see import LONG, STEPS, full_run, page_at, values

CHARTS = 4
TONE = """(name) => {
  const canvas = document.querySelector("figure canvas");
  const colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    found += data[at] === r && data[at + 1] === g && data[at + 2] === b && data[at + 3] === 255;
  }
  return found;
}"""


PICTURES = "[...document.querySelectorAll('figure canvas')].map((canvas) => canvas.toDataURL())"


@pytest.fixture
def address(tmp_path):
    return page_at(full_run(tmp_path / "run"))


def test_all_charts_are_drawn_and_nothing_is_asked_for_or_complained_of(show, address):
    opened = show(address)
    assert opened.value("document.documentElement.dataset.ready") == str(CHARTS)
    assert opened.value("document.querySelectorAll('figure canvas').length") == CHARTS
    assert [url for url in opened.asked if not url.startswith("data:")] == [address]
    assert opened.complaints == []
    assert opened.value(TONE, "--c0") > 50


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_scrolls_sideways(show, tmp_path, width):
    first = full_run(tmp_path / "a_run_whose_name_is_longer_than_the_screen_of_a_phone_is_wide")
    second = full_run(tmp_path / "second", manifest={**MANIFEST, "seed": 2, "config": {LONG: LONG}})
    opened = show(page_at(first, second), width=width)
    assert opened.value("document.documentElement.scrollWidth") <= width
    assert (
        opened.value(
            "Math.max(...[...document.querySelectorAll('figure canvas')].map((c) => c.getBoundingClientRect().right))"
        )
        <= width
    )


def test_the_page_follows_the_systems_scheme_while_it_is_open(show, address):
    opened = show(address, color_scheme="light")
    grounds, tones = [], []
    for scheme in ("light", "dark", "light"):
        opened.page.emulate_media(color_scheme=scheme)
        opened.page.wait_for_timeout(100)
        grounds.append(opened.value("getComputedStyle(document.body).backgroundColor"))
        tones.append(opened.value(TONE, "--c0") > 50)
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 23, 26)", "rgb(255, 255, 255)"]
    assert tones == [True] * 3


def test_each_chart_is_reached_with_tab_and_read_with_keys(show, address):
    opened = show(address)
    page = opened.page
    reached = []
    for _ in range(200):
        page.keyboard.press("Tab")
        chart = opened.value(
            "document.activeElement.matches('.plot') ? document.activeElement.closest('figure').dataset.chart : null"
        )
        if chart is not None and chart not in reached:
            reached.append(chart)
    assert reached == [str(number) for number in range(CHARTS)]
    page.locator("figure .plot").first.focus()
    page.keyboard.press("Home")
    assert opened.said() == "step 0: train/loss 2"
    page.keyboard.press("ArrowRight")
    assert opened.said() == "step 1: train/loss 1"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert opened.said() == "step 0: train/loss 2"
    page.keyboard.press("End")
    assert opened.said() == f"step {STEPS - 1}: train/loss 0.033333, eval/loss 0.05"
    page.keyboard.press("ArrowRight")
    assert opened.said().startswith(f"step {STEPS - 1}:")
    page.keyboard.press("ArrowLeft")
    assert opened.said().startswith(f"step {STEPS - 2}:")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    assert opened.said().startswith("step 3:")
    page.locator("figure .plot").first.press("x")
    assert opened.said().startswith("step 3:")


def test_the_axis_can_be_seconds(show, address):
    opened = show(address)
    opened.page.select_option("#axis", "t")
    opened.page.locator("figure .plot").first.press("Home")
    opened.page.locator("figure .plot").first.press("ArrowRight")
    assert opened.said() == "0.25 seconds: train/loss 1"


def test_smoothing_is_drawn_and_without_bias_at_the_beginning(show, address):
    opened = show(address)
    opened.page.locator("#smooth").fill("0.5")
    first = opened.page.locator("figure .plot").first
    first.press("Home")
    assert opened.said() == "step 0: train/loss 2"
    first.press("ArrowRight")
    assert opened.said() == "step 1: train/loss 1.3333"  # 2 and 1, weighted by 1/4 and 1/2


def test_a_drag_zooms_and_the_button_shows_all_again(show, address):
    opened = show(address)
    over = opened.page.locator("figure .u-over").first
    over.scroll_into_view_if_needed()
    before = opened.value(PICTURES)[0]
    box = over.bounding_box()
    opened.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 50)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=4)
    opened.page.mouse.up()
    zoomed = opened.until(f"(({PICTURES})[0] !== {json.dumps(before)}) && ({PICTURES})[0]")
    opened.page.locator("#smooth").fill("0.2")
    opened.page.locator("#smooth").fill("0")
    opened.until(f"({PICTURES})[0] === {json.dumps(zoomed)}")
    opened.page.locator("#reset").click()
    opened.until(f"({PICTURES})[0] === {json.dumps(before)}")


def test_a_logarithmic_axis_is_for_charts_of_positive_values(show, address):
    opened = show(address)
    pictures = opened.value(PICTURES)
    opened.page.check("#log")
    changed = [now != before for now, before in zip(opened.value(PICTURES), pictures, strict=True)]
    titles = opened.page.locator("figcaption").all_text_contents()
    assert changed[titles.index("loss")]
    assert not changed[titles.index("kept")]


def test_a_resume_is_a_dotted_line(show, tmp_path):
    pictures = []
    for name, resumes in (("with", True), ("without", False)):
        run = full_run(tmp_path / name)
        if not resumes:
            (run / "metrics.jsonl").write_text(
                "".join(
                    line
                    for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True)
                    if '"resume"' not in line
                )
            )
        pictures.append(show(page_at(run)).value(PICTURES)[0])
    assert pictures[0] != pictures[1]


HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


def test_hostile_names_run_nothing(show, tmp_path):
    manifest = {**MANIFEST, "run_name": HOSTILE, "device": HOSTILE, "config": {HOSTILE: HOSTILE}}
    manifest["order"] = {"init": [{"algorithm": HOSTILE, "name": HOSTILE, "why": HOSTILE}]}
    lines = [{**line, HOSTILE: line["step"], f"train/{HOSTILE}": line["step"]} for line in values()]
    warning = {"kind": "warning", "step": 1, "epoch": 0, "seconds": 1, "category": HOSTILE, "message": HOSTILE}
    run = full_run(tmp_path / "run", manifest=manifest, metrics=lines, events=[warning])
    opened = show(page_at(run))
    opened.page.locator("figure .plot").nth(2).press("Home")
    assert opened.value("window.hacked") is None
    assert "<img src=x" in opened.page.inner_text("body")
    assert opened.complaints == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [(tmp_path / "run/report.html").as_uri()]


def test_what_the_policy_forbids_does_not_run_even_if_it_were_in_the_page(show, tmp_path):
    run = full_run(tmp_path / "run")
    address = page_at(run)
    html = (run / "report.html").read_text(encoding="utf-8")
    injected = "<script>window.hacked=1</script><img src='https://example.org/x.png' onerror='window.hacked=1'>"
    (run / "report.html").write_text(html.replace("<main ", f"{injected}<main "), encoding="utf-8")
    opened = show(address)
    assert opened.value("window.hacked") is None
    assert len([text for text in opened.complaints if "Content Security Policy" in text]) >= 2


def test_files_are_shown_and_an_svg_runs_nothing(show, address):
    opened = show(address)
    sizes = opened.value(
        "[...document.querySelectorAll('#files img')].map((i) => [i.alt, i.naturalWidth, i.naturalHeight])"
    )
    assert sizes == [["confusion.png of step 40", 40, 20], ["tree.svg of step 40", 90, 30]]
    assert "conv1    (8, 3)" in opened.page.locator("#files pre").text_content()
    assert opened.value("window.hacked") is None


def test_without_scripts_the_numbers_are_there_and_it_says_so(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert "scripts are off" in page.inner_text("header")
    page.locator("figure details summary").first.click()
    assert re.search(r"train/loss\s+2\s+0.033333\s+2\s+0.033333\s+60", page.inner_text("#curves"))
    context.close()


def test_it_prints_in_the_light_scheme_without_controls(show, address):
    opened = show(address, color_scheme="dark")
    opened.page.emulate_media(media="print")
    opened.page.wait_for_timeout(100)
    assert opened.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.page.locator(".tools").is_visible()
    assert opened.value(TONE, "--c0") > 50
    assert opened.page.pdf().startswith(b"%PDF")


def test_a_value_that_is_not_finite_is_read_as_such(show, address):
    opened = show(address)
    chart = opened.page.locator("figure", has_text="kept").first
    chart.locator(".plot").focus()
    for key in ("Home", *["ArrowRight"] * 7):
        opened.page.keyboard.press(key)
    assert chart.locator(".live").text_content() == "step 7: selective_backprop/kept not finite"


def test_a_page_with_nothing_to_draw_is_ready_too(show, axe, tmp_path):
    run = write_run(tmp_path / "run", metrics=None, events=None, results=None, timing=None)
    opened = show(page_at(run))
    assert opened.value("document.documentElement.dataset.ready") == "0"
    assert (opened.complaints, opened.findings(axe)) == ([], [])


@pytest.mark.parametrize(
    ("width", "scheme", "runs"), [(360, "light", 1), (360, "dark", 2), (1280, "dark", 1), (1280, "light", 2)]
)
def test_axe_finds_nothing(show, axe, tmp_path, scheme, width, runs):
    folders = [full_run(tmp_path / name) for name in ("one", "two")[:runs]]
    opened = show(page_at(*folders), width=width, color_scheme=scheme)
    opened.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert opened.findings(axe) == []


def test_who_wants_less_motion_gets_none(show, tmp_path):
    address = page_at(full_run(tmp_path / "run"))
    moving = show(address, reduced_motion="no-preference")
    still = show(address, reduced_motion="reduce")
    behaviours = [one.value("getComputedStyle(document.documentElement).scrollBehavior") for one in (moving, still)]
    assert behaviours == ["smooth", "auto"]
    durations = (
        "[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).transitionDuration !== '0s').length"
    )
    assert still.value(durations) == 0


def test_what_is_read_out_has_a_name(show, tmp_path):
    opened = show(page_at(full_run(tmp_path / "run")))
    tree = opened.page.locator("figure").first.aria_snapshot()
    assert "loss: train/loss from 2 to 0.033333, lowest 0.033333, highest 2; eval/loss from 0.15 to 0.05" in tree
