"""What the README promises a newcomer, in this order, and where its figures come from."""

import re
import runpy

from engine_core.registry import Registry

from .conftest import DOCS, ROOT, blocks_of

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
FASHION = (ROOT / "benchmarks" / "studies" / "selective_backprop.md").read_text(encoding="utf-8")
ROWS_ON_FASHION = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in FASHION.partition("**test/accuracy")[0].splitlines()
    if line.startswith("| ")
][2:]


def parts():
    """Return headings, pictures by their file, the first row of tables and languages of blocks, in order."""
    found = re.findall(r"^(#+ .+)$|^!\[.+\]\((.+)\)$|^(\|.+)\n\|-|^```(\w+)$", TEXT, re.MULTILINE)
    return ["".join(part) for part in found]


def test_reasons_come_first_on_a_page_of_at_most_150_lines():
    assert len(TEXT.splitlines()) <= 150
    assert parts() == [
        "# engine-core",
        "## What recipes gain",
        "docs/images/recipes.svg",
        "| recipe | what is in it | cost of the result of the longest plain training | CPU time | command |",
        "## Quick start",
        "docs/images/run.svg",
        "sh",
        "docs/images/report.png",
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
    section = TEXT[TEXT.index("## Quick start") : TEXT.index("## An algorithm")]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    train = "python3 -m engine_core train --example digits && python3 -m engine_core report runs/digits-*"
    install = 'python3 -m pip install -c constraints.txt ".[examples]" ./plugins/sb-plugin ./plugins/engine-core-report'
    test = "python3 -m pip install -c constraints.txt tox-uv && python3 -m tox run-parallel"
    assert fences == [("sh", f"{install} && {train}\n{test}\n")]


def test_the_tutorial_has_the_same_two_commands_and_the_front_page_the_first():
    assert first(DOCS / "quickstart.md", "sh") == first(README, "sh")
    assert first(DOCS / "index.md", "sh") == first(README, "sh").splitlines(keepends=True)[0]


def test_the_picture_of_the_recipes_is_that_of_their_studies_and_the_table_says_the_same():
    program = runpy.run_path(str(DOCS / "recipe_curves.py"))
    drawn = program["as_svg"]()
    assert (DOCS / "images" / "recipes.svg").read_text(encoding="utf-8") == drawn, "run python docs/recipe_curves.py"
    rows = re.findall(
        r"^\| \[`fast-\w+`\].*?\| \*\*(.*?)\*\* .*? \((.*?)(?: by seed)?\) \| (.*?)x less \((.*?)\)", TEXT, re.MULTILINE
    )
    gains = [[program["gain_of"](panel, cost) for cost in (None, "seconds")] for panel in program["TOLD"]]
    assert rows == [
        (ours.words, f"{ours.low:.1f} to {ours.high:.1f}", f"{time.times:.1f}", f"{time.low:.1f} to {time.high:.1f}")
        for ours, time in gains
    ]
    for (ours, _), recipe in zip(gains, ("fast_images", "fast_text", "fast_finetune"), strict=True):
        text = (ROOT / "plugins/recipes-plugin/src/recipes_plugin" / f"{recipe}.yaml").read_text(encoding="utf-8")
        assert f"gain: {ours.times:.1f}\n    interval: [{ours.low:.1f}, {ours.high:.1f}]" in text


def test_the_table_of_methods_is_the_studys_and_says_where_each_can_gain():
    page = ROOT / "benchmarks" / "studies" / "methods.md"
    text = page.read_text(encoding="utf-8")
    assert runpy.run_path(str(DOCS / "methods.py"))["as_markdown"]() == text, "run python docs/methods.py"
    assert not re.findall(r"^.*\|  ?\|$", text, re.MULTILINE)


def test_the_readme_of_each_package_says_what_the_study_of_methods_found():
    found = {each.name: each.sentence() for each in runpy.run_path(str(DOCS / "methods.py"))["measured"]()}
    records = Registry.scan().records_of("algorithms")
    assert {record.name for record in records} - {*found} == {"ngram_embedding", "sequence_warmup", "token_shift"}
    for record in records:
        if record.name in found:
            text = (ROOT / "plugins" / record.distribution / "README.md").read_text(encoding="utf-8")
            section = text.partition(f"Registered as `{record.name}`.")[2].partition("\n## ")[0] or text
            assert found[record.name] in " ".join(section.split()), record.name


def test_selective_backprops_figures_are_those_of_its_study():
    arms = dict(zip(("plain", "half", "forward", "carried", "cdf", "end"), ROWS_ON_FASHION, strict=True))
    rows_to = {name: float(cells[5].replace(",", "")) for name, cells in arms.items()}
    share = {name: f"{rows / rows_to['plain']:.2f}" for name, rows in rows_to.items()}
    page = (ROOT / "plugins" / "sb-plugin" / "README.md").read_text(encoding="utf-8")
    table = page.replace("*", "").partition("row passes to a test loss of 0.28 |")[2]
    loss, time = ({name: cells[n].partition(" (")[0] for name, cells in arms.items()} for n in (1, 3))
    for name, line in zip(
        arms, re.findall(r"\| ([^|]+) \| (0\.27\d\d) \|[^|]*\| ([\d.]+)[^|]*\| ([\d.]+) \|", table), strict=True
    ):
        assert line[1:] == (
            loss[name],
            time[name].removeprefix("~ x ") if name != "plain" else "1",
            share[name].replace("1.00", "1"),
        )


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
