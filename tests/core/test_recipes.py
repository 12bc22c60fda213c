"""Recipes: what a distribution adds to a config by name; what both have is refused, with the way around it."""

import re
import shlex
import sys

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_core.config import ConfigError, check_config, check_plugins, load_config

SGD, ADAM = {"target": "torch.optim:SGD", "args": {"lr": 0.1}}, {"target": "torch.optim:Adam"}
FADE, TILT = {"name": "fade", "args": {"speed": 2}}, {"name": "tilt"}
BASE = {"model": {"target": "nets:Net"}, "data": {"target": "nets:loader"}}
RECIPE = {
    "kind": "image_classification",
    "summary": "Faster.",
    "algorithms": ["tilt", FADE],
    "optimizer": ADAM,
    "schedulers": [{"target": "lr:Fall", "args": {"steps": "1dur"}, "interval": "1ba"}],
    "trainer": {"precision": "amp_bf16", "grad_clip_norm": 1.0},
    "because": {
        "tilt": "it tilts",
        "fade": "it fades",
        "optimizer": "it adapts",
        "schedulers": "it falls",
        "trainer": "it is fast",
    },
}
RECORD = {"name": "fast", "distribution": "acme", "version": "1.2"}
SECTIONS = {
    "optimizer": SGD,
    "schedulers": [{"target": "lr:Steps"}],
    "algorithms": ["blur", "other-plugin:fade"],
    "trainer": {"seed": 3, "precision": "fp32"},
}


