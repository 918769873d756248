"""torch.compile: one graph without breaks, for any number of samples and any structure, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer, build
from tests.nn.graphs import features, ragged_graph, uniform_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, while compiling


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module: nn.Module, graphs: list[torch.fx.GraphModule], **options: object) -> Callable[..., Tensor]:
    """Compile without generating code; ``graphs`` collects what was traced."""

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph

    return torch.compile(module, backend=backend, fullgraph=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("q", ["basis", "table"])
@pytest.mark.parametrize("make", [uniform_graph, ragged_graph])
def test_one_graph_serves_every_number_of_samples(make: Callable[[], FactorGraph], q: str) -> None:
    graph, graphs = make(), []  # type: ignore[var-annotated]
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    net = build("FGNN(4) - GlobalPooling - FC(2)", variable_in=2, factor_in=widths, edge_in=widths, q=q)  # type: ignore[arg-type]
    fast = compiled(net, graphs, dynamic=True)
    for batch in (13, 19, 33):
        f, gs, edges = features(graph, 2, widths, widths, batch=batch, types=q == "table", dtype=torch.float32)
        torch.testing.assert_close(fast(graph, f, gs, edges), net(make(), f, gs, edges))
    assert len(graphs) == 1


@pytest.mark.parametrize("older", [False, True])
def test_every_layer_is_one_operator(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where, as before torch 2.12, code that ``torch.compile`` traces is told that it is exported."""
    if older:
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: torch.compiler.is_compiling())
    graph = uniform_graph()
    graphs: list[torch.fx.GraphModule] = []
    widths = dict.fromkeys(graph.groups, 3)
    net = build("FGNN(4) - FC(4) - FGNN(2)", variable_in=2, factor_in=widths, edge_in=widths)
    f, gs, edges = features(graph, 2, widths, widths, batch=5, dtype=torch.float32)
    with torch.no_grad():
        compiled(net, graphs)(graph, f, gs, edges)
    names = [str(node.target) for node in graphs[0].graph.nodes if node.op in ("call_function", "call_method")]
    operators = [name for name in names if "getitem" not in name]
    assert set(operators) == {"fgnn.half_layer.default", "fgnn.dense.default"}
    assert operators.count("fgnn.half_layer.default") == 4


def test_batches_of_other_structures_compile_at_most_twice() -> None:
    graphs: list[torch.fx.GraphModule] = []
    layer = FGNNLayer(2, {"pair": 3}, {"pair": 2}, 4)
    fast = compiled(layer, graphs)
    for count in (5, 7, 12, 9):
        one = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
        graph = FactorGraph.concat([one] * count)
        f, gs, edges = features(graph, 2, {"pair": 3}, {"pair": 2}, dtype=torch.float32)
        torch.testing.assert_close(fast(graph, f, gs, edges)[0], layer(graph, f, gs, edges)[0])
    assert len(graphs) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "aggregate"), [("basis", "max"), ("dense", "softmax"), ("table", "mean"), ("cosine", "max")]
)
def test_a_compiled_training_step_gives_the_same_gradients(q: str, aggregate: str) -> None:
    graph = ragged_graph()
    widths = dict.fromkeys(graph.groups, 3)
    no_edges = dict.fromkeys(graph.groups, 0)
    torch.manual_seed(0)
    net = build(
        "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FGNN(2)", variable_in=2, factor_in=widths,
        edge_in=no_edges if q == "cosine" else widths, q=q, aggregate=aggregate, norm="batch",
    )  # fmt: skip
    f, gs, t = features(graph, 2, widths, widths, batch=5, types=q == "table", dtype=torch.float32)
    edges = {k: EdgeTypes(v, 3) for k, v in t.items()} if q == "table" else {} if q == "cosine" else t
    net(graph, f, gs, edges).square().sum().backward()
    wanted = [p.grad for p in net.parameters()]
    net.zero_grad()
    fast = torch.compile(net, backend="aot_eager", fullgraph=True)
    fast(ragged_graph(), f, gs, edges).square().sum().backward()
    for p, gradient in zip(net.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_generated_code_gives_the_same() -> None:
    """The default backend, with the paper's kind of network."""
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    net = build("FGNN(8) - Res[FC(8) - FGNN(8) - FC(8)] - FGNN(2)", variable_in=2, factor_in=widths, edge_in=widths)
    fast = torch.compile(net, fullgraph=True, dynamic=True)
    for batch in (13, 19, 33):
        f, gs, edges = features(graph, 2, widths, widths, batch=batch, dtype=torch.float32)
        torch.testing.assert_close(fast(graph, f, gs, edges), net(graph, f, gs, edges), rtol=1e-4, atol=1e-5)
