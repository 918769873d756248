"""Networks that read graphical models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, ModelBatch
from fgnn.data import ChainMAP, GridMAP
from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.equivalent import canonical
from fgnn.models.map.family import Family
from fgnn.models.map.featurise import constant_groups, sub_windows
from fgnn.models.map.network import PAPER, MAPNetwork
from fgnn.nn.edge_matrix import Form
from fgnn.schema import plain

DEEP = NetworkConfig("deep", width=8, blocks=2, bases=3)
NOTATION = NetworkConfig("FGNN(8) - Res[FC(8) - FGNN(8) - FC(8)] - FGNN(N)", q="table")
CHAIN = ChainMAP(2, length=9, window=4, budget=2)


def _made(config: NetworkConfig, family: Family) -> MAPNetwork:
    torch.manual_seed(0)
    network = MAPNetwork(config, family)
    for p in network.parameters():  # also those that start at zero
        torch.nn.init.normal_(p, std=0.3)
    return network.eval()


def test_canonical_models_score_the_same() -> None:
    for data in (ChainMAP(1, 9, 4, 2), GridMAP(4, 5)):
        batch = data.sample(6, seed=1, dtype=torch.float64)
        same = canonical(batch)
        x = torch.randint(0, 2, (6, 50, batch.num_variables), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(same.score(x), batch.score(x))
        for table in same.tables:
            assert not table.values[..., 0, :].any()
            assert not table.values[..., 1, 0].any()


def test_the_architecture_of_the_paper_verbatim() -> None:
    batch = ChainMAP(2).sample(2)
    family = Family.of(batch, fixed=tuple(constant_groups(batch)))
    assert family.fixed == ("budget",)
    network = MAPNetwork(NetworkConfig("paper", q="table"), family)
    assert network(batch).shape == (2, 30, 2)
    assert PAPER.replace("\n", " ") == (
        "FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - MLP(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(256) "
        "- Res[FC(64) - FGNN(64) - FC(256)] - FC(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(64) "
        "- Res[FC(64) - FGNN(64) - FC(64)] - FGNN(N)"
    )


@pytest.mark.parametrize("config", [DEEP, NOTATION], ids=["deep", "notation"])
def test_a_model_scores_the_same_alone_and_in_a_batch(config: NetworkConfig) -> None:
    batch = CHAIN.sample(5, seed=2)
    network = _made(config, Family.of(batch, any_size=config is DEEP))
    alone = torch.cat([network(batch.select(slice(b, b + 1))) for b in range(5)])
    torch.testing.assert_close(network(batch), alone, atol=1e-5, rtol=1e-4)
    built = ModelBatch.stack([batch.model(b) for b in range(5)])  # float64, other scope tensors
    torch.testing.assert_close(network(built), alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("config", [DEEP, NOTATION], ids=["deep", "notation"])
def test_the_order_of_variables_and_factors_does_not_matter(config: NetworkConfig) -> None:
    rng = np.random.default_rng(0)
    order = rng.permutation(9)
    model = CHAIN.sample(1, seed=4).model(0)
    other = GraphicalModel([2] * 9)
    for i in range(9):
        other.add_unary(int(order[i]), model.unary(i))
    tables, budgets = list(model.tables()), list(model.budgets())
    for t in rng.permutation(len(tables)):
        other.add_table([int(order[i]) for i in tables[t].scope], tables[t].values)
    for u in rng.permutation(len(budgets)):
        other.add_budget([int(order[i]) for i in budgets[u].scope], budgets[u].at_most)
    one, two = ModelBatch.stack([model]), ModelBatch.stack([other])
    network = _made(config, Family.of(one, any_size=config is DEEP))
    torch.testing.assert_close(network(one)[0], network(two)[0, torch.tensor(order)], atol=1e-5, rtol=1e-4)


def test_deep_reads_lengths_and_windows_not_trained_on() -> None:
    network = _made(DEEP, Family.of(CHAIN.sample(1), any_size=True))
    for other in (ChainMAP(2, 20, 4, 2), ChainMAP(3, 9, 6), ChainMAP(1, 12, 3, 2)):
        batch = other.sample(3)
        assert network.family.refusal(batch) is None
        assert network(batch).shape == (3, other.length, 2)


def test_deep_reads_budgets_of_several_sizes_at_once() -> None:
    """Two chains in one model must score as they do alone."""
    network = _made(DEEP, Family.of(CHAIN.sample(1), any_size=True))
    parts = [ChainMAP(2, 9, 4, 2).sample(1, seed=1).model(0), ChainMAP(2, 12, 3, 2).sample(1, seed=2).model(0)]
    both = GraphicalModel([2] * 21)
    for model, start in zip(parts, (0, 9), strict=True):
        for i in range(model.num_variables):
            both.add_unary(start + i, model.unary(i))
        for t in model.tables():
            both.add_table([start + i for i in t.scope], t.values)
        for u in model.budgets():
            both.add_budget([start + i for i in u.scope], u.at_most)
    apart = torch.cat([network(ModelBatch.stack([model]))[0] for model in parts])
    torch.testing.assert_close(network(ModelBatch.stack([both]))[0], apart, atol=1e-5, rtol=1e-4)


def test_cards_leave_out_settings_that_the_architecture_ignores() -> None:
    deep = NetworkConfig("deep", width=8, aggregate="sum", norm="layer")
    assert plain(deep).keys() == {"architecture", "width", "blocks", "repeat", "bases", "supervise"}
    assert deep == NetworkConfig("deep", width=8)
    assert NetworkConfig(**plain(NOTATION)) == NOTATION
    assert plain(NOTATION).keys() == {"architecture", "aggregate", "q", "norm"}
    assert plain(NetworkConfig("dgcnn")).keys() == {"architecture"}


def test_deep_reads_isolated_variables() -> None:
    network = _made(DEEP, Family.of(CHAIN.sample(1), any_size=True))
    model = GraphicalModel([2, 2, 2])
    model.add_unaries([0, 1, 0, -1, 0, 1])
    model.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
    assert network(ModelBatch.stack([model])).isfinite().all()


@pytest.mark.parametrize("q", ["basis", "table"])
def test_models_without_the_largest_budgets_can_be_read(q: Form) -> None:
    batch, other = CHAIN.sample(2), ChainMAP(2, 9, 6, 2).sample(2)
    family = replace(Family.of(batch), budgets=(4, 6))
    network = _made(replace(NOTATION, q=q), family)
    assert network(batch).shape == network(other).shape == (2, 9, 2)


@pytest.mark.parametrize("q", ["basis", "dense", "table", "cosine"])
def test_networks_with_every_form_of_q(q: Form) -> None:
    batch = CHAIN.sample(2)
    network = _made(replace(NOTATION, q=q), Family.of(batch))
    assert network(batch).shape == (2, 9, 2)


def test_inner_readouts_only_in_training() -> None:
    batch = CHAIN.sample(3)
    config = NetworkConfig("deep", width=8, blocks=4, repeat=2, bases=2, supervise=0.5)
    network = MAPNetwork(config, Family.of(batch))
    assert network.train()(batch).shape == (2, 3, 9, 2)
    assert network.eval()(batch).shape == (3, 9, 2)


def test_states_that_a_variable_lacks_score_minus_infinity() -> None:
    model = GraphicalModel([3, 2, 3])
    model.add_table((0, 1), np.zeros((3, 2)))
    model.add_table((1, 2), np.zeros((2, 3)))
    batch = ModelBatch.stack([model])
    scores = _made(NOTATION, Family.of(batch))(batch)
    assert scores.shape == (1, 3, 3)
    assert scores[0, 1, 2] == -torch.inf
    assert torch.isfinite(scores[0, [0, 2]]).all()


def test_smaller_factors_for_the_ablation() -> None:
    scopes = torch.arange(5)[:, None] + torch.arange(4)
    assert sub_windows(scopes, 2).tolist() == [[i, i + 1] for i in range(7)]
    with pytest.raises(ValueError, match="Expected a factor_size of at most the budgets' 4 variables"):
        sub_windows(scopes, 5)
    batch = CHAIN.sample(2)
    config = NetworkConfig("FGNN(8) - FGNN(N)", q="table", factor_size=2)
    network = MAPNetwork(config, Family.of(batch, fixed=("budget",)))
    assert network(batch).shape == (2, 9, 2)
    with pytest.raises(ValueError, match="Expected factor_size only where budgets are fixed"):
        MAPNetwork(config, Family.of(batch))


@pytest.mark.parametrize("name", ["pointnet", "dgcnn"])
def test_the_baselines_read_unaries_only(name: str) -> None:
    one, two = ChainMAP(1).sample(4, seed=1), ChainMAP(3).sample(4, seed=1)
    network = _made(NetworkConfig(name), Family.of(one))
    two = ModelBatch.concat([two])
    assert torch.equal(network(one), network(ModelBatch.of(one.cardinalities, one.unary, (), one.constant)))
    assert network(two).shape == (4, 30, 2)


def test_a_family_refuses_other_models_with_a_reason() -> None:
    family = Family.of(CHAIN.sample(1))
    assert family.refusal(ChainMAP(1, 12, 4, 2).sample(1)) is None
    refused = family.refusal(ChainMAP(1, 12, 5, 2).sample(1))
    assert refused == "budgets over 4 variables (got 5)"
    ternary = GraphicalModel([3, 3])
    ternary.add_table((0, 1), np.zeros((3, 3)))
    assert family.refusal(ModelBatch.stack([ternary])) == "variables of 2 states (got 3)"
    triple = GraphicalModel([2, 2, 2])
    triple.add_table((0, 1, 2), np.zeros((2, 2, 2)))
    assert family.refusal(ModelBatch.stack([triple])) == "tables of shape 2x2 (got 2x2x2)"
    one = ChainMAP(1, 9, 4, 2)
    paper = Family.of(one.sample(2), fixed=("budget", "table2x2"))
    assert paper.refusal(one.sample(3, seed=1)) is None
    assert str(paper.refusal(CHAIN.sample(1))).startswith("table2x2 of [0.0, 0.1")
    assert str(paper.refusal(ChainMAP(1, 9, 4, 3).sample(1))).startswith("budget of [0.0, 2.0]")
    banned = GraphicalModel([2, 2])
    banned.add_table((0, 1), [[0, -np.inf], [0, 0]])
    assert family.refusal(ModelBatch.stack([banned])) == "finite log-potentials (got -inf)"
