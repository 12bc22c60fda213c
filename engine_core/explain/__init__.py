"""The order of algorithms at each event, and why: for a config, for installed algorithms, for a finished run."""

from ..moved import moved
from .explanation import Explanation, PairReasons, Skipped, Step, Told, Unordered, changes_in, find_algorithm, why
from .recording import explain_algorithms, explain_config, explain_engine, explain_installed
from .text import format_orders, format_pair, format_skipped, format_unordered, printable

__all__ = [
    "Explanation",
    "PairReasons",
    "Skipped",
    "Step",
    "Told",
    "Unordered",
    "changes_in",
    "explain_algorithms",
    "explain_config",
    "explain_engine",
    "explain_installed",
    "find_algorithm",
    "format_orders",
    "format_pair",
    "format_skipped",
    "format_unordered",
    "printable",
    "why",
]

__getattr__ = moved(__name__, "to_mermaid", "to_svg", extra="report")
