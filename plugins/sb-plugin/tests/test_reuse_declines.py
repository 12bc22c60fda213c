"""Where a training forward does not repeat the scoring one, it is detected, and the step is exact all the same.

What a look at the model shows is said before any step.
Each value of a row is compared in its place, each place of a row in a product, each call, and each number of rows.
"""

import copy
import pickle
import re

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from sb_plugin.reuse import LinearOutputs, unsound

X = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
ROWS = torch.arange(0, 32, 2)


def net(*parts):
    return nn.Sequential(nn.Linear(64, 512), *parts, nn.Linear(512, 512))


class Calls(nn.Module):
    """A module of a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def step(model, x, rows, reuse):
    """Return the outputs and gradients of a step, with a scoring forward that leaves the generator as it was."""
    if reuse is not None:
        with torch.random.fork_rng(), torch.no_grad(), reuse.recording(model, len(x)):
            torch.manual_seed(99)
            model(x)
        reuse.keep(rows)
        reuse.replay()
    model.zero_grad()
    outputs = model(x[rows])
    if reuse is not None:
        reuse.end()
    outputs.square().sum().backward()
    return [outputs.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_exact(model, reuse, rows=ROWS, x=X):
    torch.manual_seed(4)
    expected = step(model, x, rows, None)
    torch.manual_seed(4)
    found = step(model, x, rows, reuse)
    assert all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))


OTHER_INPUTS = "layer '2' gets other inputs for 16 rows than for the same rows among 32"
NOT_REPEATED = {
    "rare F.dropout": lambda x: F.dropout(x, 0.001),
    "statistics by hand": lambda x: x - x.mean(0),
    "random signs": lambda x: x * torch.randn(x.shape[1]).sign(),
    "noise of one bit": lambda x: x + 1e-7 * torch.rand(x.shape),
}


@pytest.mark.parametrize("function", NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_a_model_that_does_not_repeat_itself_is_found_and_the_step_is_exact(function):
    reuse, model = LinearOutputs(), net(Calls(function))
    assert unsound(model) is None
    assert_exact(model, reuse)
    assert (reuse.fault or "").startswith(OTHER_INPUTS)


def recorded(model, x=X, rows=ROWS, reuse=None):
    """Return the outputs of a scoring forward, ready for the training one."""
    reuse = reuse or LinearOutputs()
    with torch.no_grad(), reuse.recording(model, len(x)):
        model(x)
    reuse.keep(rows)
    reuse.replay()
    return reuse


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weight", lambda weight: weight.mul_(2)),
        ("weight", lambda weight: setattr(weight, "data", weight.data.flip(0))),
        ("bias", lambda bias: bias.data.clamp_(-0.01, 0.01)),
    ],
)
def test_weights_changed_after_scoring_are_found(name, change):
    model = net()
    reuse = recorded(model)
    with torch.no_grad():
        change(getattr(model[0], name))
    assert torch.equal(model(X[ROWS]), model[1](F.linear(X[ROWS], model[0].weight, model[0].bias)))
    assert reuse.fault == "the weights of layer '0' were changed between scoring and training"


class Sides(nn.Module):
    """A layer that sees rows, and one that sees something else."""

    def __init__(self, other):
        super().__init__()
        self.rows, self.side, self.other = nn.Linear(64, 512), nn.Linear(64, 512), other

    def forward(self, x):
        return self.rows(x) + self.other(self.side, x)


def _in_bf16(side, x):
    with torch.autocast("cpu", torch.bfloat16):
        return side(x)


def _in_inference_mode(side, x):
    with torch.inference_mode():
        return side(x).clone() * 0 + 1


def _dual(side, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(side(forward_ad.make_dual(x, x))).primal


ASIDE = {
    "as many features and no rows": lambda side, x: side(torch.ones(64)),
    "other rows": lambda side, x: side(torch.ones(5, 64)).sum(0),
    "as many rows by chance": lambda side, x: side(torch.ones(64, 64)).sum(0),
    "rows second": lambda side, x: side(x.expand(3, *x.shape).contiguous()).sum(0),
    "not contiguous": lambda side, x: side(x.t().contiguous().t()),
    "autocast": _in_bf16,
    "torch.func": lambda side, x: torch.func.vjp(side, x)[0],
    "dual numbers": _dual,
    "only while training": lambda side, x: side(x) if torch.is_grad_enabled() else x.sum(),
    "only while scoring": lambda side, x: x[:, :1] if torch.is_grad_enabled() else side(x),
    "twice while scoring": lambda side, x: side(x) if torch.is_grad_enabled() else side(x) + side(x),
    "in inference mode": _in_inference_mode,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # of torch, at its first dual number
@pytest.mark.parametrize("other", ASIDE.values(), ids=ASIDE)
def test_calls_that_do_not_fit_or_come_once_are_left_alone_beside_others(other):
    reuse, model, x = LinearOutputs(), Sides(other), torch.randn(64, 64)
    for _ in range(3):
        assert_exact(model, reuse, ROWS, x)
        assert reuse.fault is None
        assert reuse.reused >= 1


class Doubled(nn.Linear):
    """A layer that returns something else than its base does."""

    def forward(self, x):
        return super().forward(x) * 2


def test_layers_of_derived_classes_are_left_alone():
    reuse, model = LinearOutputs(), net(Doubled(512, 512))
    for _ in range(2):
        assert_exact(model, reuse)
        assert (reuse.reused, reuse.fault) == (2, None)


def test_where_no_call_fits_the_reason_says_so():
    reuse = LinearOutputs()
    model = nn.Sequential(Calls(lambda x: x.flatten()[None]), nn.Linear(64 * 32, 8))
    with torch.no_grad(), reuse.recording(model, 32):
        model(X)
    assert (reuse.fault or "").startswith("no nn.Linear of more than one output feature gets contiguous inputs of 32")


def test_parts_of_the_kept_rows_are_computed_as_without():
    model = net()
    reuse = recorded(model)
    half = model(X[ROWS[:8]])
    reuse.end()
    assert torch.equal(half, model(X[ROWS[:8]]))
    assert (reuse.reused, reuse.fault) == (0, None)


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 63), (torch.float64, 64), (torch.bfloat16, 63)])
@pytest.mark.parametrize("sign", [1, -1])
def test_inputs_of_any_width_and_place_in_memory_are_compared(dtype, width, sign):
    layer = nn.Linear(width, 512, dtype=dtype)
    x = torch.randn(32 * width + 1, dtype=dtype)[1:].view(32, width)
    reuse = recorded(layer, x)
    layer(x[ROWS] * sign)
    assert (reuse.fault is None) == (sign == 1)


def test_rows_that_are_not_finite_are_compared_by_their_bits():
    reuse, x = LinearOutputs(), X.clone()
    x[0], x[2] = torch.nan, torch.inf
    for _ in range(3):
        given_again(nn.Linear(64, 512), x, ROWS, reuse)
        assert (reuse.reused, reuse.fault, reuse.rounding) == (1, None, None)


def given_again(model, x, rows, reuse, kept=None):
    """Return what a step's training forward gives for `kept`, by default the rows that were scored."""
    recorded(model, x, rows, reuse)
    output = model(x[rows] if kept is None else kept)
    reuse.end()
    return output


