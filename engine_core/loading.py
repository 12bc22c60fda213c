"""Import one plugin and check it; whatever it raises is turned into a record that says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from .errors import add_note
from .installed import import_object
from .kinds import check_plugin
from .messages import cause_of, remedy_for
from .records import DENY, PluginRecord, Source

__all__ = ["Loaded", "load_plugin"]


class Loaded(NamedTuple):
    """What came of an import: the plugin and its record, or a record that is `broken` and what was raised."""

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
        remedy = remedy_for(error, source.installed, record.module)
        otherwise = f"fix or uninstall {record.distribution}, or disable it with {DENY}={record.qualified_name}"
        reason = f"{cause_of(error)}; {remedy or otherwise}"
        return Loaded(replace(record, status="broken", reason=reason), error=error)
    return Loaded(record, plugin)
