"""Optimizers of parameters by their names: which takes what, trained, resumed, refused, and in a config."""

import re
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LinearLR

from engine_core import by_name
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.reporter import header_lines, header_of
from engine_core.checkpoint import read_content
from engine_core.config import Config
from engine_core.errors import ArgumentError, ArgumentTypeError, CheckpointError, CheckpointWarning, ConfigError
from engine_core.run import make_trainer

from .parts import batches, linear, same, trainer

ADAMW, MOMENTUM = partial(AdamW, lr=0.01), partial(SGD, lr=0.1, momentum=0.9)
KEYS = {"embed|head": ADAMW, "* ndim>=2": MOMENTUM, "*": partial(SGD, lr=0.05)}
SPLIT = {
    "embed|head": ["embed.weight", "embed.bias", "head.weight", "head.bias"],
    "* ndim>=2": ["hidden.weight"],
    "*": ["hidden.bias", "norm.weight", "norm.bias"],
}


def named():
    """Return a net of four named layers, always with the same weights."""
    layers = OrderedDict(embed=nn.Linear(4, 6), hidden=nn.Linear(6, 6), norm=nn.LayerNorm(6), head=nn.Linear(6, 3))
    torch.manual_seed(5)
    for layer in layers.values():
        layer.reset_parameters()
    return nn.Sequential(layers)


