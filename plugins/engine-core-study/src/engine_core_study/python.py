"""A study in Python: of a config, or of a function that makes a Trainer."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from engine_core.arguments import check_whole, path_of
from engine_core.config import SourceFile, validated
from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError, did_you_mean
from engine_core.messages import cause_of
from engine_core.time import as_number

from .design import Arm, Design, Make, Setting
from .file import StudyFile, design_of, seeds_of
from .folder import StudyResults, StudyRun
from .running import Pool, ProcessEndedError, context, in_process, processes


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
            which therefore has to call this under `if __name__ == "__main__":`, and `make` from where it is defined.

    Raises:
        ArgumentError, ConfigError: (ValueErrors) for what can't be studied.
        ArgumentTypeError: (a TypeError) for what is of another type.
        EngineError: if an arm can't be made; nothing is trained then.

    Example:
        >>> results = study("run.yaml", {"plain": {}, "mixup": {"with": ["mixup"]}}, out="studies/a")  # doctest: +SKIP
    """
    report = [report] if isinstance(report, str) else list(report)
    listed = _seeds(seeds)
    jobs = None if jobs is None else check_whole("jobs", jobs, "[1, inf)", "how many processes train at once")
    named = _named(arms)
    if callable(what):
        design = _of_function(what, named, listed, report)
        if jobs is not None:
            _check_sent(what, design.arms, jobs)
    elif isinstance(what, (str, os.PathLike)):
        values = {"base": str(path_of(what).absolute()), "arms": named, "report": report, "seeds": listed}
        design = design_of(validated(StudyFile, values, SourceFile(), SourceFile()), SourceFile())
    else:
        raise ArgumentTypeError(f"give a config's file, or a function make(seed, algorithms), not {what!r:.80}")
    run = StudyRun(design, out)
    done, known = run.counted()
    try:
        if done < known:
            _check_made(design, is_sent=jobs is not None)
        run.prepare(apart=jobs is not None)
    except ProcessEndedError as error:
        guard = 'so it has to be a file that calls study() under `if __name__ == "__main__":`'
        raise EngineError(f"{error}; processes import the program, {guard}") from None
    with nullcontext(Pool(_Here(), 1)) if jobs is None else processes(jobs, 1) as pool:
        return run.train(pool)


def _named(arms: Any) -> dict[str, Any]:
    if not isinstance(arms, Mapping) or not all(isinstance(name, str) for name in arms):
        raise ArgumentTypeError(
            f"arms has to be a dict of names, as in {{'plain': ..., 'other': ...}}, not {arms!r:.80}"
        )
    return dict(arms)


def _seeds(given: Any) -> list[int]:
    given = as_number(given)
    if isinstance(given, Iterable) and not isinstance(given, str):
        given = [as_number(each) for each in given]
    try:
        return seeds_of(given)
    except ValueError as error:
        raise ArgumentError(f"seeds {error}") from None


def _of_function(make: Make, arms: Mapping[str, Any], seeds: Sequence[int], report: Sequence[str]) -> Design:
    if len(arms) < 2:
        raise ArgumentError("a study needs two arms or more: name what to compare")
    if not report:
        raise ArgumentError("report is missing: name the results to report, as in report=['eval/accuracy']")
    made, seen = [], dict[str, str]()
    for name, algorithms in arms.items():
        if isinstance(algorithms, (str, Mapping)) or not isinstance(algorithms, Iterable):
            raise ArgumentTypeError(f"arm {name!r} has to be a list of algorithms, not {algorithms!r:.80}")
        listed = list(algorithms)
        pairs = [_pair(name, each) for each in listed]
        if (other := seen.setdefault(json.dumps(pairs, sort_keys=True, default=repr), name)) != name:
            raise ArgumentError(f"arm {name!r} is equal to arm {other!r}: take one out, or change it")
        made.append(Arm(name, (Setting("", {"algorithms": listed}),)))
    return Design("", tuple(made), made[0].name, tuple(seeds), tuple(report), make=make)


def _pair(arm: str, given: Any) -> tuple[str, Any]:
    """Return the name and the arguments of an algorithm."""
    if isinstance(given, str):
        return given, {}
    if not isinstance(given, (tuple, list)):
        remedy = "give a name, or a pair (name, arguments): each run makes its own"
        raise ArgumentTypeError(f"arm {arm!r}: {given!r:.80} is made already; {remedy}")
    if len(given) != 2 or not isinstance(given[0], str):
        raise ArgumentError(f"arm {arm!r}: {given!r:.80} has to be a name or a pair, as in ('mixup', {{'alpha': 0.4}})")
    return given[0], given[1]


def _check_sent(make: Make, arms: Iterable[Arm], jobs: int) -> None:
    """Raise if a process of its own can't be given what it has to make."""
    main = sys.modules["__main__"]
    is_imported = main.__spec__ is not None or Path(getattr(main, "__file__", None) or "").is_file()
    without = "or leave jobs out, so that the runs train in this process"
    for what, value in (("the function", make), *((f"arm {arm.name!r}", arm) for arm in arms)):
        try:
            sent = pickle.dumps(value)
        except Exception as error:  # noqa: BLE001  pickle raises what it likes
            remedy = "write it as a `def` at the top of a file, and its arguments as plain values"
            raise ArgumentTypeError(
                f"jobs={jobs}: {what} can't be sent to another process ({error!s:.200}): {remedy}; {without}"
            ) from None
        if b"__main__" in sent and not is_imported:
            remedy = "write it into a file, such as made.py, and `from made import ...`"
            raise ArgumentError(
                f"jobs={jobs}: {what} is defined in a notebook or at a prompt, from where no other process can import "
                f"it: {remedy}; {without}"
            )


def _check_made(design: Design, *, is_sent: bool) -> None:
    """Raise if the function does not make a Trainer for an arm; where processes train, one of them tries it."""
    if (make := design.make) is None:
        return
    for arm in design.arms:
        given = make, arm, design.seeds[0], design.report
        try:
            in_process(context(), _make, *given) if is_sent else _make(*given)
        except ProcessEndedError as error:
            raise ProcessEndedError(f"arm {arm.name!r}: {error}") from None


def _make(make: Make, arm: Arm, seed: int, report: Sequence[str]) -> None:
    from engine_core import Trainer  # noqa: PLC0415  it needs torch, which whoever makes a Trainer has

    algorithms = list(arm.settings[0].config["algorithms"])
    call = f"arm {arm.name!r}: make({seed}, {algorithms!r:.100})"
    try:
        made = make(seed, algorithms)
    except Exception as error:
        raise EngineError(f"{call} failed: {cause_of(error)}") from error
    if not isinstance(made, Trainer):
        raise ArgumentTypeError(f"{call} returned {made!r:.80}, not a Trainer: end it with `return Trainer(...)`")
    with made:
        labels = list(made.state.evaluators)
    if not labels:
        raise ArgumentError(f"{call} returned a Trainer that evaluates nothing: give it an eval_dataloader")
    for name in report:
        if not any(name.startswith(f"{label}/") for label in labels):
            near = did_you_mean(name.partition("/")[0], labels)
            raise ArgumentError(f"report: no evaluation of arm {arm.name!r} gives {name!r}{near}")


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
