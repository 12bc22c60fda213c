"""`engine-core plugins new`: what is in the files, and what of it the author says."""

import ast
import re
import sys

import pytest
import yaml
from click.testing import CliRunner

from engine_core.cli import main
from engine_core_author.scaffold import TEST_REQUIREMENTS, create_plugin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def new(tmp_path):
    """Return a function that creates a plugin in an empty folder and returns the text of each file by its path."""

    def new(name, **options):
        project = create_plugin(name, tmp_path, **options)
        files = (path for path in project.rglob("*") if path.is_file())
        return {path.relative_to(project).as_posix(): path.read_text(encoding="utf-8") for path in files}

    return new


@pytest.mark.parametrize("options", [{}, {"example": True, "with_pass": True}], ids=str)
@pytest.mark.parametrize("name", ["My.Awkward-Name", "true", "l" * 40])
def test_its_python_compiles_and_nothing_is_left_to_fill_in(new, name, options):
    for file, text in new(name, **options).items():
        assert not re.search(r"\$\{?[a-z]|\$\$", text), file
        if file.endswith(".py"):
            compile(text, file, "exec")


@pytest.mark.parametrize(("example", "places"), [(False, ["src/my_plugin/algorithm.py"]), (True, [])])
def test_what_is_left_to_write_is_marked_in_one_place(new, example, places):
    assert [
        file for file, text in new("my-plugin", example=example).items() for _ in re.findall("TODO", text)
    ] == places


@pytest.mark.parametrize(
    ("description", "in_python"),  # with the quotation marks that ruff chooses
    [
        ("""say "hi" to it's 'x'""", r'''"say \"hi\" to it's 'x'"'''),
        ('the "fast" weights', "'the \"fast\" weights'"),
        ("C:\\new $path {name} 中", r'"C:\\new $path {name} 中"'),
    ],
)
def test_the_description_is_in_the_metadata_and_on_the_index(new, description, in_python):
    files = new("my-plugin", description=f" {description} ")
    assert tomllib.loads(files["pyproject.toml"])["project"]["description"] == description
    assert files["README.md"].startswith(f"# my-plugin\n\n{description}\n")
    assert f"        description={in_python},\n" in files["src/my_plugin/algorithm.py"]
    assert ast.literal_eval(in_python) == description


@pytest.mark.parametrize(
    ("author", "entry", "holder"),
    [
        ("Zoë Müller", {"name": "Zoë Müller"}, "Zoë Müller"),
        ("Zoë <z@example.org>", {"name": "Zoë", "email": "z@example.org"}, "Zoë"),
        ('The "A" <Team>', {"name": 'The "A" <Team>'}, 'The "A" <Team>'),
    ],
)
def test_the_author_holds_the_copyright(new, author, entry, holder):
    files = new("my-plugin", author=author)
    assert tomllib.loads(files["pyproject.toml"])["project"]["authors"] == [entry]
    assert re.search(r"^Copyright \(c\) \d{4} (.*)$", files["LICENSE"], re.MULTILINE)[1] == holder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--author", "two\nlines"], "'two\\nlines' can't be the author of a plugin: it is one line of printable char"),
        (["--description", " "], "' ' can't be the description of a plugin: it is one line of printable characters"),
        (["--description", "d" * 91], f"the description '{'d' * 91}' has 91 characters, at most 90 fit in a line"),
        (["--algorithm", "LookAhead"], "'LookAhead' can't be the name of an algorithm: that has lower-case ASCII "),
    ],
)
def test_what_can_not_be_written_is_refused(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["plugins", "new", "my-plugin", *options])
    assert (result.exit_code, result.output.startswith(f"Error: {said}")) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_the_printed_requirements_are_those_of_the_group(new):
    files = new("my-plugin")
    group = tomllib.loads(files["pyproject.toml"])["dependency-groups"]["test"]
    assert TEST_REQUIREMENTS.replace('"', "").split() == group
    assert f"python3 -m pip install -e . {TEST_REQUIREMENTS}\n" in files["README.md"]
    assert "--group" not in files["README.md"]


def test_the_workflow_runs_each_environment_of_tox_once(new):
    files = new("my-plugin")
    ((job,), environments) = (
        yaml.safe_load(files[".github/workflows/tests.yml"])["jobs"].values(),
        re.search(r"env_list =\n((?:    .*\n)+)", files["tox.ini"])[1].split("\n"),
    )
    matrix, steps = job["strategy"]["matrix"], {step.get("name"): step for step in job["steps"]}
    assert steps["Test"]["run"] == 'python -m tox run -e "py${PYTHON/./}-$WHICH"'
    assert {job["env"]["PYTHON"], job["env"]["WHICH"]} == {"${{ matrix.python }}", "${{ matrix.engine-core }}"}
    rest = steps["Lint, check types, and use the built wheel"]
    assert rest["if"] == "matrix.python == '3.13' && matrix.engine-core == 'latest'"
    of_tests = "py3{10, 11, 12, 13}-{lowest, latest}"
    assert [f"3.{minor}" for minor in re.search(r"\{(.*?)\}", of_tests)[1].split(", ")] == matrix["python"]
    assert matrix["engine-core"] == ["lowest", "latest"]
    others = rest["run"].removeprefix("python -m tox run -e ").split(",")
    assert sorted(filter(None, map(str.strip, environments))) == sorted([of_tests, *others])


def test_the_workflow_takes_engine_core_from_where_its_owner_says(new):
    text = new("my-plugin")[".github/workflows/tests.yml"]
    (job,) = yaml.safe_load(text)["jobs"].values()
    included = {each["engine-core"]: each["variable"] for each in job["strategy"]["matrix"]["include"]}
    assert included == {"lowest": "ENGINE_CORE_LOWEST", "latest": "ENGINE_CORE_LATEST"}
    assert "install engine-core" not in text
    assert set(job["strategy"]["matrix"]["engine-core"]) == set(included)
