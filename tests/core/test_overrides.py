"""Changes to a config from the command line: what they do, and the one message for what they can't."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_core.config import ConfigError, check_plugins, load_config

FILE = """
model: {target: "nets:Net", args: &shared {width: 4}}
data: {target: "nets:loader", args: *shared}
eval_data:
  target: "nets:loader"
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1, momentum: 0.9}}
schedulers: [{target: "lr:Steps", args: {milestones: [10, 20]}}]
metrics: {accuracy: {target: "nets:Accuracy"}}
algorithms:
  - ema
  - mixup
  - {name: "other-plugin:cutmix", args: {alpha: 1}}
  - ema
loggers:
trainer: {seed: 7, max_duration: 2ep}
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return `load(*overrides)`, which gives the config of the file so changed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(FILE)
    return lambda *overrides: load_config("run.yaml", overrides)


def plain(config):
    return config.model_dump(exclude_unset=True)


def milestones(*values):
    return {"schedulers": [{"target": "lr:Steps", "args": {"milestones": list(values)}}]}


EMA, MIXUP, CUTMIX = {"name": "ema"}, {"name": "mixup"}, {"name": "other-plugin:cutmix", "args": {"alpha": 1}}
LOADER, ACCURACY, SGD = ({"target": target} for target in ("nets:loader", "nets:Accuracy", "torch.optim:SGD"))


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["optimizer.args.lr=1e-3"], {"optimizer": SGD | {"args": {"lr": 0.001, "momentum": 0.9}}}),
        ([" optimizer.args = {} "], {"optimizer": SGD | {"args": {}}}),
        (["optimizer.args[a>=b]=1"], {"optimizer": SGD | {"args": {"lr": 0.1, "momentum": 0.9, "a>=b": 1}}}),
        (["trainer.seed=1", "trainer.seed=2"], {"trainer": {"seed": 2, "max_duration": "2ep"}}),
        (["trainer.seed=null"], {"trainer": {"max_duration": "2ep"}}),
        (["model.args.width=8"], {"model": {"target": "nets:Net", "args": {"width": 8}}}),  # the alias keeps its own
        (["loss.target=nn:Loss", "loss.args.a.b=1"], {"loss": {"target": "nn:Loss", "args": {"a": {"b": 1}}}}),
        (["algorithms[mixup].args.alpha=0.4"], {"algorithms": [EMA, MIXUP | {"args": {"alpha": 0.4}}, CUTMIX, EMA]}),
        (["algorithms[cutmix].args=null"], {"algorithms": [EMA, MIXUP, {"name": "other-plugin:cutmix"}, EMA]}),
        (["algorithms[-1]=null"], {"algorithms": [EMA, MIXUP, CUTMIX]}),
        (["algorithms-=mixup"], {"algorithms": [EMA, CUTMIX, EMA]}),
        (["algorithms=[sam]", "algorithms+=[swa, ema]"], {"algorithms": [{"name": n} for n in ("sam", "swa", "ema")]}),
        (["loggers+=run_files"], {"loggers": [{"name": "run_files"}]}),
        (["order.init+=ema"], {"order": {"init": ["ema"]}}),
        (["schedulers[Steps].args.milestones-=10"], milestones(20)),
        (["schedulers[lr:Steps].args.milestones[1]=30"], milestones(10, 30)),
        (["eval_data.args.width=1"], {"eval_data": {"eval": LOADER | {"args": {"width": 1}}}}),
        (["eval_data.eval.args.width=1"], {"eval_data": {"eval": LOADER | {"args": {"width": 1}}}}),
        (["eval_data.small.target=nets:loader"], {"eval_data": {"eval": LOADER, "small": LOADER}}),
        (["metrics[top.5].target=nets:Top"], {"metrics": {"accuracy": ACCURACY, "top.5": {"target": "nets:Top"}}}),
    ],
)
def test_an_override_changes_this_and_nothing_else(load, overrides, changes):
    changed = load(*overrides)
    assert plain(changed) == plain(load()) | changes
    assert changed.place().source.overrides == tuple(overrides)


def test_a_number_that_is_a_key_stays_the_same_key(load):
    assert load("model.args.a={1: x}", "model.args.a.1=y").model.args["a"] == {1: "y"}


