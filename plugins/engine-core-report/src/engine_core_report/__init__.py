"""A run to look at: what it left, as one page of HTML that loads nothing. Needs neither torch nor plugins."""

from __future__ import annotations

from .columns import columns_of, to_csv
from .live import PageServer
from .notebook import RunData, read_run
from .page import render, write_report
from .ranking import RankedRun, Value, is_lower_better, rank_runs
from .study import StudyData, read_study
from .study_page import write_study

__all__ = [
    "PageServer",
    "RankedRun",
    "RunData",
    "StudyData",
    "Value",
    "columns_of",
    "is_lower_better",
    "rank_runs",
    "read_run",
    "read_study",
    "render",
    "to_csv",
    "write_report",
    "write_study",
]
