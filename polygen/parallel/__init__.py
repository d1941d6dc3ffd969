"""Several GPUs, as far as that needs none: timetables of pipelines, and how programs are cut.

What runs on an engine is in the adapters; here things are described, proved and drawn.
"""

from polygen.parallel.proved import Proved, prove
from polygen.parallel.timetable import KNOWN, Timetable, timetable
from polygen.parallel.turns import Plan, plan

__all__ = ["KNOWN", "Plan", "Proved", "Timetable", "plan", "prove", "timetable"]
