"""The order at each event with all that led to it, as data: what is shown, and what a manifest keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel

from ..course import AlgorithmRecord, Course, Explained, PassRecord
from ..ordering import Edge

__all__ = ["Explanation", "Skipped", "Told"]


@dataclass(frozen=True)
class Skipped:
    """What plays no part at some events, and why."""

    what: str
    why: str
    events: tuple[str, ...]


@dataclass(frozen=True)
class Explanation(Mapping[str, "list[Explained]"]):
    """The order at each event that an algorithm lists, by the event's value, as if all that list it matched.

    Args:
        algorithms: in the user's order.
        passes: in running order.
        courses: by event, how the order there came about.
        skipped: passes, references and names that play no part, with the reason.
        problems: what keeps an engine from taking these algorithms.
        warnings: what an engine warns of when it takes them.
    """

    algorithms: tuple[AlgorithmRecord, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    courses: Mapping[str, Course] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __getitem__(self, event: str) -> list[Explained]:
        return self.courses[event].explained()

    def __iter__(self) -> Iterator[str]:
        return (event for event, course in self.courses.items() if course.final)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps, so that `Told` can tell the same without any plugin."""
        return {
            "algorithms": [asdict(algorithm) for algorithm in self.algorithms],
            "passes": [asdict(record) for record in self.passes],
            "order": {event: [explained._asdict() for explained in order] for event, order in self.items()},
            "steps": {event: _steps(course) for event, course in self.courses.items()},
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "warnings": list(self.warnings),
        }


class Steps(BaseModel):
    """What a manifest keeps of a course: passes that left the list as it was are left out."""

    given: tuple[str, ...]
    passes: list[tuple[int, tuple[str, ...]]] = []
    declared: list[Edge] = []
    added: list[AlgorithmRecord] = []


class Told(BaseModel):
    """What a manifest tells about the order."""

    algorithms: list[AlgorithmRecord]
    passes: list[PassRecord]
    order: dict[str, list[Explained]]
    steps: dict[str, Steps]
    skipped: list[Skipped] = []
    warnings: list[str] = []

    def explanation(self) -> Explanation:
        """Return the explanation as it was when the run began."""
        return Explanation(
            algorithms=tuple(self.algorithms),
            passes=tuple(self.passes),
            courses={event: self._course(event, steps) for event, steps in self.steps.items()},
            skipped=tuple(self.skipped),
            warnings=tuple(self.warnings),
        )

    def _course(self, event: str, kept: Steps) -> Course:
        changed, current, steps = dict(kept.passes), kept.given, []
        for place, record in enumerate(self.passes):
            if record.events is None or event in record.events:
                current = changed.get(place, current)
                steps.append((place, current))
        here = [*(a for a in self.algorithms if a.algorithm in kept.given), *kept.added]
        members = {member.algorithm: member for member in here}
        return Course(event, kept.given, tuple(steps), tuple(kept.declared), tuple(self.passes), members)


def _steps(course: Course) -> dict[str, Any]:
    changed, current = [], course.given
    for place, order in course.steps:
        if order != current:
            changed.append([place, list(order)])
        current = order
    added = [asdict(member) for name, member in course.members.items() if name not in course.given]
    declared = [edge._asdict() for edge in course.edges]
    return {"given": list(course.given), "passes": changed, "declared": declared, "added": added}
