"""Variable elimination over feasible states: a plan from the structure, and its execution on a batch's numbers.

The way goes `structure` (what models share) → `domains` (states that can occur) → `problem` (free variables and
factors) → `counters` (large budgets as sums) and `order` → `buckets` (steps) → `estimate` (their sizes) → `listed` or
`dense` (a step's indices), by `builder` → `plan`; `run` follows it.
"""

from fgnn.infer.elimination.plan import ExactPlan, OutOfTime, TooLarge, build_plan
from fgnn.infer.elimination.run import run_plan
from fgnn.infer.elimination.structure import Structure, read_structure

__all__ = ["ExactPlan", "OutOfTime", "Structure", "TooLarge", "build_plan", "read_structure", "run_plan"]
