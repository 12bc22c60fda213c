"""The private names that the core and the audit use: the page lists each, and the installed libraries have it."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

from engine_core.parallel.settings import LOWEST_FOR_FSDP

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Private names\n")[2].partition("\n## ")[0]
OURS = {"_given", "_finished", "_trained", "_observers", "_enter", "_leave", "_session", "_pre_", "_impl"}
PYTHONS = {"_fields", "_path", "_current_frames", "_getframe"}


def used():
    """Return the private names that ruff allows by a comment, that strings hold, or that an import names."""
    found = set()
    for path in [*ROOT.glob("engine_core/**/*.py"), *ROOT.glob("plugins/engine-core-author/src/**/*.py")]:
        code = path.read_text(encoding="utf-8")
        for line in code.splitlines():
            if "SLF001" in line:
                found |= set(re.findall(r"(?<!self)\.(_[A-Za-z]\w*)", line))
        nodes = list(ast.walk(ast.parse(code)))
        strings = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
        found |= {text for text in strings if re.fullmatch(r"_[a-z]\w+", text)}
        modules = (node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
        found |= {part for module in modules for part in module.split(".") if re.match(r"_[a-z]", part)}
    return found - OURS - PYTHONS


def test_the_page_lists_exactly_the_private_names_that_the_code_uses():
    assert {name.partition(".")[0] for name in re.findall(r"`(_\w[\w.]*)`", SECTION)} == used()


def stepped():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    optimizer.step()
    return optimizer


MAKERS = {
    "_modules _parameters _buffers _forward_pre_hooks _forward_hooks _backward_pre_hooks": lambda: nn.Linear(1, 1),
    "_load_from_state_dict _load_state_dict_pre_hooks": lambda: nn.Linear(1, 1),
    "_base _version _backward_hooks _post_accumulate_grad_hooks": lambda: torch.zeros(1),
    "_indices _values": lambda: torch.zeros(1).to_sparse(),
    "_C.DisableTorchFunctionSubclass": lambda: torch,
    "_optimizer_step_pre_hooks _optimizer_step_post_hooks _opt_called": stepped,
    "_iterator": lambda: DataLoader([0]),
    "_index_sampler": lambda: iter(DataLoader([0])),
    "_get_default_store": lambda: distributed.distributed_c10d,
    "_computed _reductions _to_sync _update_count": lambda: pytest.importorskip("torchmetrics").MeanMetric(),
}


@pytest.mark.parametrize(("names", "make"), list(MAKERS.items()))
def test_the_installed_version_has_each(names, make):
    whole = make()
    for name in names.split():
        owner = whole
        for part in name.split("."):
            assert hasattr(owner, part), f"{type(owner).__name__} has no {name!r}: see the table of private names"
            owner = getattr(owner, part)


def test_the_installed_torch_says_where_a_piece_lies():
    if tuple(map(int, torch.__version__.split(".")[:2])) < tuple(map(int, LOWEST_FOR_FSDP.split("."))):
        pytest.skip("no run is sharded with this torch")
    utils = importlib.import_module("torch.distributed.tensor._utils")
    assert hasattr(utils, "compute_local_shape_and_global_offset")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_the_installed_torch_says_what_it_has_compiled():
    assert hasattr(torch.compile(nn.Linear(1, 1)), "_orig_mod")
    assert hasattr(torch.compile(lambda x: x), "_torchdynamo_orig_callable")


def test_each_listed_name_is_looked_for():
    looked_for = {name for names in MAKERS for name in names.split()} | {"_orig_mod", "_torchdynamo_orig_callable"}
    looked_for |= {"_utils.compute_local_shape_and_global_offset"}
    assert set(re.findall(r"`(_\w[\w.]*)`", SECTION)) == looked_for
