"""Cost functions given by a rule: the cost of every assignment, against toulbar2 and by hand."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel, read_model
from fgnn.errors import InputError

# (cardinalities, the function in .wcsp syntax); the bound is 1000
CASES: dict[str, tuple[list[int], str]] = {
    **{f"relation {op}": ([4, 3], f"2 0 1 -1 {op} 1 1") for op in (">=", ">", "<=", "<", "=")},
    **{f"relation {op} reversed": ([4, 3], f"2 1 0 -1 {op} -1 2") for op in (">=", ">", "<=", "<", "=")},
    "disj": ([4, 5], "2 0 1 -1 disj 2 3 7"),
    "sdisj": ([4, 5], "2 0 1 -1 sdisj 2 3 3 4 7 9"),
    "sdisj tight": ([4, 5], "2 0 1 -1 sdisj 1 2 2 3 7 9"),
    "all different, by variables": ([3, 3, 3, 3], "4 0 1 2 3 -1 salldiff var 7"),
    "all different, by pairs": ([3, 3, 3, 3], "4 0 1 2 3 -1 salldiff dec 7"),
    "all different, hard": ([3, 3, 2], "3 2 0 1 -1 salldiff var 1000"),
    "all different, dp": ([3, 3, 3], "3 0 1 2 -1 salldiffdp var 7"),
    "all different, kp": ([3, 3, 3], "3 0 1 2 -1 salldiffkp hard 1000"),
    "cardinality, by variables": ([3, 3, 3, 3], "4 0 1 2 3 -1 sgcc var 7 3 0 1 2 1 0 1 2 1 1"),
    "cardinality, by values": ([3, 3, 3], "3 0 1 2 -1 sgcc dec 7 3 0 1 2 1 0 1 2 1 1"),
    "cardinality, weighted": ([3, 3, 3, 3], "4 0 1 2 3 -1 sgcc wdec 7 3 0 1 2 2 3 1 0 1 4 5 2 1 1 6 8"),
    "cardinality, dp": ([3, 3, 3], "3 0 1 2 -1 sgccdp var 7 2 0 1 2 1 0 1"),
    "among": ([3, 3, 3], "3 0 1 2 -1 samong var 7 1 2 2 0 2"),
    "among, dp": ([3, 3, 3], "3 0 1 2 -1 samongdp var 7 2 3 1 1"),
    "among, hard": ([2, 2, 2, 2], "4 0 1 2 3 -1 samong var 1000 1 2 1 0"),
    "max": ([3, 3, 3], "3 0 1 2 -1 max 3 4 0 0 4 1 1 2 2 2 9 0 1 5"),
    "max, dp": ([2, 2, 2], "3 2 0 1 -1 smaxdp 0 3 0 0 4 1 1 2 2 1 9"),
    "knapsack": ([2, 2, 2, 2], "4 0 1 2 3 -1 knapsack 10 2 3 4 5"),
    "knapsack of ones": ([2, 2, 2, 2], "4 0 1 2 3 -1 knapsack 2 1 1 1 1"),
    "knapsack, at most": ([2, 2, 2, 2], "4 0 1 2 3 -1 knapsack -5 -2 -2 -2 -2"),
    "knapsack, both signs": ([2, 2, 2, 2], "4 0 1 2 3 -1 knapsack 1 2 -3 4 -5"),
    "knapsack with a zero": ([2, 2, 2, 2], "4 0 1 2 3 -1 knapsack 2 1 0 1 1"),
    "knapsack by values": ([3, 3, 2], "3 0 1 2 -1 knapsackp 4 2 1 2 2 3 1 2 5 1 1 1"),
    "knapsack by zeros": ([2, 2, 2], "3 0 1 2 -1 knapsackp -1 1 0 -1 1 0 -1 1 0 -1"),
    "clique": ([3, 3, 3, 3], "4 0 1 2 3 -1 clique 1 1 0 1 1 2 0 2 1 1"),
    "clique of ones": ([2, 2, 2, 2], "4 0 1 2 3 -1 clique 1 1 1 1 1 1 1 1 1"),
}
BUDGETS = {
    "among, hard": (2, 3),
    "knapsack of ones": (2, 4),
    "knapsack, at most": (0, 2),
    "knapsack with a zero": (2, 3),
    "knapsack by zeros": (2, 3),
    "clique of ones": (0, 1),
}

# Run in a separate process, because the library exits on some errors.
ORACLE = """
import itertools, json, pathlib, sys
import pytoulbar2
folder, answers = pathlib.Path(sys.argv[1]), {}
for name, (cards, function) in json.loads(sys.stdin.read()).items():
    for x in itertools.product(*map(range, cards)):
        fixed = "".join(f"1 {i} 1000 1\\n{v} 0\\n" for i, v in enumerate(x))
        header = f"t {len(cards)} {max(cards)} {len(cards) + 1} 1000\\n{' '.join(map(str, cards))}\\n"
        (folder / "o.wcsp").write_text(header + function + "\\n" + fixed)
        solver = pytoulbar2.CFN(verbose=-1)
        try:
            solver.Read(str(folder / "o.wcsp"))
            found = solver.Solve()
        except pytoulbar2.pytb2.Contradiction:
            found = None
        answers.setdefault(name, []).append(None if found is None else found[1])
