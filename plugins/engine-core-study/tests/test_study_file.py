"""The file of a study and its short forms: the arms that they make, and what is refused, with its line."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.errors import ConfigError
from engine_core.registry import Registry
from engine_core_study.file import _split, is_study, read_study, short_study

NOISE = {"target": "study_parts:Noise"}
ARMS = """\
arms:
  plain: {}
  noisy: {with: {target: "study_parts:Noise"}}
"""


def algorithms(design):
    return {arm.name: arm.algorithms for arm in design.arms}


def config(design, arm, setting=0):
    return design.arm(arm).settings[setting].config


def test_arms_add_take_out_set_and_build_on_each_other(write):
    design = read_study(
        write("""\
        set: {trainer.max_duration: 3ep}
        arms:
          plain:
          all: {with: [{target: "study_parts:Noise", args: {scale: 0.5}}, {target: "study_parts:Slow"}]}
          less: {from: all, without: Noise, set: {optimizer.args.lr: 0.1}}
          none: {from: all, without: all, set: ["optimizer.args.momentum=0.9"]}
          louder: {from: all, set: {"algorithms[Noise].args.scale": 2}}
    """)
    )
    noise, slow = "study_parts:Noise", "study_parts:Slow"
    assert algorithms(design) == {
        "plain": [],
        "all": [noise, slow],
        "less": [slow],
        "none": [],
        "louder": [noise, slow],
    }
    assert config(design, "all")["algorithms"][0]["args"] == {"scale": 0.5}
    assert config(design, "louder")["algorithms"][0]["args"] == {"scale": 2}
    assert config(design, "less")["optimizer"]["args"] == {"lr": 0.1}
    assert config(design, "none")["optimizer"]["args"] == {"lr": 0.5, "momentum": 0.9}
    assert {each.settings[0].config["trainer"]["max_duration"] for each in design.arms} == {"3ep"}
    assert (design.baseline, design.seeds) == ("plain", (0, 1, 2, 3, 4))
    assert design.report == ("val/loss", "val/accuracy", "test/loss", "test/accuracy")


def test_one_is_left_out_of_an_arm_at_a_time(write):
    design = read_study(
        write("""\
        arms: {all: {with: [{target: "study_parts:Noise"}, {target: "study_parts:Slow"}]}}
        leave_one_out: all
    """)
    )
    assert algorithms(design) == {
        "all": ["study_parts:Noise", "study_parts:Slow"],
        "all without study_parts:Noise": ["study_parts:Slow"],
        "all without study_parts:Slow": ["study_parts:Noise"],
    }


def test_an_arm_may_be_a_recipe_whose_algorithms_are_left_out_in_turn_and_which_is_tuned(write, here, monkeypatch):
    (here / "acme-1.2.dist-info").mkdir()
    (here / "acme-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (here / "acme-1.2.dist-info" / "entry_points.txt").write_text("[engine_core.recipes]\nfast = acme_fast:FAST\n")
    (here / "acme_fast.py").write_text(f"from pathlib import Path\nFAST = Path({str(here)!r}, 'fast.yaml')")
    (here / "fast.yaml").write_text("""\
