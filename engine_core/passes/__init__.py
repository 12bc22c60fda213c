"""Passes order the algorithms that match one event: how to mark one, the core's own, and how an order came about."""

from __future__ import annotations

from .contract import (
    AlgorithmPass,
    algorithm_pass,
    apply_declared_order,
    check_pass,
    declared_edges,
    explicit_order,
    metadata_of,
    name_of,
    referred,
    registered_name,
    set_filo_order,
    sort_to_back,
    sort_to_front,
    table_of,
    warn_if_multiple_loss_interpolation,
)
from .derivation import DECLARED, FILO, AlgorithmRecord, Course, Explained, PassRecord, Reason, precedes
from .pass_list import ActivePass, PassArgument, PassList, check_index, parse_passes, record_of
from .toposort import Edge, stable_sort, who_moved

__all__ = [
    "DECLARED",
    "FILO",
    "ActivePass",
    "AlgorithmPass",
    "AlgorithmRecord",
    "Course",
    "Edge",
    "Explained",
    "PassArgument",
    "PassList",
    "PassRecord",
    "Reason",
    "algorithm_pass",
    "apply_declared_order",
    "check_index",
    "check_pass",
    "declared_edges",
    "explicit_order",
    "metadata_of",
    "name_of",
    "parse_passes",
    "precedes",
    "record_of",
    "referred",
    "registered_name",
    "set_filo_order",
    "sort_to_back",
    "sort_to_front",
    "stable_sort",
    "table_of",
    "warn_if_multiple_loss_interpolation",
    "who_moved",
]