CHANGES = {
    "flipped": lambda x: x.flip(1),
    "two negative": lambda x: torch.cat([-x[:, :1], x[:, 1:3], -x[:, 3:4], x[:, 4:]], 1),
    "zeros negative": lambda x: x.where(x != 0, -0.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_values_in_other_places_or_of_other_sign_are_other_inputs(change):
    """Rows of halves that are each other's negative, whose sums show nothing."""
    half = torch.randn(32, 32).round()
    x, reuse, layer = torch.cat([half, -half], 1), LinearOutputs(), nn.Linear(64, 512)
    for _ in range(2):
        given_again(layer, x, ROWS, reuse)
    given_again(layer, x, ROWS, reuse, change(x[ROWS]))
    assert (reuse.fault or "").startswith("layer '' gets other inputs")


def test_a_single_output_feature_is_left_alone():
    """A product with a vector rounds the last rows otherwise."""
    model, reuse, x = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)), LinearOutputs(), torch.randn(97, 97, 8)
    for _ in range(6):
        rows = torch.randperm(97)[:48].sort().values
        assert torch.equal(given_again(model, x, rows, reuse), model(x[rows]))
        assert (reuse.reused, reuse.fault, reuse.rounding) == (1, None, None)


def test_each_place_of_a_row_is_compared_before_anything_is_taken(monkeypatch):
    """A kernel that rounds the last row of a product otherwise, which the rows that are kept first don't show."""
    true = nn.Linear.forward

    def rounds_its_last_row(layer, inputs):
        output = true(layer, inputs)
        return output.index_add(0, torch.tensor([len(output) - 1]), output[-1:] * (len(output) == 32), alpha=1e-6)

    monkeypatch.setattr(nn.Linear, "forward", rounds_its_last_row)
    layer, reuse, x = nn.Linear(64, 512), LinearOutputs(), torch.randn(32, 64)
    for rows in (ROWS, ROWS, ROWS + 1):
        assert torch.equal(given_again(layer, x, rows, reuse), layer(x[rows]))
    assert reuse.rounding == "layer '' gives other bits for 16 rows than for 32"


