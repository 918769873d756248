"""Exact samples of subgraphs, by the kernel; without a GPU it is built for the CPU, with one thread a block."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from fgnn.infer import solve
from fgnn.infer.reporter import Reporter
from fgnn.pgm import GraphicalModel, ModelBatch

pytest.importorskip("numba")

from fgnn.infer.search.sampled import SampledSearch
from fgnn.infer.search.sampler import KERNEL, Sampler, unsupported
from fgnn.runtime.nvrtc import Compile
from tests.cuda_on_cpu import compiler

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# What this kernel needs besides.
PRELUDE = """
#define __align__(x)
struct int4 { int x, y, z, w; };
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    return compiler(KERNEL, tmp_path_factory.mktemp("kernel"), PRELUDE)


def mixed_models(count: int, seed: int, *, forbidden: bool = False) -> ModelBatch:
    """Nine variables of two to five states, with pairs and triples."""
    rng = np.random.default_rng(seed)
    cards = [2, 3, 2, 5, 2, 4, 3, 2, 2]
    scopes = [(0, 1), (1, 2), (2, 3, 4), (4, 5), (0, 5), (5, 6, 7), (7, 8), (3, 8)]
    models = []
    for _ in range(count):
        model = GraphicalModel(cards)
        model.add_unaries(rng.normal(size=sum(cards)))
        for scope in scopes:
            table = rng.normal(size=[cards[i] for i in scope])
            if forbidden:
                table[rng.random(table.shape) < 0.3] = -np.inf
            model.add_table(scope, table)
        models.append(model)
    return ModelBatch.stack(models).to(DEVICE)


def changed(batch: ModelBatch, before: torch.Tensor, variables: list[int]) -> torch.Tensor:
    """All assignments that differ from (B, N) in these variables only.  # shape: (B, assignments, N)"""
    cards = batch.cardinalities.tolist()
    choices = torch.tensor(list(product(*(range(cards[i]) for i in variables))), device=before.device)
    every = before[:, None].expand(-1, len(choices), -1).clone()
    every[:, :, variables] = choices
    return every


@pytest.mark.parametrize("cells", [8, 64, 1024])
def test_at_temperature_0_the_free_variables_are_set_to_their_best_states(cells: int, build: Compile) -> None:
    batch = mixed_models(4, 1)
    sampler = Sampler(batch, 0, build)
    x = torch.zeros(8, batch.num_variables, dtype=torch.uint8, device=DEVICE)  # two copies of each model
    for round_ in range(6):
        subgraph = sampler.plan(cells, size=6)
        variables = sorted(subgraph.variables)
        assert 0 < len(variables) <= 6
        before = x.long()
        sampler.sample(subgraph, x, torch.zeros(8, device=DEVICE), round_)
        best = batch.score(changed(batch, before[:4], variables)).amax(1)
        for copy in x.long().split(4):
            torch.testing.assert_close(batch.score(copy), best)
            fixed = [i for i in range(9) if i not in variables]
            assert torch.equal(copy[:, fixed], before[:4][:, fixed])


def test_samples_have_the_probabilities_of_the_model(build: Compile) -> None:
    batch = mixed_models(1, 2)
    sampler, copies, temperature = Sampler(batch, 0, build), 20_000, 1.5
    subgraph = sampler.plan(4096, size=5)
    variables = list(subgraph.variables)
    assert len(variables) == 5
    x = torch.ones(copies, batch.num_variables, dtype=torch.uint8, device=DEVICE)
    sampler.sample(subgraph, x, torch.full((copies,), temperature, device=DEVICE), 7)
    every = changed(batch, torch.ones(1, batch.num_variables, dtype=torch.int64, device=DEVICE), variables)
    expected = copies * (batch.score(every)[0] / temperature).softmax(0)
    counts = (x.long()[:, None] == every[0]).all(2).sum(0)
    assert int(counts.sum()) == copies
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("forbidden", [False, True])
def test_the_search_finds_what_elimination_finds(forbidden: bool, build: Compile) -> None:
    batch = mixed_models(5, 3, forbidden=forbidden)
    start = torch.zeros(5, batch.num_variables, dtype=torch.int64, device=DEVICE)
    found = SampledSearch(batch, 0, Reporter("search", None), rounds=300, build=build).run(start, float("inf"))
    torch.testing.assert_close(batch.score(found), solve(batch, "exact").score.to(DEVICE))
    again = SampledSearch(batch, 0, Reporter("search", None), rounds=300, build=build).run(start, float("inf"))
    assert torch.equal(found, again)


def test_copies_of_one_model_are_searched_at_once(build: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.infer.search.sampled.resident_blocks", lambda device: 12)
    batch = mixed_models(2, 5)
    start = torch.zeros(2, batch.num_variables, dtype=torch.int64, device=DEVICE)
    search = SampledSearch(batch, 0, Reporter("search", None), rounds=8, build=build)
    torch.testing.assert_close(batch.score(search.run(start, float("inf"))), solve(batch, "exact").score.to(DEVICE))


def test_models_that_the_kernel_cannot_read_are_named() -> None:
    model = GraphicalModel([2, 2])
    model.add_budget((0, 1), 1)
    assert unsupported(ModelBatch.stack([model])) == "factors other than tables"
    assert unsupported(ModelBatch.stack([GraphicalModel([300])])) == "variables of more than 256 states"
    wide = GraphicalModel([200, 200, 2])
    wide.add_table((0, 1, 2), np.zeros((200, 200, 2)))
    assert unsupported(ModelBatch.stack([wide])) == "tables of more than 65536 entries"
    with pytest.raises(ValueError, match="factors other than tables"):
        Sampler(ModelBatch.stack([model]), 0)
