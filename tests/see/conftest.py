"""A browser for the tests of the page: the system's chromium, from `CHROMIUM` or the PATH."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "plugins" / "engine-core-report" / "tests"))  # for its left_runs.py

NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing(what):
    """Skip, or fail where CI runs: there a page that was not looked at is a fault."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI has to look at the pages")
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415  it may be missing
    except ImportError:
        missing("playwright is not installed: tox -e see")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        missing("there is no chromium: install it with the system's packages, or say where it is by CHROMIUM")
    with sync_playwright() as playwright:
        # Containers give their processes little shared memory, and no user of their own for a sandbox.
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def axe():
    try:
        from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415  it may be missing
    except ImportError:
        missing("axe-playwright-python is not installed: tox -e see")
    return Axe()


class Opened:
    """A page in the browser, with what it asked for and complained of."""

    def __init__(self, context):
        self.page = context.new_page()
        self.asked, self.complaints = [], []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def go(self, address):
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")
        return self

    def value(self, script, argument=None):
        return self.page.evaluate(script, argument)

    def until(self, script, timeout_s=10):
        """Wait until a script gives something true; the page's policy keeps wait_for_function out."""
        for _ in range(20 * timeout_s):
            found = self.value(script)
            if found:
                return found
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {script}")

    def findings(self, axe):
        """Return what axe-core finds, each with its place."""
        found = axe.run(self.page).response["violations"]
        return [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found]

    def said(self, chart=0):
        return self.page.locator("figure .live").nth(chart).text_content()


@pytest.fixture
def show(browser):
    """Open a page, with the browser's settings as keywords."""
    contexts = []

    def open_page(address, *, width=1280, **settings):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **settings))
        return Opened(contexts[-1]).go(address)

    yield open_page
    for context in contexts:
        context.close()
