"""Real files: the UAI competition's, toulbar2's, libDAI's and bnlearn's."""

from __future__ import annotations

import csv
import itertools
import math
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fgnn
from fgnn import GraphicalModel, read_model, write_model
from fgnn.errors import InputError

pytestmark = pytest.mark.data

NOT_MODELS = (".ub", ".evid", ".MAP", ".out")

# Files that tables and budgets cannot express, and one malformed file.
REFUSED = {
    "lipa30a_invalldiff.wcsp.xz": "cost function 465: Expected a variable, an integer (got '29-1')",
    "lipa30a_invgcc.wcsp.xz": "(got 'gcc')",
    "sgrammardp1.cfn": "(got 'sgrammardp')",
    "sgrammardp2.cfn": "(got 'sgrammardp')",
    "sregular.cfn": "(got 'sregular')",
    "ssame.cfn": "(got 'ssame')",
    "weightedcspconstraint.wcsp": "(got 'wcsp')",
    "weightedcspconstraintc.cfn": "(got 'cfnconstraint')",
}


@pytest.fixture(scope="module")
def archives(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    for archive in sorted((data_dir / "map_benchmarks").glob("*.tar*")):
        with tarfile.open(archive) as members:
            members.extractall(folder, filter="data")
    return folder


@cache
def read_network(path: Path) -> GraphicalModel:
    return read_model(path)


def models_in(folder: Path) -> Iterator[Path]:
    return (p for p in sorted(folder.iterdir()) if p.is_file() and p.suffix not in NOT_MODELS)


def optimum_in(path: Path) -> float | None:
    stem = path.name.removesuffix(".xz").removesuffix(".gz").rsplit(".", 1)[0]
    bound = path.with_name(f"{stem}.ub")
    return float(bound.read_text()) if bound.exists() else None


def test_the_best_known_assignments_of_the_uai_competition_score_as_listed(archives: Path, data_dir: Path) -> None:
    with (data_dir / "map_benchmarks" / "uai2012_pe_scores.tsv").open() as file:
        instances = list(csv.DictReader(file, delimiter="\t"))
    assert len(instances) == 61
    for instance in instances:
        path = archives / "uai2012_pe" / f"{instance['instance']}.uai"
        model = read_model(path, evidence=path.with_name(path.name + ".evid"))
        kind, count, *states = path.with_name(path.name + ".MAP").read_text().split()
        assert (kind, int(count), int(instance["n_vars"])) == ("MAP", len(states), model.num_variables)
        score = model.score(np.array(states, dtype=np.int64)) / math.log(10)
        assert score == pytest.approx(float(instance["best_log10"]), abs=1e-6), path.name


@pytest.mark.parametrize(("folder", "count"), [("tbval", 55), ("fg", 14), ("bif", 26)])
def test_every_file_is_read_or_refused_in_one_line(archives: Path, folder: str, count: int) -> None:
    files = 0
    for path in models_in(archives / folder):
        files += 1
        if path.name in REFUSED:
            with pytest.raises(InputError) as caught:
                read_model(path)
            assert str(caught.value).startswith(str(path))
            assert REFUSED[path.name] in str(caught.value)
        else:
            model = read_network(path) if folder == "bif" else read_model(path)
            assert model.num_variables > 0
            assert model.num_tables > 0
    assert files == count


def test_small_networks_have_the_optimum_toulbar2_states(archives: Path) -> None:
    checked = 0
    for path in models_in(archives / "tbval"):
        optimum = optimum_in(path)
        if optimum is None or path.name in REFUSED or path.stat().st_size > 5000:
            continue
        model = read_model(path)
        if math.prod(model.cardinalities.tolist()) > 1 << 16:
            continue
        states = np.array(list(itertools.product(*map(range, model.cardinalities))))
        best = model.score(states).max()
        assert (best if path.name.startswith("maxi") else -best) == pytest.approx(optimum), path.name
        checked += 1
    assert checked >= 13


@pytest.mark.slow
def test_all_networks_have_the_optimum_toulbar2_states(archives: Path) -> None:
    pytest.importorskip("pytoulbar2")
    checked = 0
    for path in models_in(archives / "tbval"):
        optimum = optimum_in(path)
        if optimum is None or path.name in REFUSED:
            continue
        model = read_model(path)
        solution = fgnn.solve(model, "toulbar2", time_limit=60)
        if solution.status != "optimal":
            continue  # not solved in time
        if path.name == "alarm.cfn.gz":
            # toulbar2 counts the least cost of a table over four or more variables twice
            optimum += sum(float(t.values.max()) for t in model.tables() if len(t.scope) > 3)
        assert solution.score == pytest.approx(optimum if path.name.startswith("maxi") else -optimum), path.name
        checked += 1
    assert checked >= 30


def test_bayesian_networks_sum_to_one_over_the_child(archives: Path) -> None:
    paths = [p for p in models_in(archives / "bif") if p.name.endswith(".bif.gz")]
    assert len(paths) == 24
    for path in paths:
        model = read_network(path)
        children = [t.scope[-1] for t in model.tables()]
        assert len(set(children)) == len(children)
        for table in model.tables():
            np.testing.assert_allclose(np.exp(table.values).sum(-1), 1.0, atol=2e-3, err_msg=path.name)
        for i in set(range(model.num_variables)) - set(children):
            assert np.exp(model.unary(i)).sum() == pytest.approx(1.0, abs=2e-3), path.name


@pytest.mark.parametrize(
    "name", ["tbval/pedigree9.uai.xz", "fg/alarm.fg", "bif/hailfinder.bif.gz", "tbval/example.wcsp"]
)
def test_a_real_model_survives_both_written_formats(archives: Path, tmp_path: Path, name: str) -> None:
    model = read_model(archives / name)
    for suffix in (".fgm.xz", ".uai.gz"):
        write_model(model, tmp_path / f"a{suffix}")
    assert read_model(tmp_path / "a.fgm.xz") == model
    twin: GraphicalModel = read_model(tmp_path / "a.uai.gz")
    x = np.random.default_rng(0).integers(0, model.cardinalities, size=(50, model.num_variables))
    np.testing.assert_allclose(twin.score(x), model.score(x), rtol=1e-12)
