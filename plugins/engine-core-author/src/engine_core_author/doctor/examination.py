"""Examine plugins one by one, each in its own process, and put what was found beside its record."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine_core.errors import ArgumentError, ArgumentTypeError, PluginError
from engine_core.messages import LONGEST, readable
from engine_core.registry import CORE, PluginRecord, Registry, unmet

from .probe import FINDINGS, TRACE
from .processes import Ended, Processes

# The path is the examiner's, so that the same modules are found; what `-c` puts in front, the current folder, goes.
PROGRAM = """
import sys
folder, limit_s, kind, name, *path = sys.argv[1:]
sys.path[:] = path
from engine_core_author.doctor.probe import probe
probe(folder, limit_s, kind, name)
"""
MOST_S = 24 * 60 * 60
"""The longest time that an import may be given."""
START_S = 20.0
"""How long a process may take beyond the limit, for its own start and for what is checked after the import."""


@dataclass(frozen=True)
class Diagnosis:
    """A plugin's record as it is after the import, and what was found.

    Args:
        problems: what is wrong, each with its remedy; none of a plugin that is disabled.
        seconds: how long the import took; None: it was not tried.
        imports_torch: did the import bring torch? None: it was not tried, or did not end.
    """

    record: PluginRecord
    problems: tuple[str, ...] = ()
    seconds: float | None = None
    imports_torch: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the record and these beside them, as JSON has them."""
        found = {"problems": list(self.problems), "seconds": self.seconds, "imports_torch": self.imports_torch}
        return {**asdict(self.record), **found}


def examine(records: Sequence[PluginRecord] | None = None, timeout_s: float = 20.0) -> list[Diagnosis]:
    """Import each plugin in its own process, check it strictly, and return what was found, in the same order.

    What is disabled, or broken as metadata shows, is not imported. Nothing is imported in this process.

    Args:
        records: default: all that are installed.
        timeout_s: after how many seconds an import is stopped, with all processes that it has started.

    Example:
        >>> examine([])
        []
    """
    if not isinstance(timeout_s, (int, float)):
        raise ArgumentTypeError(f"timeout_s is a number of seconds, not {timeout_s!r}")
    if not 0 < timeout_s < float("inf"):
        raise ArgumentError(f"timeout_s has to be a positive number of seconds, not {timeout_s!r}")
    if timeout_s > MOST_S:
        raise ArgumentError(f"timeout_s has to be at most {MOST_S}, a day, not {timeout_s!r}")
    records = Registry.scan().records if records is None else records
    processes = Processes()
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        try:
            return list(pool.map(lambda record: _diagnose(record, timeout_s, processes), records))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise


def _diagnose(record: PluginRecord, timeout_s: float, processes: Processes) -> Diagnosis:
    if record.status == "disabled":
        return Diagnosis(record)
    known = (*((record.reason,) if record.reason else ()), *_of_distribution(record))
    if record.status == "broken":
        return Diagnosis(record, known)
    with tempfile.TemporaryDirectory(prefix="engine-core-doctor-") as folder:
        arguments = (folder, str(timeout_s), record.kind, record.qualified_name, *sys.path)
        ended = processes.run((sys.executable, "-c", PROGRAM, *arguments), timeout_s + START_S)
        began = Path(folder, TRACE).exists()
        findings, trace = (_read(Path(folder, name)) for name in (FINDINGS, TRACE))
    printed = next((line.strip()[:LONGEST] for line in ended.stdout.splitlines() if line.strip()), "")
    noise = (f"it prints on import: {printed!r}; its authors should log it instead",) if printed else ()
    if not began:
        raise PluginError(f"no process could be started to import plugins:\n{ended.stderr}")
    if not findings:
        reason = _hanging(trace, timeout_s) if trace or ended.code is None else _dead(ended)
        seconds = timeout_s if trace or ended.code is None else None
        return Diagnosis(replace(record, status="broken", reason=reason), (*known, reason, *noise), seconds)
    found = json.loads(findings)
    if found["broken"]:
        record = replace(record, status="broken", reason=found["broken"])
        known = (*known, found["broken"])
    closer = (readable(problem, 5 * LONGEST) for problem in found["problems"])
    return Diagnosis(record, (*known, *closer, *noise), found["seconds"], found["imports_torch"])


def _of_distribution(record: PluginRecord) -> list[str]:
    """Return what may make a plugin fail although it can be imported, as its distribution's metadata shows."""
    if record.distribution == CORE:
        return []
    found = [
        f"it requires {requirement}, which is {instead}; run: pip install '{requirement}'"
        for requirement, instead in unmet(record.distribution)
    ]
    owner = Registry.scan().owner_of(record.module)
    if owner not in (None, record.distribution):
        what = f"its entry point lies in {record.module!r}, a module of {owner}"
        found.append(f"{what}; report it to the authors of {record.distribution}")
    return found


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def _hanging(trace: str, timeout_s: float) -> str:
    frames = re.findall(r'^  File "([^<"][^"]*)", line (\d+)', trace, re.MULTILINE)
    where = f" and was at {readable(frames[0][0])}:{frames[0][1]}" if frames else ""
    return f"the import did not finish within {timeout_s:g} s{where}; report it to its authors, or raise --timeout"


def _dead(ended: Ended) -> str:
    assert ended.code is not None
    names = {number.value: number.name for number in signal.Signals}  # the real-time ones have none, but for the ends
    how = f"exit code {ended.code}" if ended.code >= 0 else f"signal {names.get(-ended.code, -ended.code)}"
    last = next((f": {readable(line.strip())}" for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
    return f"the import ended the process with {how}{last}; report it to its authors"