def taken(optimizers, model):
    """Return the names of the parameters that each optimizer has, by its key."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {one.taken_by: [names[id(p)] for group in one.param_groups for p in group["params"]] for one in optimizers}


def split(keys, model):
    return taken(by_name(keys)(model.named_parameters()), model)


def made(optimizers=None, *callbacks, **settings):
    given = {"max_duration": "3ep", "seed": 3, "grad_clip_norm": 0.5, **settings}
    optimizers = by_name(KEYS) if optimizers is None else optimizers
    return trainer(batches(6, 6, 6), named(), optimizers=optimizers, callbacks=callbacks, **given)


def weights_of(trained):
    return trained.state.model.state_dict()


def test_a_callable_whose_parameter_is_called_named_parameters_gets_pairs_and_may_return_several():
    def by_size(named_parameters, lr):
        pairs = [*named_parameters]
        return [SGD([p for name, p in pairs if name.endswith(kind)], lr=lr) for kind in ("weight", "bias")]

    run = trainer(optimizers=partial(by_size, lr=0.1))
    assert [one.param_groups[0]["params"] for one in run.state.optimizers] == [
        [p] for p in run.state.model.parameters()
    ]


def test_a_key_is_an_expression_or_the_rest_with_a_number_of_dimensions_and_the_optimizers_come_in_its_order():
    assert split(KEYS, named()) == SPLIT
    assert split({"*": ADAMW, r"^(?!embed|head) ndim==2": MOMENTUM}, named()) == {
        "*": [*SPLIT["embed|head"][:2], *SPLIT["*"], *SPLIT["embed|head"][2:]],
        r"^(?!embed|head) ndim==2": ["hidden.weight"],
    }


def test_frozen_parameters_are_left_out_and_an_entry_without_any_left_makes_no_optimizer():
    model = named()
    model.embed.requires_grad_(False)
    model.hidden.weight.requires_grad_(False)
    keys = {"embed": ADAMW, "* ndim>=2": MOMENTUM, "* ndim<2": ADAMW}
    assert split(keys, model) == {
        "* ndim>=2": ["head.weight"],
        "* ndim<2": ["hidden.bias", "norm.weight", "norm.bias", "head.bias"],
    }


def test_a_model_that_is_frozen_as_a_whole_is_refused():
    with pytest.raises(ArgumentError, match=r"^optimizers: by_name has nothing to train, as all parameters are frozen"):
        trainer(model=named().requires_grad_(False), optimizers=by_name({"*": ADAMW}))


def test_a_shared_parameter_has_its_first_name():
    model = nn.ModuleDict({"embed": nn.Embedding(3, 4), "head": nn.Linear(4, 3, bias=False)})
    model.head.weight = model.embed.weight
    assert split({"embed": ADAMW}, model) == {"embed": ["embed.weight"]}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"embed|head": ADAMW, "norm": ADAMW},
            r"no key of by_name ('embed|head', 'norm') takes 'hidden.weight': add 'hidden\.weight': partial(",
        ),
        (
            {"embed ndim<2": ADAMW, "weight ndim>=2": ADAMW, "bias": ADAMW, "*": ADAMW},
            "'embed ndim<2' and 'bias' of by_name both take 'embed.bias': write '^(?!.*(?:embed)).*(?:bias)' instead",
        ),
        (
            {"* ndim>=1": ADAMW, "* ndim>=2": ADAMW},
            "'* ndim>=1' and '* ndim>=2' of by_name both take 'embed.weight': write '*' instead of one of them",
        ),
        ({"hiden": ADAMW, "*": ADAMW}, "'hiden' of by_name takes no parameter: change it, or leave it out"),
    ],
)
def test_a_parameter_that_no_key_or_two_take_and_a_key_without_any_are_refused_before_training(keys, says):
    with pytest.raises(ArgumentError, match=f"^{re.escape('optimizers: ' + says)}"):
        made(by_name(keys))


def test_the_line_that_a_refusal_says_to_write_is_accepted():
    keys = {"embed|hidden": ADAMW, "^(?!.*(?:embed|hidden)).*(?:bias)": MOMENTUM, "*": ADAMW}
    assert split(keys, named())["^(?!.*(?:embed|hidden)).*(?:bias)"] == ["norm.bias", "head.bias"]


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"ndim>=2": ADAMW}, ArgumentError, "by_name: 'ndim>=2' is not a key; write a regular expression"),
        ({"* ndim=2": ADAMW}, ArgumentError, "by_name: '* ndim=2' is not a key"),
        ({"": ADAMW}, ArgumentError, "by_name: '' is not a key"),
        ({"embed(": ADAMW}, ArgumentError, "by_name: 'embed(' is not '*', and no regular expression: missing )"),
        ({"*": "adamw"}, ArgumentTypeError, "by_name: '*' has 'adamw'; give what makes an optimizer of parameters"),
    ],
)
def test_what_can_be_no_key_or_makes_no_optimizer_is_refused_at_once(keys, error, says):
    with pytest.raises(error, match=f"^{re.escape(says)}"):
        by_name(keys)


def by_hand(schedule):
    """Train the net of `made` with three optimizers made by hand, clipped together, each with its own scheduler."""
    model = named()
    parameters = dict(model.named_parameters())
    makes = [ADAMW, MOMENTUM, partial(SGD, lr=0.05)]
    optimizers = [make([parameters[n] for n in names]) for make, names in zip(makes, SPLIT.values(), strict=True)]
    schedulers = [schedule(one) for one in optimizers]
    for inputs, targets in batches(6, 6, 6) * 3:
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_([parameters[name] for names in SPLIT.values() for name in names], 0.5)
        for each in (*optimizers, *schedulers):
            each.step()
    return model.state_dict()


def test_training_is_that_of_optimizers_made_by_hand_clipped_together_with_a_scheduler_for_each():
    schedule = partial(LinearLR, start_factor=0.1, total_iters=5)
    run = made(schedulers=[(schedule, "1ba")])
    run.fit()
    assert [each.optimizer for each in run.state.schedulers] == run.state.optimizers
    assert same(dict(weights_of(run)), dict(by_hand(schedule)))


def saved_by(folder, **settings):
    """Return the weights of a whole run, and its checkpoint in mid-epoch."""
    with made(None, CheckpointSaver(folder, "1ba", keep_last=9), **settings) as run:
        run.fit()
    return dict(weights_of(run)), folder / "ep1-ba4"


def test_a_run_resumed_in_mid_epoch_ends_as_the_whole_one(tmp_path):
    settings = {"schedulers": [(partial(LinearLR, total_iters=7), "1ba")]}
    whole, saved = saved_by(tmp_path, **settings)
    with made(load_path=saved, load_changed="error", **settings) as resumed:
        assert resumed.state.timestamp.batch == 4
        resumed.fit()
    assert same(dict(weights_of(resumed)), whole)


def test_the_run_says_once_what_went_where(tmp_path):
    with made(None, CheckpointSaver(tmp_path, "1ep")) as run:
        run.fit("1ep")
        (line,) = (line for line in header_lines(header_of(run.state)) if line.startswith("optimizer"))
    assert line.split(maxsplit=1)[1] == (
        "AdamW ('embed|head', 4 parameters, lr 0.01), SGD ('* ndim>=2', 1 parameter, lr 0.1), "
        "SGD ('*', 3 parameters, lr 0.05)"
    )
    assert read_content(tmp_path / "ep1-ba3").manifest["training"]["by_name"] == SPLIT


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"embed|head|norm": ADAMW, "* ndim>=2": MOMENTUM, "*": KEYS["*"]},
            "norm.weight by 'embed|head|norm', was by '*' and norm.bias by 'embed|head|norm', was by '*': change",
        ),
        (
            {"embed": ADAMW, "* ndim>=2": MOMENTUM, "*": KEYS["*"]},
            "head.weight by '* ndim>=2', was by 'embed|head' and head.bias by '*', was by 'embed|head': change it",
        ),
        (
            {"*": KEYS["*"], "embed|head": ADAMW, "* ndim>=2": MOMENTUM},
            "its keys are ['*', 'embed|head', '* ndim>=2'], were ['embed|head', '* ndim>=2', '*']: change it back",
        ),
    ],
)
def test_other_keys_are_refused_at_resume_with_what_they_change(tmp_path, keys, says):
    _, saved = saved_by(tmp_path, max_duration="2ep")
    said = f"by_name gives parameters to other optimizers: {says}"
    with pytest.raises(CheckpointError, match=f"^{re.escape(said)}"):
        made(by_name(keys), load_path=saved)


def test_other_words_for_the_same_keys_are_a_difference_and_the_run_continues(tmp_path):
    whole, saved = saved_by(tmp_path)
    other = by_name({"head|embed": KEYS["embed|head"], "* ndim==2": KEYS["* ndim>=2"], "*": KEYS["*"]})
    with pytest.warns(
        CheckpointWarning, match=r"by_name is \['head\|embed', '\* ndim==2', '\*'\], was \['embed\|head'"
    ):
        resumed = made(other, load_path=saved)
    with resumed:
        resumed.fit()
    assert same(dict(weights_of(resumed)), whole)


TARGET = {"target": f"{__name__}:named"}
ENTRIES = {"embed|head": {"target": "torch.optim:AdamW", "args": {"lr": 0.01}}, "*": {"target": "torch.optim:SGD"}}


def config_of(**optimizer):
    data = {"target": f"{__name__}:loader"}
    trains = {"trainer": {"max_duration": "1ep", "device": "cpu", "progress_bar": False}}
    return Config(model=TARGET, data=data, loss={"target": "torch.nn:CrossEntropyLoss"}, optimizer=optimizer, **trains)


def loader():
    return batches(6, 6)


def with_names(named_parameters, lr):
    return SGD([parameter for name, parameter in named_parameters if "head" in name], lr=lr)


def test_a_config_names_optimizers_by_key():
    with make_trainer(config_of(by_name=ENTRIES)) as run:
        split = {key: len(names) for key, names in taken(run.state.optimizers, run.state.model).items()}
    assert ([type(one) for one in run.state.optimizers], split) == ([AdamW, SGD], {"embed|head": 4, "*": 4})


def test_a_target_of_a_config_gets_pairs_by_its_signature():
    with make_trainer(config_of(target=f"{__name__}:with_names", args={"lr": 0.1})) as run:
        model = run.state.model
    assert run.state.optimizers[0].param_groups[0]["params"] == [*model.head.parameters()]


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        ({"by_name": ENTRIES, "args": {"lr": 0.1}}, "optimizer: give a target 'module:attribute' with its args, or a"),
        ({}, "optimizer: give a target"),
        ({"by_name": {"(": ENTRIES["*"]}}, "optimizer.by_name: by_name: '(' is not '*', and no regular expression"),
        (
            {"by_name": {"*": {"target": "torch.optim:AdamV"}}},
            "optimizer.by_name.*: 'torch.optim' has no attribute 'AdamV'; did you mean",
        ),
        (
            {"by_name": {"*": {"target": "torch.optim:SGD", "args": {"rl": 1}}}},
            "optimizer.by_name.*.args.rl: SGD has no argument 'rl'",
        ),
        ({"by_name": {"head": ENTRIES["*"]}}, "optimizers: no key of by_name ('head') takes 'embed.weight': add"),
    ],
)
def test_a_config_is_refused_with_the_place(optimizer, says):
    with pytest.raises(ValueError, match=re.escape(says)) as refusal:
        make_trainer(config_of(**optimizer)).close()
    assert isinstance(refusal.value, ConfigError) or optimizer.keys() != {"by_name"}


def test_a_callable_for_a_scheduler_is_refused_without_an_optimizer():
    with pytest.raises(ArgumentError, match=r"^schedulers: a callable gets the optimizer, and there is none"):
        trainer(model=linear(), optimizers=None, schedulers=partial(LinearLR, total_iters=2))
