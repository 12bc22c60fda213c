"""A study in Python: of a config, or of a function that makes a Trainer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from engine_core.arguments import path_of
from engine_core.config import SourceFile, validated
from engine_core.errors import ArgumentError, ArgumentTypeError

from .design import Arm, Design, Make, Setting
from .file import StudyFile, design_of, seeds_of
from .folder import StudyResults, StudyRun
from .running import Pool, processes


def study(
    what: Path | str | Make,
    arms: Mapping[str, Any],
    seeds: int | Sequence[int] = 5,
    *,
    out: Path | str,
    report: str | Sequence[str] = (),
    jobs: int | None = None,
) -> StudyResults:
    """Train each arm with each seed, and return what the differences show.

    Called again, it trains what is missing in `out`.

    Args:
        what: a config's file, or `make(seed, algorithms)`, which returns a new Trainer with an `eval_dataloader`.
        arms: by name what an arm changes, as in a study's file; for a function, the algorithms: names, or pairs of a
            name and arguments. The first is the baseline.
        seeds: how many, or which.
        out: the folder.
        report: the results to report; for a config, by default all.
        jobs: how many processes train at once; None: the runs train in this process. Processes import the main program,
            which therefore has to call this under `if __name__ == "__main__":`.

    Raises:
        ArgumentError, ConfigError: (ValueErrors) for what can't be studied.

    Example:
        >>> results = study("run.yaml", {"plain": {}, "mixup": {"with": ["mixup"]}}, out="studies/a")  # doctest: +SKIP
    """
    report = [report] if isinstance(report, str) else list(report)
    seeds = seeds if isinstance(seeds, (int, str)) else list(seeds)
    if callable(what):
        design = _of_function(what, arms, seeds, report)
    else:
        values = {"base": str(path_of(what).absolute()), "arms": dict(arms), "report": report, "seeds": seeds}
        design = design_of(validated(StudyFile, values, SourceFile(), SourceFile()), SourceFile())
    run = StudyRun(design, out)
    run.prepare()
    if jobs is not None:
        with processes(jobs, 1) as pool:
            return run.train(pool)
    return run.train(Pool(_Here(), 1))


def _of_function(make: Make, arms: Mapping[str, Any], seeds: int | Sequence[int], report: Sequence[str]) -> Design:
    if len(arms) < 2:
        raise ArgumentError("a study needs two arms or more: name what to compare")
    if not report:
        raise ArgumentError("report is missing: name the results to report, as in report=['eval/accuracy']")
    made = []
    for name, algorithms in arms.items():
        if isinstance(algorithms, (str, Mapping)) or not isinstance(algorithms, Iterable):
            raise ArgumentTypeError(f"arm {name!r} has to be a list of algorithms, not {algorithms!r:.80}")
        listed = list(algorithms)
        for each in listed:
            if not isinstance(each, (str, tuple, list)):
                remedy = "give a name, or a pair (name, arguments): each run makes its own"
                raise ArgumentTypeError(f"arm {name!r}: {each!r:.80} is made already; {remedy}")
        made.append(Arm(name, (Setting("", {"algorithms": listed}),)))
    try:
        numbers = seeds_of(seeds)
    except ValueError as error:
        raise ArgumentError(f"seeds {error}") from None
    return Design("", tuple(made), made[0].name, tuple(numbers), tuple(report), make=make)


class _Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        """Run it."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **options))
        except Exception as error:  # noqa: BLE001  of the run, as an executor hands it on
            future.set_exception(error)
        return future
