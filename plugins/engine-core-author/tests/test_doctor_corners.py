"""The doctor in rare cases: signals without a name, time limits that are not numbers."""

import signal

import pytest

from engine_core.errors import ArgumentTypeError
from engine_core.registry import Registry
from engine_core_author.doctor import examine


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="real-time signals are not everywhere")
def test_a_signal_without_a_name_is_reported_by_its_number(install):
    number = signal.SIGRTMIN + 1
    install(
        "acme-plugin",
        {"algorithms": {"acme": "acme_module:Acme"}},
        {"acme_module": f"import os; os.kill(os.getpid(), {number})"},
    )
    (found,) = examine([r for r in Registry.scan().records if r.name == "acme"])
    assert found.problems == (f"the import ended the process with signal {number}; report it to its authors",)


@pytest.mark.parametrize("timeout_s", [None, "5"])
def test_a_time_limit_is_a_number(timeout_s):
    with pytest.raises(ArgumentTypeError, match=f"^timeout_s is a number of seconds, not {timeout_s!r}$"):
        examine([], timeout_s)
