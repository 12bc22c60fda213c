"""Three passes: one that places, one that drops, one that looks."""

from engine_core import PassMetadata, algorithm_pass, passes

from .algorithms import Anywhere
from .journal import journal


@algorithm_pass(
    PassMetadata(
        name="sort_api1_anywhere_last",
        description="put Anywhere last",
        stage="placement",
        after=("apply_declared_order",),
        before=("not_installed",),
        events=("after_dataloader",),
        hook_api=1,
    )
)
def sort_api1_anywhere_last(algorithms, event):
    return passes.sort_to_back(algorithms, Anywhere)


@algorithm_pass(stage="placement", after=("sort_api1_anywhere_last",), pure=False, changes_members=True)
def drop_api1_muted(algorithms, event):
    return [algorithm for algorithm in algorithms if not getattr(algorithm, "muted", False)]


@algorithm_pass(stage="check", pure=False, events=("after_dataloader", "before_train_batch"))
def look_at_api1(algorithms, event):
    journal.append(f"passes at {event}: {' '.join(type(algorithm).__name__ for algorithm in algorithms)}")
    return algorithms
