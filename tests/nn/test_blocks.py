"""FC, MLP, Res, DR, GlobalPooling and normalisation."""

from __future__ import annotations

import pytest
import torch

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import DR, FC, MLP, FGNNLayer, GlobalPooling, Res
from fgnn.nn.norm import NodeBatchNorm, make_norm

GRAPH = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
F = torch.randn(4, 3, 5)
GS = {"pair": torch.randn(4, 2, 6)}


def test_fc_has_weights_for_each_kind_of_node() -> None:
    fc = FC(5, {"pair": 6}, 7)
    f, gs = fc(GRAPH, F, GS)
    torch.testing.assert_close(f, fc.variable[0](F).relu())
    torch.testing.assert_close(gs["pair"], fc.factor["pair"][0](GS["pair"]).relu())
    assert FC(5, {}, 7)(GRAPH, F, GS)[1] == {}


def test_mlp_is_fc_after_fc() -> None:
    mlp = MLP(5, {"pair": 6}, [8, 3])
    f, gs = mlp(GRAPH, F, GS)
    torch.testing.assert_close(f, mlp.layers[1].variable(mlp.layers[0].variable(F)))
    assert gs["pair"].shape == (4, 2, 3)
    with pytest.raises(ValueError, match="at least one width"):
        MLP(5, {}, [])


@pytest.mark.parametrize("block", [FC(5, {"pair": 6}, 7), MLP(5, {"pair": 6}, [8, 3])], ids=["FC", "MLP"])
def test_features_of_other_lengths_are_named(block: torch.nn.Module) -> None:
    with pytest.raises(ValueError, match=r"Expected f of length 5 \(got \(4, 3, 6\)\)"):
        block(GRAPH, torch.randn(4, 3, 6), GS)
    with pytest.raises(ValueError, match=r"Expected gs\['pair'\] of length 6 \(got \(4, 2, 5\)\)"):
        block(GRAPH, F, {"pair": torch.randn(4, 2, 5)})
    with pytest.raises(ValueError, match=r"variable_in as an integer of at least 1 \(got 0\)"):
        FC(0, {"pair": 6}, 7)


def test_res_adds_its_input() -> None:
    body = FC(5, {"pair": 6}, 5)
    body.factor["pair"][0] = torch.nn.Linear(6, 6)
    f, gs = Res([body])(GRAPH, F, GS)
    torch.testing.assert_close(f, F + body.variable(F))
    torch.testing.assert_close(gs["pair"], GS["pair"] + body.factor["pair"](GS["pair"]))


def test_dropout_only_while_training() -> None:
    drop = DR(0.5)
    torch.manual_seed(0)
    f, gs = drop(GRAPH, F, GS)
    assert 0.2 < (f == 0).float().mean() < 0.8
    assert (gs["pair"] == 0).any()
    drop.eval()
    assert drop(GRAPH, F, GS)[0] is F or torch.equal(drop(GRAPH, F, GS)[0], F)
    with pytest.raises(ValueError, match=r"Expected a dropout rate in \[0, 1\) \(got 1\)"):
        DR(1)


def test_global_pooling_is_the_maximum_of_the_graph_beside_each_variable() -> None:
    f, gs = GlobalPooling()(GRAPH, F, GS)
    assert f.shape == (4, 3, 10)
    torch.testing.assert_close(f[..., :5], F)
    torch.testing.assert_close(f[:, 1, 5:], F.amax(1))
    assert gs["pair"] is GS["pair"]


@pytest.mark.parametrize("lead", [(), (2,)])
def test_global_pooling_keeps_concatenated_graphs_apart(lead: tuple[int, ...]) -> None:
    parts = [GRAPH, FactorGraph(5, {}), GRAPH]
    whole = FactorGraph.concat(parts)
    f = torch.randn(*lead, 11, 4)
    found, _ = GlobalPooling()(whole, f, {})
    for start, stop in ((0, 3), (3, 8), (8, 11)):
        expected = f[..., start:stop, :].amax(-2, keepdim=True).expand(*lead, stop - start, 4)
        torch.testing.assert_close(found[..., start:stop, 4:], expected)


def test_pooling_sends_the_gradient_of_a_tie_to_the_first() -> None:
    for graph in (FactorGraph(3, {}), FactorGraph.concat([FactorGraph(3, {})])):
        f = torch.ones(3, 1, requires_grad=True)
        GlobalPooling()(graph, f, {})[0][:, 1].sum().backward()
        assert f.grad is not None
        assert f.grad.flatten().tolist() == [3.0, 0.0, 0.0]


def test_batch_normalisation_is_over_all_nodes_of_all_samples() -> None:
    norm = NodeBatchNorm(5)
    made = norm(F)
    torch.testing.assert_close(made.mean((0, 1)), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(made.var((0, 1), unbiased=False), torch.ones(5), atol=1e-3, rtol=0)
    assert torch.isfinite(norm(F[:1, :1])).all()  # one row alone
    with pytest.raises(ValueError, match="Expected norm among"):
        make_norm("group", 3)


@pytest.mark.parametrize("norm", ["batch", "layer", None])
def test_layers_may_be_normalised(norm: str | None) -> None:
    layer = FGNNLayer(5, {"pair": 6}, {}, 7, bias=True, norm=norm, activation="relu")
    f, gs = layer(GRAPH, F, GS)
    assert (f >= 0).all()
    assert (gs["pair"] >= 0).all()
