"""Passes order the algorithms that match one event: how to mark one, the core's own, and how an order came about."""

from __future__ import annotations

from .builtin import (
    apply_declared_order,
    explicit_order,
    set_filo_order,
    table_of,
    warn_if_multiple_loss_interpolation,
)
from .contract import (
    AlgorithmPass,
    PassArgument,
    algorithm_pass,
    check_index,
    check_pass,
    metadata_of,
    name_of,
    parse_passes,
    sort_to_back,
    sort_to_front,
)
from .declared import declared_edges, referred, registered_name
from .derivation import DECLARED, FILO, AlgorithmRecord, Derivation, Explained, PassRecord, Reason, precedes
from .pass_list import ActivePass, PassList, record_of
from .toposort import Edge, stable_sort, who_moved

__all__ = [
    "DECLARED",
    "FILO",
    "ActivePass",
    "AlgorithmPass",
    "AlgorithmRecord",
    "Derivation",
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
