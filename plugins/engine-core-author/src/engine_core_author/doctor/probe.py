"""What runs in a plugin's own process: import it, check it, write down what was found, and go."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from engine_core.errors import PluginError
from engine_core.messages import cause_of
from engine_core.registry import PluginRecord, Registry, load_plugin

FINDINGS, TRACE = "findings.json", "trace.txt"
"""What a probe writes into its folder: what it found, and where the import was when its time was over."""


def probe(folder: str, limit_s: str, kind: str, name: str) -> NoReturn:
    """Import the plugin with this qualified name, write what was found, and end the process whatever still runs."""
    before = set(sys.modules)
    registry = Registry.scan()
    record = next(r for r in registry.records if (r.kind, r.qualified_name) == (kind, name))
    plugin, broken = None, ""
    with Path(folder, TRACE).open("w", encoding="utf-8") as trace:
        faulthandler.dump_traceback_later(float(limit_s), exit=True, file=trace)
        started_s = time.perf_counter()
        try:
            plugin = load_plugin(record)
        except PluginError as error:
            broken = str(error)
        seconds = time.perf_counter() - started_s
        torch = "torch" in sys.modules.keys() - before
        _mute()
        faulthandler.dump_traceback_later(float(limit_s), exit=True, file=trace)
        problems = [] if broken else _look_closer(record, plugin, registry)
        faulthandler.cancel_dump_traceback_later()
    findings = {"seconds": round(seconds, 3), "imports_torch": torch, "broken": broken, "problems": problems}
    Path(folder, FINDINGS).write_text(json.dumps(findings), encoding="utf-8")
    os._exit(0)


def _look_closer(record: PluginRecord, plugin: Any, registry: Registry) -> list[str]:
    from .strict import broken_declarations, problems_of  # noqa: PLC0415 - its imports don't count as the plugin's time

    try:
        problems = problems_of(record, plugin)
        if record.kind == "passes":
            problems += broken_declarations(record, plugin, registry)
    except Exception as error:  # noqa: BLE001  a metaclass may answer a look with anything
        return [f"it was imported, but examining it failed: {cause_of(error)}"]
    return problems


def _mute() -> None:
    """Send what is printed from now on to nowhere: the import is over."""
    with contextlib.suppress(Exception):  # a plugin may have replaced or closed it
        sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