print("ANSWERS" + json.dumps(answers))
"""


def read(folder: Path, cards: list[int], function: str, upper: int = 1000) -> GraphicalModel:
    path = folder / "a.wcsp"
    path.write_text(f"t {len(cards)} {max(cards)} 1 {upper}\n{' '.join(map(str, cards))}\n{function}\n")
    return read_model(path)


@pytest.fixture(scope="module")
def toulbar2_costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float | None]]:
    pytest.importorskip("pytoulbar2")
    folder = tmp_path_factory.mktemp("oracle")
    run = subprocess.run(
        [sys.executable, "-c", ORACLE, str(folder)], input=json.dumps(CASES), capture_output=True, text=True, check=True
    )
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("ANSWERS"))
    answers: dict[str, list[float | None]] = json.loads(line.removeprefix("ANSWERS"))
    return answers


@pytest.mark.parametrize("name", CASES)
def test_every_assignment_has_the_cost_of_toulbar2(
    tmp_path: Path, toulbar2_costs: dict[str, list[float | None]], name: str
) -> None:
    cards, function = CASES[name]
    model = read(tmp_path, cards, function)
    states = np.array(list(itertools.product(*map(range, cards))))
    expected = [-math.inf if cost is None else -cost for cost in toulbar2_costs[name]]
    assert model.score(states).tolist() == expected


@pytest.mark.parametrize("name", BUDGETS)
def test_counts_of_binary_variables_become_budgets(tmp_path: Path, name: str) -> None:
    model = read(tmp_path, *CASES[name])
    (budget,) = model.budgets()
    assert (budget.at_least, budget.at_most) == BUDGETS[name]
    assert model.num_tables == 0


def test_a_linear_constraint_over_many_variables_is_a_budget(tmp_path: Path) -> None:
    n = 500
    scope = " ".join(map(str, range(n)))
    model = read(tmp_path, [2] * n, f"{n} {scope} -1 knapsack -3{' -1' * n}")
    (budget,) = model.budgets()
    assert (budget.at_least, budget.at_most) == (0, 3)


def test_an_unsatisfiable_linear_constraint_is_infeasible(tmp_path: Path) -> None:
    assert read(tmp_path, [2, 2], "2 0 1 -1 knapsack 3 1 1").score([1, 1]) == -math.inf


def test_a_trivial_linear_constraint_adds_nothing(tmp_path: Path) -> None:
    model = read(tmp_path, [2, 2], "2 0 1 -1 knapsack -2 -1 -1")
    assert (model.num_budgets, model.num_tables, model.score([1, 1])) == (0, 0, 0.0)


def test_a_hard_all_different_becomes_pairs(tmp_path: Path) -> None:
    model = read(tmp_path, [9] * 9, f"9 {' '.join(map(str, range(9)))} -1 salldiff var 5", upper=5)
    assert model.num_tables == 36
    assert model.score(list(range(9))) == 0.0
    assert model.score([*range(8), 0]) == -math.inf


@pytest.mark.parametrize(
    ("cards", "function"),
    [
        ([3] * 20, f"20 {' '.join(map(str, range(20)))} -1 salldiff var 5"),
        ([2] * 20, f"20 {' '.join(map(str, range(20)))} -1 knapsack 10{' 1 2' * 10}"),
        ([2] * 4, "4 0 1 2 3 -1 sregular var 1 2 1 0 2 0 1 3 0 0 0 0 1 1 1 1 1"),
    ],
)
def test_an_inexpressible_rule_is_refused(tmp_path: Path, cards: list[int], function: str) -> None:
    with pytest.raises(InputError, match=r"a\.wcsp, (line 3, )?cost function 0: Expected"):
        read(tmp_path, cards, function)
