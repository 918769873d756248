"""Variable elimination over feasible states: a plan compiled from the structure, then run on the numbers of a batch.

The stages are `allowed_states` (states that some model of the batch allows) → `domains` (states that can occur) →
`problem` (free variables and their factors) → `counters` (large counters as running sums) and `order` → `buckets`
(steps) → `estimate` (their sizes) → `listed` or `dense` (indices of a step), by `builder` → `plan`, executed by `run`.
"""
