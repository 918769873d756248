"""Variable elimination over feasible states: a plan from the structure, and its execution on a batch's numbers.

The way goes `structure` (what models share) → `domains` (states that can occur) → `problem` (free variables and
factors) → `counters` (large budgets as sums) and `order` → `buckets` (steps) → `estimate` (their sizes) → `listed` or
`dense` (a step's indices), by `builder` → `plan`; `run` follows it.
"""
