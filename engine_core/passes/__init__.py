"""Passes order the algorithms that match an event: how to mark one, the core's own, and how an order came about."""

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
from .derivation import DECLARED, FILO, AlgorithmRecord, Derivation, Explained, PassRecord, Reason, precedes
from .member import Member, declared_edges, members_of, referred
from .pass_list import ActivePass, PassList
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
    "Member",
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
    "members_of",
    "metadata_of",
    "name_of",
    "parse_passes",
    "precedes",
    "referred",
    "set_filo_order",
    "sort_to_back",
    "sort_to_front",
    "stable_sort",
    "table_of",
    "warn_if_multiple_loss_interpolation",
    "who_moved",
]
