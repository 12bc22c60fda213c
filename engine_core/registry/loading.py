"""Import one plugin and check it; what it raises becomes a record that says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import MetadataError, add_note
from ..messages import cause_of, readable
from .distributions import Installed, import_object
from .plugin_checks import check_plugin
from .records import DENY, PluginRecord, Source
from .requirements import unmet


class Loaded(NamedTuple):
    """The result of an import: the plugin and its record, or a `broken` record and the exception."""

    record: PluginRecord
    plugin: Any = None
    error: BaseException | None = None


def load_plugin(record: PluginRecord, source: Source) -> Loaded:
    """Import what an entry point names and check that it is a plugin of that kind."""
    try:
        plugin = import_object(source.entry_point)
        check_plugin(record, plugin)
    except KeyboardInterrupt as interruption:
        add_note(interruption, f"while importing {record.title} from {record.entry_point!r}")
        raise
    except BaseException as error:  # noqa: BLE001  a plugin may raise SystemExit while it is imported
        remedy = _remedy_for(error, source.installed, record.module)
        otherwise = f"fix or uninstall {record.distribution}, or disable it with {DENY}={record.qualified_name}"
        reason = f"{cause_of(error)}; {remedy or otherwise}"
        return Loaded(replace(record, status="broken", reason=reason), error=error)
    return Loaded(record, plugin)


def _remedy_for(error: BaseException, installed: Installed, module: str) -> str:
    """Return the remedy for an exception that importing `module` raised, or nothing."""
    if isinstance(error, MetadataError) and ": hook_api: " in str(error):
        return f"or install another version of {installed.name}"
    if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str):
        missing = error.name.partition(".")[0]
        if missing == module.partition(".")[0]:
            return f"{installed.name} lacks a module of its own; install it again"
        lacking = [requirement for requirement, _ in unmet(installed.requires)]
        if lacking:
            quoted = " ".join(f"'{requirement}'" for requirement in lacking)
            return f"{installed.name} requires {', '.join(lacking)}; run: pip install {quoted}"
        return (
            f"{installed.name} does not declare what it needs for {readable(missing)!r}; report it to its authors, and "
            "install the distribution that has this module"
        )
    return ""
