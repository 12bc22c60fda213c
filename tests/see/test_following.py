"""The page of `engine-core watch` in a real browser: it follows a run, and what was chosen stays."""

import json
import threading

import pytest
from left_runs import EVENTS, append, write_run

from engine_core_report import PageServer, live

from .runs_to_see import STEPS, full_run, values


@pytest.fixture
def follow(show, monkeypatch):
    """Open the page of runs, served and followed."""
    monkeypatch.setattr(live, "PERIOD_S", 0.05)
    servers = []

    def start(*folders, **settings):
        server = PageServer(folders)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        opened = show(server.address, **settings)
        opened.until("document.getElementById('follow').textContent !== 'connecting'")
        return opened

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def log(folder, *lines):
    append(folder / "metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))


def running(folder, steps=20):
    return full_run(folder, metrics=values(range(steps)), events=EVENTS[:1], results=None)


PICTURE = "document.querySelector('figure canvas').toDataURL()"
LABEL = "document.querySelector('figure .plot').getAttribute('aria-label')"


def test_values_come_without_a_reload_and_charts_without_flicker(follow, tmp_path):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    opened.value("window.canvas = document.querySelector('figure canvas')")
    log(folder, *values(range(20, 30)))
    opened.until(f"{LABEL}.includes('to 0.066667')")
    opened.page.locator("figure .plot").first.press("End")
    assert opened.said() == "step 29: train/loss 0.066667"
    assert opened.value("window.canvas.isConnected && window.canvas === document.querySelector('figure canvas')")
    assert "0.066667" in opened.page.locator("#summary").inner_text()
    assert opened.complaints == []


def test_it_begins_before_anything_is_logged_and_says_when_the_run_ended(follow, tmp_path):
    folder = write_run(tmp_path / "run", metrics=None, events=None, results=None, timing=None)
    opened = follow(folder)
    assert opened.page.locator("figure").count() == 0
    assert opened.page.locator("#follow").text_content() == "following the run"
    log(folder, *values())
    opened.until("document.querySelectorAll('figure canvas').length === 4")
    opened.page.select_option("#axis", "t")  # the controls came with the first chart
    opened.page.locator("figure .plot").first.press("End")
    assert opened.said().startswith("14.75 seconds: ")
    append(folder / "metrics.jsonl", json.dumps({**EVENTS[-1], "step": STEPS}) + "\n")
    (folder / "results.json").write_text(json.dumps({"batches": STEPS}))
    opened.until("document.getElementById('follow').textContent === 'the run has ended'")
    opened.until("document.querySelector('.badge').textContent === 'finished'")
    assert opened.complaints == []


def test_what_was_chosen_opened_and_focused_stays(follow, tmp_path):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    page = opened.page
    page.select_option("#axis", "t")
    page.locator("#smooth").fill("0.5")
    page.check("#log")
    page.locator("figure details summary").first.click()
    over = page.locator("figure .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    page.mouse.move(0, 0)
    plot = page.locator("figure .plot").first
    plot.press("Home")
    plot.press("ArrowRight")
    said = opened.said()
    # An eval loss makes another line, so the first chart is drawn anew; a new value makes another chart.
    log(folder, {"step": 20, "seconds": 5.0, "train/loss": 0.01, "eval/loss": 3.0, "own/new": 1})
    log(folder, {"step": 21, "seconds": 6.0, "train/loss": 0.02, "eval/loss": 2.0, "own/new": 2})
    opened.until("document.querySelectorAll('figure canvas').length === 6")
    assert (page.input_value("#axis"), page.input_value("#smooth"), page.is_checked("#log")) == ("t", "0.5", True)
    assert opened.value("document.querySelector('figure details').open")
    assert opened.value("document.activeElement === document.querySelector('figure .plot')")
    assert opened.said() == said
    plot.press("ArrowRight")
    assert opened.said().startswith("0.5 seconds: ")
    zoomed = opened.value(PICTURE)
    page.locator("#reset").click()
    opened.until(f"{PICTURE} !== {json.dumps(zoomed)}")
    assert opened.complaints == []


def test_a_resume_that_cuts_the_files_is_followed(follow, tmp_path):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    file = folder / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:10]))
    log(folder, {"step": 10, "seconds": 9.0, "train/loss": 7.0})
    opened.until(f"{LABEL}.includes('highest 7')")
    opened.page.locator("figure .plot").first.press("End")
    assert opened.said() == "step 10: train/loss 7"