@pytest.fixture
def made(install, tmp_path, monkeypatch):
    """Return `made(recipe, **config)`, which installs a recipe, and writes run.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    install("acme", {"recipes": {"fast": "acme:FAST"}}, {"acme": _path_of(tmp_path)}, version="1.2")

    def made(recipe=RECIPE, /, **config):
        (tmp_path / "fast.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({**BASE, **config}, sort_keys=False))

    return made


def _path_of(folder):
    return f"from pathlib import Path\nFAST = Path({str(folder)!r}, 'fast.yaml')"


def refused(*overrides):
    with pytest.raises(ConfigError) as caught:
        load_config("run.yaml", overrides)
    return str(caught.value)


def plain(*overrides):
    return load_config("run.yaml", overrides).model_dump(exclude_unset=True)


def test_a_recipe_adds_its_sections_and_the_record_of_it_and_later_changes_reach_them(made):
    made(algorithms=["blur"], trainer={"seed": 3})
    merged = {
        **BASE,
        "optimizer": ADAM,
        "schedulers": RECIPE["schedulers"],
        "algorithms": [{"name": "blur"}, TILT, FADE],
        "trainer": {"seed": 3, "precision": "amp_bf16", "grad_clip_norm": 1.0},
        "recipe": RECORD,
    }
    assert plain("recipe=fast") == merged
    changed = plain("recipe=acme:fast", "algorithms-=tilt", "algorithms[fade].args.speed=5", "trainer.seed=4")
    assert changed["algorithms"] == [{"name": "blur"}, {"name": "fade", "args": {"speed": 5}}]
    assert changed["trainer"]["seed"] == 4
    # In the file it is the same, and what a run records is made again without the recipe.
    made(algorithms=["blur"], trainer={"seed": 3}, recipe="fast")
    assert plain() == merged
    made({}, **merged)
    assert plain() == merged == check_config(merged, "run.yaml").model_dump(exclude_unset=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(own=st.sets(st.sampled_from([*SECTIONS])), cut=st.sets(st.sampled_from([*SECTIONS])))
def test_what_both_have_is_refused_and_the_way_that_the_message_tells_takes_the_recipes(made, own, cut):
    given_ = {key: value for key, value in SECTIONS.items() if key in own}
    recipe = {key: value for key, value in RECIPE.items() if key not in cut}
    parts = {"tilt", "fade", *SECTIONS} - cut - ({"tilt", "fade"} if "algorithms" in cut else set())
    recipe["because"] = {name: why for name, why in RECIPE["because"].items() if name in parts}
    made(recipe, **{"optimizer": SGD, **given_} if "optimizer" in cut else given_)
    expected = [key for key in ("algorithms", "optimizer", "schedulers", "trainer") if key in own - cut]
    if not expected:
        assert plain("recipe=fast")["recipe"] == RECORD
        return
    *lines, way = refused("recipe=fast").splitlines()
    paths = {"algorithms": "algorithms[1]", "trainer": "trainer.precision"}
    said = [
        re.fullmatch(r"run\.yaml:\d+: (\S+): recipe 'fast' brings its own, and overwrites nothing", x) for x in lines
    ]
    assert [each and each[1] for each in said] == [paths.get(key, key) for key in expected]
    _, _, overrides = way.partition("without --recipe: ")
    taken = plain(*(word for word in shlex.split(overrides) if word != "--set"))
    for key in set(expected) & {"optimizer", "schedulers"}:
        assert taken[key] == RECIPE[key]
    if "trainer" in expected:
        assert taken["trainer"] == {"seed": 3, **RECIPE["trainer"]}
    if "algorithms" in expected:
        assert taken["algorithms"] == [{"name": "blur"}, TILT, FADE]


def test_in_a_file_what_both_have_can_only_be_removed_and_a_second_recipe_is_refused(made):
    made(optimizer=SGD, recipe="fast")
    assert refused().splitlines()[-1] == "remove what both have from the config"
    made(recipe="fast")
    says = f"--set recipe=acme:fast: recipe: a config has one recipe, and this one has been made with {RECORD}"
    assert refused("recipe=acme:fast") == says


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"because": {**RECIPE["because"], "tilt": None}}, "fast.yaml:19: because.tilt: has to be a valid string, not"),
        ({"algorithms": ["tilt"]}, "fast.yaml: because: 'fade' is not a part of it"),
        ({"algorithms": ["tilt", FADE, "blur"]}, "fast.yaml: because: say why 'blur' is part of it"),
        ({"optimiser": ADAM}, "optimiser: unknown key; did you mean 'optimizer'?"),
        ({"optimizer": {}}, "optimizer: give a target 'module:attribute' with its args, or a mapping by_name"),
    ],
)
def test_a_mistake_in_a_recipe_is_reported_with_its_own_file(made, change, said):
    made({**RECIPE, **change})
    assert said in refused("recipe=fast")


def test_what_is_wrong_with_what_it_adds_is_reported_where_the_recipe_is_named(made):
    made()
    with pytest.raises(ConfigError, match=r"^--set recipe=fast: algorithms\[0\]: 'tilt' is not among the installed"):
        check_plugins(load_config("run.yaml", ["recipe=fast"]))
    made(RECIPE, recipe="fast")
    with pytest.raises(ConfigError, match=r"^run\.yaml:5: algorithms\[0\]: 'fade' is not among the installed"):
        check_plugins(load_config("run.yaml", ["algorithms-=tilt"]))


def test_a_recipe_that_is_not_there_or_lacks_what_it_needs_is_named_with_the_remedy(made, install, tmp_path):
    made()
    says = "--set recipe=fats: recipe: 'fats' is not among the installed recipes; did you mean 'fast'?"
    assert refused("recipe=fats") == says
    install("acme-two", {"recipes": {"slow": "acme_two:SLOW"}}, {"acme_two": "SLOW = 'slow.yaml'"})
    says = "an entry point of kind recipes must name the path of a YAML file, not 'slow.yaml'"
    assert says in refused("recipe=slow")
    with (tmp_path / "site-packages" / "acme-1.2.dist-info" / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: tilts-plugin>=2\n")
    needs = (
        "recipe 'fast' of acme 1.2 needs tilts-plugin>=2, which is not installed; run: pip install 'tilts-plugin>=2'"
    )
    assert refused("recipe=fast") == f"--set recipe=fast: recipe: {needs}"
    assert "acme" not in sys.modules  # that was found out before an import
