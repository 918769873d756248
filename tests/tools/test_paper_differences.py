"""Networks with the choices of the authors' code: each choice does what it says, and a run records what it trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fgnn.data import ChainMAP
from fgnn.errors import InputError
from fgnn.pgm import ModelBatch
from fgnn.train import RunFolder
from tools.authors_network import Choices, FactorNetwork, InstanceNorm, NeighbourNetwork
from tools.paper_differences import ALL, VARIANTS, main

CPU = torch.device("cpu")
CHAINS = ChainMAP(kind=3, length=12, window=5)


def factor_network(choices: Choices) -> FactorNetwork:
    torch.manual_seed(0)
    return FactorNetwork(12, 5, choices, CPU).eval()


def influence(network: torch.nn.Module, batch: ModelBatch, variable: int) -> list[int]:
    """The variables whose unary terms change the scores of one variable."""
    unary = batch.unary.clone().requires_grad_()
    network(replace(batch, unary=unary))[0, variable].sum().backward()
    assert unary.grad is not None
    return [int(i) for i in unary.grad[0].abs().sum(-1).nonzero()]


def shortened(choices: Choices, layers: int) -> FactorNetwork:
    network = factor_network(choices)
    network.body.layers = network.body.layers[:layers]
    return network


def test_all_choices_give_scores_for_every_state() -> None:
    batch = CHAINS.sample(3, seed=0)
    for choices in (Choices(), ALL, Choices(soft_maximum=True)):
        assert factor_network(choices)(batch).shape == (3, 12, 2)


def test_one_layer_reaches_a_window_in_order_and_nothing_in_parallel() -> None:
    batch = CHAINS.sample(1, seed=0)
    assert set(influence(shortened(Choices(), 1), batch, 6)) <= set(range(2, 11))
    assert len(influence(shortened(Choices(), 1), batch, 6)) > 1
    assert influence(shortened(Choices(parallel=True), 1), batch, 6) == [6]  # a fully connected layer


def test_a_ring_joins_the_ends_of_the_chain() -> None:
    batch = CHAINS.sample(1, seed=0)
    assert 11 not in influence(shortened(Choices(), 1), batch, 0)
    assert 11 in influence(shortened(Choices(ring=True), 1), batch, 0)


def test_without_positions_a_window_cannot_tell_its_variables_apart() -> None:
    batch = ChainMAP(kind=3, length=5, window=5).sample(1, seed=0)
    batch.tables[0].values.zero_()
    order = torch.tensor([2, 0, 1, 4, 3])
    torch.manual_seed(0)
    for choices, same in ((Choices(), False), (Choices(no_positions=True), True)):
        network = FactorNetwork(5, 5, choices, CPU).eval()
        window_only = {name: edges for name, edges in network.edges.items() if name == "window"}
        layer = network.body.layers[0].variable_to_factor["window"]
        f, g = torch.randn(1, 5, 2), torch.randn(1, 1, 6)
        incidence = network.graph.incidence("window")
        results = [layer(incidence, x, g, window_only["window"]) for x in (f, f[:, order])]
        assert torch.allclose(*results, atol=1e-6) == same


def test_instance_norm_depends_on_the_instance_alone() -> None:
    x = torch.randn(4, 7, 3)
    assert torch.allclose(InstanceNorm()(x)[:1], InstanceNorm()(x[:1]))
    assert torch.allclose(InstanceNorm()(x).mean(1), torch.zeros(4, 3), atol=1e-6)


@pytest.mark.parametrize(("neighbours", "before", "after"), [(4, 2, 1), (6, 3, 2), (8, 4, 3)])
def test_the_network_without_factors_reads_its_neighbours_and_the_first_variable(
    neighbours: int, before: int, after: int
) -> None:
    network = NeighbourNetwork(20, neighbours, CPU)
    lists = network.lists.variable.view(20, -1)[10].tolist()
    assert lists == [*range(10 - before, 10), *range(11, 11 + after), 0]
    assert network.lists.variable.view(20, -1)[0].tolist()[:before] == [0] * before  # clamped at the end
    assert network.eval()(ChainMAP(kind=1, length=20).sample(2, seed=0)).shape == (2, 20, 2)


def test_a_run_adds_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)
    out = tmp_path / "results.json"
    changes = ["data.instances=16", "batch=8", "epochs=1", "precision=fp32", "validation=16"]
    main(["neighbours-1-4"], out, "cpu", changes, 64, "tiny")
    main(["neighbours-1-6"], out, "cpu", changes, 64, "tiny")
    result = json.loads(out.read_text())["tiny"]
    assert set(result) == {"neighbours-1-4", "neighbours-1-6"} <= set(VARIANTS)
    row = result["neighbours-1-4"]
    assert (row["steps"], row["epochs"], row["quality"]["count"]) == (2, 1, 64)
    with pytest.raises(InputError, match="Expected variants among"):
        main(["none"], out, "cpu", changes, 64, "tiny")


def test_results_of_divided_runs_are_joined(tmp_path: Path) -> None:
    parts = {
        "a.json": {"gpu": {"neighbours-1-4": {"steps": 1}}},
        "b.json": {"gpu": {"ours-3": {"steps": 2}}, "cpu": {}},
    }
    for name, rows in parts.items():
        (tmp_path / name).write_text(json.dumps(rows))
    main(join=[tmp_path / name for name in parts], out=tmp_path / "all.json")
    joined = json.loads((tmp_path / "all.json").read_text())
    assert list(joined["gpu"].items()) == [("ours-3", {"steps": 2}), ("neighbours-1-4", {"steps": 1})]