class Two(nn.Module):
    """One that rounds arbitrarily next to one that does not, and one after it."""

    def __init__(self):
        super().__init__()
        self.even, self.uneven, self.after = nn.Linear(64, 512), nn.Linear(64, 64), nn.Linear(64, 512)

    def forward(self, x):
        return self.after(self.uneven(x)) + self.even(x)


def uneven(monkeypatch, is_uneven):
    """Let some products of 16 rows round otherwise."""
    true = nn.Linear.forward

    def forward(layer, inputs):
        output = true(layer, inputs)
        return output * (1 + 1e-6) if len(inputs) == 16 and is_uneven(layer, inputs) else output

    monkeypatch.setattr(nn.Linear, "forward", forward)


def test_beside_a_layer_that_rounds_otherwise_others_are_reused(monkeypatch):
    model, reuse, x = Two(), LinearOutputs(), torch.randn(32, 64)
    uneven(monkeypatch, lambda layer, _: layer is model.uneven)
    for _ in range(3):
        assert torch.equal(given_again(model, x, ROWS, reuse), model(x[ROWS]))
        assert (reuse.reused, reuse.fault) == (1, None)
        assert reuse.rounding == "layer 'uneven' gives other bits for 16 rows than for 32"


def test_other_numbers_of_rows_are_compared_again(monkeypatch):
    layer, reuse, x = nn.Linear(64, 512), LinearOutputs(), torch.randn(32, 64)
    uneven(monkeypatch, lambda *_: True)
    found = []
    for rows in (ROWS[:12], ROWS[:12], ROWS, ROWS[:12]):
        assert torch.equal(given_again(layer, x, rows, reuse), layer(x[rows]))
        found.append(reuse.reused)
    assert found == [1, 1, 0, 1]


def test_each_call_of_a_layer_is_compared(monkeypatch):
    layer, reuse, x = nn.Linear(64, 64), LinearOutputs(), torch.randn(32, 128, 64)
    uneven(monkeypatch, lambda _, inputs: bool(inputs.amin() >= 0))
    model = nn.Sequential(layer, nn.ReLU(), layer)
    for _ in range(3):
        assert torch.equal(given_again(model, x, ROWS, reuse), model(x[ROWS]))
        assert (reuse.reused, reuse.rounding is None) == (1, False)


def test_a_contiguous_row_of_a_wider_table_is_compared():
    reuse, layer, x = LinearOutputs(), nn.Linear(8, 16), torch.randn(16, 9)
    model = nn.Sequential(nn.Module(), layer)
    model[0].forward = lambda x: x[:, :8].contiguous()
    assert torch.equal(given_again(model, x, torch.arange(1), reuse), model(x[:1]))


