"""A short audited training."""

import warnings

from parts import trainer

from engine_core.errors import AuditWarning
from engine_core_author.audit_callback import Audit


def audited(*algorithms, audit=None, data=None, model=None, **settings):
    """Train one epoch of two batches under audit; return the audit and its messages."""
    audit = Audit() if audit is None else audit
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AuditWarning)
        with trainer(data, model, algorithms=list(algorithms), callbacks=[audit], **settings) as made:
            made.fit()
    return audit, [str(warning.message) for warning in caught]
