"""Algorithms that do this or that, and a short audited training of them."""

import warnings

from parts import trainer

from engine_core import Algorithm, AlgorithmMetadata
from engine_core.errors import AuditWarning
from engine_core_author.audit_callback import Audit


def acting(act, *events, writes=(), match=lambda event, state: True, name="Faulty", before=()):
    """Return an algorithm of the class `name` that calls `act(event, state)` at its events."""

    class Acting(Algorithm):
        metadata = AlgorithmMetadata(events=events, writes=writes, before=before)

        def match(self, event, state):
            return match(event, state)

        def apply(self, event, state, logger):
            act(event, state)

    Acting.__name__ = name
    return Acting()


def audited(*algorithms, audit=None, data=None, model=None, **settings):
    """Train one epoch of two batches under audit; return the audit and its messages."""
    audit = Audit() if audit is None else audit
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AuditWarning)
        with trainer(data, model, algorithms=list(algorithms), callbacks=[audit], **settings) as made:
            made.fit()
    return audit, [str(warning.message) for warning in caught]