@pytest.mark.parametrize("shape", [(32, 64), (32, 2, 5, 64)], ids=str)
def test_an_output_that_is_changed_in_place_in_training_only_keeps_its_bits(shape):
    reuse, layer, x, grads = LinearOutputs(), nn.Linear(64, 512), torch.randn(shape), []
    for run in (lambda: given_again(layer, x, ROWS, reuse), lambda: layer(x[ROWS])) * 2:
        layer.zero_grad()
        output = run()
        output[..., :4] = 0
        output.relu_().square().sum().backward()
        grads.append([output.detach(), *(parameter.grad.clone() for parameter in layer.parameters())])
    assert all(torch.equal(mine, other) for mine, other in zip(grads[2], grads[3], strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_made_in_the_middle_of_a_step_computes_as_the_layers_do(copied):
    model, x = nn.Sequential(nn.Linear(64, 512)), torch.randn(32, 64)
    reuse = recorded(model, x)
    twin = copied(model)
    reuse.end()
    assert len(pickle.dumps(twin)) < len(pickle.dumps(model)) + 500  # what was recorded is not in it
    expected = model(x)
    model[0].weight.data.zero_()
    assert torch.equal(twin(x), expected)
    assert torch.equal(copy.deepcopy(twin)(x), expected)


def hooked(register):
    model = net(nn.ReLU())
    getattr(model[1], register)(lambda *_: None)
    return model


def with_own_forward():
    model = net()
    model[1].forward = lambda x: x
    return model


def compiled_in_place():
    model = net(nn.ReLU())
    model[0].compile(backend="eager")
    return model


def of_torch(name):
    """Return a module of a class with this name in torch; the real ones need a process group."""
    return type(name, (nn.Module,), {"__module__": "torch.distributed.somewhere"})()


REASONS = {
    "BatchNorm": (lambda: net(nn.BatchNorm1d(512)), r"'1' \(BatchNorm1d\) uses the statistics of the batch"),
    "SyncBatchNorm": (lambda: net(nn.SyncBatchNorm(512)), r"'1' \(SyncBatchNorm\) uses the statistics"),
    "Dropout": (lambda: net(nn.Dropout(0.1)), r"dropout is active in '1' \(Dropout\)"),
    "AlphaDropout": (lambda: net(nn.AlphaDropout(0.1)), r"dropout is active in '1' \(AlphaDropout\)"),
    "attention": (lambda: net(nn.MultiheadAttention(512, 1, 0.1)), r"dropout is active in '1' \(MultiheadAttention"),
    "LSTM": (lambda: net(nn.LSTM(512, 512, 2, dropout=0.1)), r"dropout is active in '1' \(LSTM\)"),
    "forward hook": (lambda: hooked("register_forward_hook"), r"'1' \(ReLU\) has hooks"),
    "pre-hook": (lambda: hooked("register_forward_pre_hook"), r"'1' \(ReLU\) has hooks"),
    "backward hook": (lambda: hooked("register_full_backward_hook"), r"'1' \(ReLU\) has hooks"),
    "backward pre-hook": (lambda: hooked("register_full_backward_pre_hook"), r"'1' \(ReLU\) has hooks"),
    "torch.compile": (lambda: torch.compile(net(), backend="eager"), "the model .*is wrapped by torch.compile"),
    "a part compiled": (lambda: net(torch.compile(nn.ReLU(), backend="eager")), "'1' .*is wrapped by torch.compile"),
    "compiled in place": (compiled_in_place, r"'0' \(Linear\) is wrapped by torch.compile"),
    "DataParallel": (lambda: nn.DataParallel(net()), r"the model \(DataParallel\) is wrapped by DataParallel"),
    "DDP": (lambda: net(of_torch("DistributedDataParallel")), "'1' .*is wrapped by DistributedDataParallel"),
    "FSDP": (lambda: net(of_torch("FullyShardedDataParallel")), "'1' .*is wrapped by FSDP"),
    "fully_shard": (lambda: net(of_torch("FSDPModule")), "'1' .*is wrapped by fully_shard"),
    "no Linear": (lambda: nn.Sequential(nn.Conv2d(1, 1, 1)), "Sequential has no layer that is exactly"),
    "own forward": (with_own_forward, r"'1' \(Linear\) has its own forward"),
}


@pytest.mark.parametrize(("make", "reason"), REASONS.values(), ids=REASONS)
def test_a_look_at_the_model_shows_it(make, reason):
    assert re.match(reason, unsound(make()) or "")


def test_a_look_finds_hooks_for_all_modules_autocast_and_another_linear(monkeypatch):
    model = net()
    hook = register_module_forward_hook(lambda *_: None)
    assert unsound(model) == "hooks are registered for all modules: remove them"
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast is on" in (unsound(model) or "")
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert "nn.Linear.forward was replaced" in (unsound(model) or "")


def test_what_is_in_eval_mode_or_drops_nothing_is_not_a_reason():
    drops = nn.BatchNorm1d(512), nn.Dropout(0.5), nn.MultiheadAttention(512, 1, 0.5), nn.LSTM(512, 512, 2, dropout=0.5)
    for part in drops:
        assert unsound(net(part.eval(), nn.Dropout(0), nn.LayerNorm(512), nn.MultiheadAttention(512, 1))) is None