kind: tiny
summary: Faster.
algorithms: [{target: "study_parts:Noise"}, {target: "study_parts:Slow"}]
optimizer: {target: "torch.optim:Adam", args: {lr: 0.1}}
because: {optimizer: why, "study_parts:Noise": why, "study_parts:Slow": why}
""")
    monkeypatch.syspath_prepend(here)
    Registry.scan(refresh=True)
    design = read_study(
        write("""\
        arms:
          plain: {}
          recipe: {set: {optimizer: null, recipe: fast, optimizer.args.lr: 0.2}}
        leave_one_out: recipe
        tune: {optimizer.args.lr: [0.1, 0.3]}
        choose_by: val/loss
    """)
    )
    monkeypatch.undo()
    Registry.scan(refresh=True)
    noise, slow = "study_parts:Noise", "study_parts:Slow"
    assert algorithms(design) == {
        "plain": [],
        "recipe": [noise, slow],
        f"recipe without {noise}": [slow],
        f"recipe without {slow}": [noise],
    }
    assert config(design, "plain", 1)["optimizer"] == {"target": "torch.optim:SGD", "args": {"lr": 0.3}}
    assert config(design, "recipe", 1)["optimizer"] == {"target": "torch.optim:Adam", "args": {"lr": 0.3}}
    record = {"name": "fast", "distribution": "acme", "version": "1.2"}
    assert config(design, f"recipe without {slow}")["recipe"] == record


def test_each_arm_tunes_the_keys_that_it_has_and_lengths_make_a_ladder(write):
    design = read_study(
        write(
            ARMS
            + """\
        tune:
          optimizer.args.lr: [0.1, 0.5]
          algorithms[Noise].args.scale: [0.1, 0.2, 0.3]
          trainer.max_duration: [4ep, 1ep]
        choose_by: val/accuracy
        report: test/accuracy
        seeds: [3, 5]
    """.replace("        ", "")
        )
    )
    assert [each.label for each in design.arm("plain").settings] == ["optimizer.args.lr=0.1", "optimizer.args.lr=0.5"]
    labels = [each.label for each in design.arm("noisy").settings]
    pairs = itertools.product((0.1, 0.5), (0.1, 0.2, 0.3))
    assert labels == [f"optimizer.args.lr={lr}, algorithms[Noise].args.scale={scale}" for lr, scale in pairs]
    assert config(design, "noisy", 4)["algorithms"] == [{**NOISE, "args": {"scale": 0.2}}]
    assert (design.lengths, design.report, design.tune_seed) == (("1ep", "4ep"), ("test/accuracy",), 9999)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("arms: {a: {}, b: {with: [mixpu]}}", 2, ["arm 'b'", "'mixpu'"]),
        ("arms:\n  a: {}\n  b: {without: Noise}", 4, ["arm 'b'", "'Noise'"]),
        ("arms:\n  a: {}\n  b: {set: {}}", 4, ["arm 'b'", "equal", "arm 'a'"]),
        ("arms:\n  a: {}\n  b: {form: a}", 4, ["form", "did you mean 'from'"]),
        ("arms:\n  a: {}\n  b: {from: aa}", 4, ["'aa'", "did you mean 'a'"]),
        ("arms:\n  a: {from: b}\n  b: {from: a}", 4, ["back to itself"]),
        ("arms:\n  only: {}", 2, ["two arms"]),
        (ARMS + "baseline: plan", 5, ["'plan'", "did you mean 'plain'"]),
        (ARMS + "leave_one_out: plain", 5, ["'plain'", "no algorithm"]),
        (ARMS + "report: [test/accuracy, test/acuracy]", 5, ["test/acuracy", "did you mean 'test/accuracy'"]),
        (
            "arms:\n  a: {set: {optimizer.args.lr: 3}}\n  b: {}\ntune: {optimizer.args.lr: [1]}\nchoose_by: val/loss",
            4,
            ["arm 'b'", "equal", "arm 'a'"],
        ),
        (ARMS + "target: {tset/loss: 0.1}", 5, ["tset/loss"]),
        (ARMS + "tune: {optimizer.args.lr: [0.1]}", 5, ["choose_by"]),
        (ARMS + "choose_by: val/acc\ntune: {optimizer.args.lr: [0.1]}", 5, ["val/acc"]),
        (ARMS + "choose_by: val/loss\ntune:\n  algorithms[mixup].args.alpha: [1]", 7, ["no arm has this key", "mixup"]),
        (ARMS + "tune: {trainer.max_duration: [2ep, 40ba]}", 5, ["unit"]),
        (ARMS + "seeds: []", 5, ["seeds"]),
        (ARMS + "seeds: 20261127", 5, ["20261127 seeds", "write [20261127]"]),
        ("arms:\n  a: {}\n  b: {set: {trainer.seed: 3}}", 4, ["arm 'b'", "equal", "arm 'a'"]),
        ("tune: {trainer.max_duration: 4ep}\narms:\n  a: {}\n  b: {set: {trainer.max_duration: 3ep}}", 5, ["equal"]),
        (ARMS + "budget: 3ep", 5, ["time", "3ep"]),
        (ARMS + "budget: 2", 5, ["time", "not 2"]),
        (ARMS + "target: {test/loss: low}", 5, ["target.test/loss: has to be a valid number"]),
        (ARMS + "sets: {}", 5, ["sets", "did you mean 'set"]),
        ("arms:\n  a: {}\n  b: {with: [{target: 'study_parts:Noise'}, {target: 'study_parts:Noise'}]}", 4, ["twice"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line(write, text, line, words):
    path = write(text)
    with pytest.raises(ConfigError) as refused:
        read_study(path)
    message = str(refused.value)
    assert message.startswith(f"{path}:{line}: ")
    assert [word for word in words if word not in message] == []


def test_a_base_that_is_wrong_is_named(here, write):
    path = write(ARMS)
    (here / "run.yaml").write_text("model: 3")
    with pytest.raises(ConfigError, match=r"(?s)study.yaml:1: base: .*run.yaml:1: model"):
        read_study(path)


def test_the_command_lines_short_forms_are_arms_beside_the_base(here):
    (here / "run.yaml").write_text(
        (here / "run.yaml").read_text() + "algorithms: [{target: 'study_parts:Noise'}, {target: 'study_parts:Slow'}]"
    )
    design = short_study(here / "run.yaml", 2, without=["Noise"], changes=["optimizer.args.lr=0.1,0.2"])
    assert [arm.name for arm in design.arms] == [
        "base",
        "without Noise",
        "optimizer.args.lr=0.1",
        "optimizer.args.lr=0.2",
    ]
    assert design.seeds == (0, 1)
    assert config(design, "optimizer.args.lr=0.2")["optimizer"]["args"]["lr"] == 0.2
    with pytest.raises(ConfigError, match=r"lr=: there is no value"):
        short_study(here / "run.yaml", changes=["optimizer.args.lr=0.1,,0.2"])
    left = short_study(here / "run.yaml", leave_one_out=True)
    assert [arm.name for arm in left.arms] == [
        "base",
        "base without study_parts:Noise",
        "base without study_parts:Slow",
    ]


def test_a_config_is_not_the_file_of_a_study(here, write):
    assert (is_study(here / "run.yaml"), is_study(write(ARMS))) == (False, True)
    (here / "baseless.yaml").write_text(ARMS)
    assert is_study(here / "baseless.yaml")
    with pytest.raises(ConfigError, match="base"):
        read_study(here / "baseless.yaml")


def test_more_seeds_leave_what_was_tuned_as_it_is(write):
    text = ARMS + "tune: {optimizer.args.lr: [0.1, 0.5]}\nchoose_by: val/loss\n"
    fewer, more = (read_study(write(text + f"seeds: {seeds}")) for seeds in (3, 5))
    assert {**fewer.to_json(), "seeds": [0, 1, 2, 3, 4]} == more.to_json()
    assert read_study(write(text + "seeds: [9999, 1]")).tune_seed == 10000


VALUES = st.sampled_from(["0.1", "sgd", "[1, 2]", "{a: 1, b: 2}", "'x,y'", '"u,v"', ""])


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(values):
    assert _split(f"key={','.join(values)}") == [f"key={value}" for value in values]
