"""What the README promises a newcomer, in this order, and where its figures come from."""

import re
import sys

import pytest

from .conftest import DOCS, ROOT, blocks_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
PLUGINS = sorted(ROOT.glob("plugins/*-plugin/README.md"))
METHODS = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", TEXT, re.MULTILINE))  # the rest of a row by the algorithm's name
FASHION = (ROOT / "benchmarks" / "studies" / "selective_backprop.md").read_text(encoding="utf-8")
ROWS_ON_FASHION = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in FASHION.partition("**test/accuracy")[0].splitlines()
    if line.startswith("| ")
][2:]
STUDY = (ROOT / "benchmarks" / "studies" / "digits.md").read_text(encoding="utf-8").partition("**test/loss")[0]
STUDIED = {
    arm: cells for arm, *cells in re.findall(r"^\| (\w+) \| (.*?) \| (.*?) \| (?:~ )?x? ?(\S+)", STUDY, re.MULTILINE)
}
"""Of each arm of the study: mean with deviation, the difference in words, and the ratio of times."""


def parts():
    """Return headings, pictures by their file, the first row of tables and languages of blocks, in order."""
    found = re.findall(r"^(#+ .+)$|^!\[.+\]\((.+)\)$|^(\|.+)\n\|-|^```(\w+)$", TEXT, re.MULTILINE)
    return ["".join(part) for part in found]


def test_reasons_come_first_on_a_page_of_at_most_150_lines():
    assert len(TEXT.splitlines()) <= 150
    assert parts() == [
        "# engine-core",
        "docs/images/run.svg",
        "## Quick start",
        "sh",
        "docs/images/report.png",
        "## What each method gained here",
        "| algorithm | accuracy | time | what else was measured here | package |",
        "## An algorithm in ten lines",
        "python",
        "python",
        "## Which algorithm runs first",
        "docs/images/order.svg",
        "## Where it stands",
        "## Where to go from here",
        "| if you | read |",
    ]


def test_quick_start_is_two_commands_in_one_block():
    section = TEXT[TEXT.index("## Quick start") : TEXT.index("## What each")]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    train = "python3 -m engine_core train --example digits && python3 -m engine_core report runs/digits-*"
    install = 'python3 -m pip install -c constraints.txt ".[examples]" ./plugins/sb-plugin ./plugins/engine-core-report'
    test = "python3 -m pip install -c constraints.txt tox-uv && python3 -m tox run-parallel"
    assert fences == [("sh", f"{install} && {train}\n{test}\n")]


def test_the_tutorial_has_the_same_two_commands_and_the_front_page_the_first():
    assert first(DOCS / "quickstart.md", "sh") == first(README, "sh")
    assert first(DOCS / "index.md", "sh") == first(README, "sh").splitlines(keepends=True)[0]


def test_each_algorithm_of_the_repository_has_one_row():
    named = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    projects = [tomllib.loads(page.with_name("pyproject.toml").read_text(encoding="utf-8")) for page in PLUGINS]
    groups = [project["project"]["entry-points"].get("engine_core.algorithms", {}) for project in projects]
    assert sorted(named) == sorted(name for group in groups for name in group)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_and_the_place_that_it_links_to_say_what_the_study_says(name):
    accuracy, time, other, _ = (cell.strip() for cell in METHODS[name].split(" |"))
    assert [accuracy, time] == STUDIED[name][1:]
    measured = source_of(name)
    if name != "selective_backprop":
        assert f"Of the test accuracy it says: {accuracy}. Training takes {time} times as long" in measured
        assert {*re.findall(r"\d+(?:\.\d+)?", other)} <= {*re.findall(r"\d+(?:\.\d+)?", measured)}


def test_the_baseline_is_the_studys():
    assert f"Without any, the test accuracy is {STUDIED['plain'][0].replace('(', '(sd ')}" in " ".join(TEXT.split())


def test_selective_backprops_figures_are_those_of_its_study():
    arms = dict(zip(("plain", "half", "forward", "carried", "cdf", "end"), ROWS_ON_FASHION, strict=True))
    rows_to = {name: float(cells[5].replace(",", "")) for name, cells in arms.items()}
    share = {name: f"{rows / rows_to['plain']:.2f}" for name, rows in rows_to.items()}
    table = source_of("selective_backprop").replace("*", "").partition("row passes to a test loss of 0.28 |")[2]
    loss, time = ({name: cells[n].partition(" (")[0] for name, cells in arms.items()} for n in (1, 3))
    for name, line in zip(
        arms, re.findall(r"\| ([^|]+) \| (0\.27\d\d) \|[^|]*\| ([\d.]+)[^|]*\| ([\d.]+) \|", table), strict=True
    ):
        assert line[1:] == (
            loss[name],
            time[name].removeprefix("~ x ") if name != "plain" else "1",
            share[name].replace("1.00", "1"),
        )
    quoted = re.findall(r"0\.\d\d(?!\d)", METHODS["selective_backprop"].split(" | ")[2].partition("relative to")[2])
    assert quoted == [share["cdf"], share["forward"], share["half"]]


def source_of(name):
    """Return the section of a plugin's README that a row links to, as one line."""
    page, place = re.search(r"\]\((plugins/[^#)]+)#([^)]+)\) \|?$", f"{METHODS[name]} |").groups()
    sections = re.split(r"^## ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = [each for each in sections if each.partition("\n")[0].lower().replace(" ", "-") == place]
    assert name == "selective_backprop" or f"Registered as `{name}`" in section
    return " ".join(section.split())


def test_an_algorithm_in_ten_lines_is_as_short_as_that_and_the_same_in_both_places():
    shown = first(README, "python")
    assert len([line for line in shown.splitlines() if line]) <= 10
    assert first(DOCS / "authors" / "algorithm.md", "python") == shown


def test_the_name_on_the_public_index_is_described_alike():
    for page in (README, DOCS / "authors" / "publishing.md"):
        text = " ".join(page.read_text(encoding="utf-8").replace("**", "").split())
        assert "1.0.0 and 1.0.1 are all that it has published, so " in text
        assert "Nothing keeps its owner from publishing a 0.x" in text


def first(page, language):
    """Return the first block of a language in a page."""
    return next(block.text for block in blocks_of(page) if block.language == language)