NO_VALUE = "has no value; write null to take it out, and quotes around text that begins with #"
TWICE = "algorithms: 'ema' is at [0] and [3]; name one by its index, as in algorithms[3]"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("optimizer.arg.lr=1", "optimizer.arg: unknown key; did you mean 'args'?"),
        ("seed=1", "seed: unknown key here; it belongs under trainer: write it as trainer.seed"),
        ("trainer.seed=x", "trainer.seed: has to be a valid integer, not 'x'"),
        ("optimizer=null", "optimizer: this key is missing"),
        ("loss.args.a=1", "loss.target: this key is missing"),
        ("algorithm[ema].args.a=1", "algorithm: unknown key; did you mean 'algorithms'?"),
        ("loggers[0].args.a=1", "loggers: has to be a valid list, not {'0': {'args': {'a': 1}}}"),
        ("algorithms[mixpu].args.a=1", "algorithms: there is no entry 'mixpu'; did you mean 'mixup'?"),
        ("algorithms[4]=null", "algorithms: there is no entry [4] among its 4; the first is [0]"),
        ("algorithms[ema].args.a=1", TWICE),
        ("algorithms-=ema", f"{TWICE}=null"),
        ("algorithms-=[1]", "algorithms: there is no entry [1]; known: cutmix, ema, mixup"),
        ("algorithms+=null", "algorithms[4]: has to be a mapping (name, target, args), not None"),
        ("trainer+=3", "trainer: += is for lists, and this is {'seed': 7, 'max_duration': '2ep'}"),
        ("trainer.seed.a=1", "trainer.seed: is 7, so there is no 'a' in it"),
        ("metrics.acuracy=null", "metrics.acuracy: is not there, so it can't be taken out; did you mean 'accuracy'?"),
        ("trainer.seed=", f"trainer.seed: {NO_VALUE}"),
        ("trainer.run_name=#1", f"trainer.run_name: {NO_VALUE}"),
        ("model={a: 1, a: 2}", "model: not valid YAML: duplicate key 'a', first used in line 1; remove one"),
        ("model=&b [*b]", "model: not valid YAML: nested deeper than 100 levels, with its aliases written out"),
        ("trainer.seed=1\x1b", "trainer.seed: not valid YAML: the character '\\x1b' is not allowed"),
        ("", "has to be KEY=VALUE, as in optimizer.args.lr=1e-3"),
        ("trainer.seed", "has to be KEY=VALUE, as in optimizer.args.lr=1e-3"),
        *(
            (f"{path}=1", f"{path!r} is not a path such as algorithms[flip].args.p")
            for path in ("", "a..b", "a[", "a[]")
        ),
        ("a.\x1b=1", "'a.\\x1b' is not a path such as algorithms[flip].args.p"),
    ],
)
def test_what_can_not_be_changed_is_one_message_with_the_text_given(load, override, problem):
    with pytest.raises(ConfigError) as caught:
        load(override)
    shown = override.replace("\x1b", "\\x1b") or "''"
    assert str(caught.value) == f"--set {shown}: {problem}"


def test_neither_path_nor_value_nests_more_than_a_hundred_levels(load):
    for override in ("a." * 200 + "a=1", "model.args.a=" + "[" * 200 + "]" * 200):
        with pytest.raises(ConfigError, match=r"nested deeper than 100 levels|is not a path such as"):
            load(override)


def test_a_later_entry_keeps_its_line_when_one_before_it_is_taken_out(load):
    changed = load("algorithms-=mixup", "algorithms+=ema")
    assert [str(changed.place("algorithms", index)) for index in range(4)] == [
        "run.yaml:10: algorithms[0]",
        "run.yaml:12: algorithms[1]",
        "run.yaml:13: algorithms[2]",
        "--set algorithms+=ema: algorithms[3]",
    ]


@pytest.mark.parametrize(
    ("overrides", "keys", "place"),
    [
        (["eval_data.args.a=1"], ("eval", "args"), "--set eval_data.args.a=1: eval_data.eval.args"),
        (["eval_data.b.target=c:d"], ("eval", "target"), "run.yaml:5: eval_data.eval.target"),
        (["algorithms[-1].args.a=1"], (3, "args"), "--set algorithms[-1].args.a=1: algorithms[3].args"),
        (["loggers+=run_files"], (), "--set loggers+=run_files: loggers"),
        (["optimizer.args.lr=1"], (), "run.yaml:6 with --set optimizer.args.lr=1: optimizer"),
        (["trainer={seed: 1}", "trainer.seed=2"], (), "--set trainer={seed: 1} with --set trainer.seed=2: trainer"),
    ],
)
def test_a_message_names_the_override_that_gave_or_changed_the_value(load, overrides, keys, place):
    section = re.match(r"\w+", overrides[0])[0]
    assert str(load(*overrides).place(section, *keys)) == place


def test_a_plugin_that_is_not_installed_is_refused_with_the_text_given(load):
    said = r"^--set callbacks\+=time_limt: callbacks\[0\]: .* did you mean 'time_limit'"
    with pytest.raises(ConfigError, match=said):
        check_plugins(load("algorithms=[]", "callbacks+=time_limt"))


PIECES = st.sampled_from([
    *("algorithms", "eval_data", "trainer", "args", "[", "]", "[0]", "[ema]"),
    *(".", "=", "+=", "-=", "null", "1", "{", "}"),
])  # fmt: skip


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.lists(PIECES, max_size=9).map("".join)))
def test_any_text_is_a_change_or_an_error_that_names_it(load, text):
    told = ""
    try:
        load(text)
    except ConfigError as error:
        told = str(error)
    assert [line for line in told.splitlines() if "--set " not in line] == []
