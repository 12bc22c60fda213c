"""The pytest plugin: a line that says what is installed, and short reports of broken rules, only if the kit is used.

pytest imports it wherever this distribution is installed, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Report which engine-core and which plugins the kit finds."""
    if config.get_verbosity() < 0 or f"{__package__}.conformance" not in sys.modules:
        return []
    from engine_core.registry import CORE, Registry  # noqa: PLC0415  only when needed

    versions = {record.distribution: record.version for record in Registry.scan().records}
    plugins = [f"{name} {versions[name]}" for name in sorted(set(versions) - {CORE})]
    return [f"{CORE} {versions.get(CORE, '?')}, plugins: {', '.join(plugins) or 'none'}"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Report a broken rule by its message and where the plugin raised, without the kit's own frames."""
    report = yield
    rules: Any = sys.modules.get(f"{__package__}.rules")
    if (
        rules is not None
        and call.excinfo is not None
        and isinstance(call.excinfo.value, rules.BrokenRule)
        and not item.config.getoption("fulltrace", default=False)
    ):
        report.longrepr = call.excinfo.getrepr(style="value")
        if cause := _traceback_of(call.excinfo.value.__cause__):
            report.sections.append(("What was raised", cause))
    return report


def _traceback_of(error: BaseException | None) -> str:
    """Return the traceback of what an algorithm or pass raised, without engine-core's frames."""
    if error is None:
        return ""
    import traceback  # noqa: PLC0415  only when needed

    frames = traceback.extract_tb(error.__traceback__)
    ours = tuple(f"{sys.modules[name].__path__[0]}{os.sep}" for name in ("engine_core", __package__))
    own = [frame for frame in frames if not frame.filename.startswith(ours)]
    lines = ["Traceback (most recent call last), without engine-core:\n", *traceback.format_list(own or frames[-1:])]
    return "".join([*lines, *traceback.format_exception_only(type(error), error)])
