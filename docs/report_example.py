"""The page that the documentation shows: `python docs/report_example.py FOLDER` trains twice and writes it there.

`--picture` also draws images/report.png, with the system's chromium.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import yaml

from engine_core.config import load_config
from engine_core.examples import find_example
from engine_core.run import train
from engine_core_report import read_run, write_report

PICTURE = Path(__file__).parent / "images" / "report.png"
WIDTH, HEIGHT = 1280, 500
RUNS = {
    "plain": {"algorithms": []},
    "methods": {
        "algorithms": [{"name": "selective_backprop", "args": {"start": 0.2, "end": 0.9}}, "label_smoothing", "ema"],
        "callbacks": ["confusion"],
    },
}


def write_page(folder: Path) -> Path:
    """Train the example without algorithms and with three, and write the page of both runs; return its path."""
    page = folder / "report.html"
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for name, changes in RUNS.items():
            content = yaml.safe_load(find_example("digits").read_text(encoding="utf-8"))
            Path(f"{name}.yaml").write_text(yaml.safe_dump({**content, **changes}), encoding="utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the page shows them
                train(load_config(f"{name}.yaml"), name, timing=True)
        write_report([read_run(name) for name in RUNS], page)
    return page


def draw(page: Path) -> None:
    """Draw the page's beginning, in a light scheme."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  only the picture needs it

    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        view.goto(page.as_uri())
        view.wait_for_selector("html[data-ready]")
        top = view.locator("#curves").evaluate("(curves) => curves.getBoundingClientRect().top + scrollY")
        view.screenshot(path=PICTURE, full_page=True, clip={"x": 0, "y": top, "width": WIDTH, "height": HEIGHT})
        browser.close()


def main() -> None:
    """Write the page, and draw it if that is wanted."""
    folder, *wanted = sys.argv[1:]
    page = write_page(Path(folder).resolve())
    if wanted == ["--picture"]:
        draw(page)


if __name__ == "__main__":
    main()