def test_a_server_that_has_gone_is_told_and_the_page_keeps_what_it_has(follow, tmp_path):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    opened.page.route("**/*", lambda route: route.abort())
    log(folder, *values(range(20, 22)))
    opened.until("document.getElementById('follow').textContent.includes('does not answer')")
    assert opened.page.locator("figure canvas").count() == 4


def test_hostile_values_that_come_later_run_nothing(follow, tmp_path):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    hostile = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    log(folder, *({"step": step, "seconds": step / 4, hostile: step, f"train/{hostile}": step} for step in (20, 21)))
    opened.until("document.querySelectorAll('figure canvas').length === 6")
    assert opened.value("window.hacked") is None
    assert opened.complaints == []
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in opened.asked)


def test_axe_finds_nothing_while_it_follows(follow, axe, tmp_path):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    log(folder, *values(range(20, 30)))
    opened.until(f"{LABEL}.includes('to 0.066667')")
    assert opened.findings(axe) == []


@pytest.mark.parametrize("what", ["figure summary", "figure .scroll", "#summary .scroll", "#files summary", "#smooth"])
def test_the_focus_stays_wherever_it_is(follow, tmp_path, what):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    opened.value("document.querySelector('figure details').open = true")
    opened.page.locator(what).first.focus()
    before = opened.value("document.activeElement.tagName + document.activeElement.textContent.slice(0, 10)")
    for step in (20, 21):
        log(folder, *values([step]))
        opened.until(f"document.querySelector('figure td:last-of-type').textContent === '{step + 1}'")
    now = opened.value("document.activeElement.tagName + document.activeElement.textContent.slice(0, 10)")
    assert now == before
    assert opened.page.locator(what).first.evaluate("(one) => one === document.activeElement")


def test_what_is_open_stays_when_a_file_is_logged(follow, tmp_path):
    folder = running(tmp_path / "run")
    opened = follow(folder)
    texts = opened.page.locator("#files details")
    assert texts.count() == 3
    texts.nth(0).evaluate("(one) => { one.open = false; }")
    (folder / "files" / "41").mkdir()
    (folder / "files" / "41" / "a.txt").write_text("new")
    opened.until("document.querySelectorAll('#files details').length === 4")
    opened_now = {one.locator("summary").inner_text().split()[0]: one.evaluate("(d) => d.open") for one in texts.all()}
    assert opened_now == {"a.txt": True, "confusion.png": False, "summary.txt": True, "tree.svg": True}


def test_a_stream_that_was_refused_is_asked_for_again(follow, tmp_path, monkeypatch):
    folder = running(tmp_path / "run")
    refused = []
    stream = live._Handler._stream

    def refuse_once(handler):
        if not refused:
            refused.append(1)
            return handler._refuse(live.HTTPStatus.SERVICE_UNAVAILABLE)
        return stream(handler)

    monkeypatch.setattr(live._Handler, "_stream", refuse_once)
    opened = follow(folder)
    opened.until("document.getElementById('follow').textContent === 'following the run'")
    assert refused == [1]


def test_what_is_folded_is_printed_too(follow, tmp_path):
    opened = follow(running(tmp_path / "run"))
    folded = "document.querySelectorAll('details:not([open])').length"
    before = opened.value(folded)
    opened.value("window.dispatchEvent(new Event('beforeprint'))")
    assert before > 0
    assert opened.value(folded) == 0
    opened.value("window.dispatchEvent(new Event('afterprint'))")
    assert opened.value(folded) == before
