"""torch.export and ONNX of networks, with the structure as an input or fixed; torch.func over networks."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils._pytree import tree_leaves

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes, by_handle
from fgnn.nn import FGNNLayer, ResidualNetwork, aggregate_messages, build
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.torch.traced import aggregate_traced
from tests.nn.graphs import features, graphs, ragged_graph, uniform_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # torch's own exporters


class Fixed(nn.Module):
    """A network on one structure."""

    def __init__(self, net: nn.Module, graph: FactorGraph) -> None:
        super().__init__()
        self.net, self.graph = net, graph

    def forward(self, f: Tensor, gs: dict[str, Tensor], edges: dict[str, Tensor]) -> Tensor:
        scores: Tensor = self.net(self.graph, f, gs, edges)
        return scores


def setup(graph: FactorGraph, notation: str = "FGNN(4) - GlobalPooling - FGNN(2)", **options: object):  # type: ignore[no-untyped-def]
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    net = build(notation, variable_in=2, factor_in=widths, edge_in=widths, norm="batch", **options).eval()  # type: ignore[arg-type]
    return net, features(graph, 2, widths, widths, batch=5, types=options.get("q") == "table", dtype=torch.float32)


def exported(net: nn.Module, graph: FactorGraph, inputs: tuple, fixed: bool, strict: bool = False):  # type: ignore[no-untyped-def, type-arg]
    """The exported program for any number of samples."""
    f, gs, edges = inputs
    samples = torch.export.Dim("samples", min=2)
    shapes: dict[str, object] = {
        "f": {0: samples}, "gs": {name: {0: samples} for name in gs}, "edges": dict.fromkeys(edges)
    }  # fmt: skip
    with torch.no_grad():
        if fixed:
            return torch.export.export(Fixed(net, graph), (f, gs, edges), dynamic_shapes=shapes, strict=strict)
        shapes = {"graph": [None] * len(tree_leaves(graph)), **shapes}
        return torch.export.export(net, (graph, f, gs, edges), dynamic_shapes=shapes, strict=strict)


def rewired() -> FactorGraph:
    """Another structure with the sizes of the ragged graph."""
    return FactorGraph(
        8, {"any": FactorGroup([[7, 1], [], [3], [2, 0, 6], [5, 4, 1, 0], [6]]), "pair": FactorGroup([[2, 3], [7, 5]])}
    )


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_network_has_torch_operations_alone(strict: bool) -> None:
    graph = uniform_graph()
    net, inputs = setup(graph, "FGNN(2)")
    program = torch.export.export(Fixed(net, graph), inputs, strict=strict)
    assert not [node for node in program.graph.nodes if "fgnn" in str(node.target)]
    torch.testing.assert_close(program.module()(*inputs), net(graph, *inputs))


@pytest.mark.parametrize("strict", [False, True])
def test_the_structure_is_an_input_of_an_exported_network(strict: bool) -> None:
    graph = ragged_graph()
    net, inputs = setup(graph)
    file = io.BytesIO()
    torch.export.save(exported(net, graph, inputs, fixed=False, strict=strict), file)
    file.seek(0)
    program = torch.export.load(file).module()
    other = features(graph, 2, dict.fromkeys(graph.groups, 3), dict.fromkeys(graph.groups, 3), batch=3, seed=1)
    f, gs, edges = (
        tree.float() if isinstance(tree, Tensor) else {k: v.float() for k, v in tree.items()} for tree in other
    )
    for structure in (ragged_graph(), rewired()):
        torch.testing.assert_close(program(structure, f, gs, edges), net(structure, f, gs, edges))


def test_the_structure_may_be_fixed() -> None:
    graph = uniform_graph()
    net, inputs = setup(graph, q="table", aggregate="softmax")
    program = exported(net, graph, inputs, fixed=True).module()
    torch.testing.assert_close(program(*inputs), net(graph, *inputs))
    assert not any(isinstance(x, torch._subclasses.FakeTensor) for x in graph.incidence("pair").__dict__.values())


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_keeps_its_graph_when_it_is_exported(strict: bool) -> None:
    graph = uniform_graph()
    net, inputs = setup(graph)
    module = Fixed(net, graph)
    wanted, degree = module(*inputs), graph.structure.variable_degree()
    exported(net, graph, inputs, fixed=True, strict=strict)
    torch.export.export(module, inputs, strict=strict)
    assert module.graph is graph
    assert graph.structure.variable_degree() is degree
    torch.testing.assert_close(module(*inputs), wanted)


def test_graphs_made_while_another_thread_exports_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    one, other = uniform_graph(), uniform_graph()
    assert one.structure.handle != other.structure.handle
    assert by_handle(other.structure.handle) is other.structure


def check_in_onnx_runtime(net: nn.Module, graph: FactorGraph, inputs: tuple, fixed: bool, folder: Path) -> None:  # type: ignore[type-arg]
    """Export for any number of samples, and compare on three, also on another structure where it is an input."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    program = exported(net, graph, inputs, fixed)
    torch.onnx.export(program, dynamo=True, verbose=False).save(str(folder / "net.onnx"))  # type: ignore[union-attr]
    session = runtime.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])
    for structure in (graph,) if fixed else (graph, rewired()):
        f, gs, edges = inputs
        f, gs = f[:3], {name: g[:3] for name, g in gs.items()}
        leaves = tree_leaves((f, gs, edges) if fixed else (structure, f, gs, edges))
        names = [one.name for one in session.get_inputs()]
        (scores,) = session.run(None, dict(zip(names, (x.numpy() for x in leaves), strict=True)))
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(scores), net(structure, f, gs, edges), rtol=1e-4, atol=1e-5)


DEEP = "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FGNN(2)"


@pytest.mark.parametrize(
    ("notation", "q", "aggregate", "fixed"),
    [
        ("FGNN(4) - FC(2)", "basis", "max", False),
        *(
            pytest.param(DEEP, q, aggregate, fixed, marks=pytest.mark.slow)
            for q, aggregate in (("basis", "max"), ("table", "softmax"), ("dense", "mean"))
            for fixed in (False, True)
        ),
    ],
)
def test_onnx_runtime_computes_the_same(notation: str, q: str, aggregate: str, fixed: bool, tmp_path: Path) -> None:
    graph = ragged_graph()
    net, inputs = setup(graph, notation, q=q, aggregate=aggregate)
    check_in_onnx_runtime(net, graph, inputs, fixed, tmp_path)


def residual(graph: FactorGraph) -> tuple[ResidualNetwork, tuple]:  # type: ignore[type-arg]
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    net = ResidualNetwork(2, widths, {name: g.arity for name, g in graph.groups.items()}, width=4, layers=2).eval()
    nn.init.normal_(net.readout.weight)
    f, gs, _ = features(graph, 2, widths, widths, batch=5, dtype=torch.float32)
    return net, (f, gs, {})


@pytest.mark.parametrize("strict", [False, True])
def test_the_structure_is_an_input_of_an_exported_residual_network(strict: bool) -> None:
    graph = ragged_graph()
    net, (f, gs, _) = residual(graph)
    with torch.no_grad():
        program = torch.export.export(net, (graph, f, gs), strict=strict).module()
    for structure in (ragged_graph(), rewired()):
        torch.testing.assert_close(program(structure, f, gs), net(structure, f, gs))


@pytest.mark.parametrize("make", [uniform_graph, ragged_graph])
def test_the_structure_of_an_exported_residual_network_may_be_fixed(make) -> None:  # type: ignore[no-untyped-def]
    graph = make()
    net, inputs = residual(graph)
    program = exported(net, graph, inputs, fixed=True).module()
    torch.testing.assert_close(program(*inputs), net(graph, *inputs))  # derived tensors of the graph are made only here


@pytest.mark.parametrize("fixed", [False, True])
def test_onnx_runtime_computes_the_same_residual_network(fixed: bool, tmp_path: Path) -> None:
    graph = ragged_graph()
    net, inputs = residual(graph)
    check_in_onnx_runtime(net, graph, inputs, fixed, tmp_path)


@pytest.mark.parametrize("make", [uniform_graph, ragged_graph])
def test_per_sample_gradients_and_ensembles(make) -> None:  # type: ignore[no-untyped-def]
    graph = make()
    net, (f, gs, edges) = setup(graph)
    each = vmap(net, in_dims=(None, 0, 0, None))(graph, f, gs, edges)
    torch.testing.assert_close(each, net(graph, f, gs, edges))

    def loss(parameters: dict[str, Tensor], f: Tensor, gs: dict[str, Tensor]) -> Tensor:
        scores: Tensor = functional_call(net, parameters, (graph, f, gs, edges))
        return scores.square().sum()

    by_sample = vmap(grad(loss), in_dims=(None, 0, 0))(dict(net.named_parameters()), f, gs)
    net(graph, f, gs, edges).square().sum().backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(by_sample[name].sum(0), p.grad, rtol=1e-3, atol=1e-3)
    widths = dict.fromkeys(graph.groups, 3)
    layers = [FGNNLayer(2, widths, widths, 4) for _ in range(3)]
    parameters, buffers = stack_module_state(layers)  # type: ignore[arg-type]

    def member(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        new_f: Tensor = functional_call(layers[0], (parameters, buffers), (graph, f, gs, edges))[0]
        return new_f

    ensemble = vmap(member)(parameters, buffers)
    torch.testing.assert_close(ensemble, torch.stack([layer(graph, f, gs, edges)[0] for layer in layers]))


@settings(max_examples=30, deadline=None)
@given(graphs(), st.sampled_from(["max", "sum", "softmax"]), st.sampled_from(["factor", "variable"]), st.integers(0, 3))
def test_the_traced_form_equals_the_backend(graph: FactorGraph, kind, towards, form: int) -> None:  # type: ignore[no-untyped-def]
    """Values and gradients, also where messages tie: half of the inputs are zero."""
    incidence = graph.incidence("type0")
    rng = torch.Generator().manual_seed(len(graph.groups) + form)

    def draw(*shape: int) -> Tensor:
        x = torch.randn(*shape, generator=rng, dtype=torch.float64)
        return (x * (torch.rand(shape, generator=rng) < 0.5)).requires_grad_()

    edges, own = incidence.num_edges, form == 3
    a, b = draw(2, incidence.num_factors, 3), draw(incidence.num_variables, 3)
    weight = draw(incidence.positions.num_types if form == 1 else 2, 4, 3)
    types = incidence.positions if form == 1 else EdgeTypes(torch.randint(2, (edges,), generator=rng), 2)
    phi = draw(2, edges, 2) if own else draw(edges, 2) if form == 0 else None
    how = Aggregation(kind)
    found = aggregate_traced(
        a, b, phi, weight, EdgeCall(incidence, towards, True, how, None if phi is not None else types, 2)
    )
    wanted = aggregate_messages(
        a, b, incidence, types if phi is None else phi, weight, towards=towards, aggregation=how
    )
    torch.testing.assert_close(found, wanted)
    inputs = [x for x in (a, b, phi, weight) if x is not None]
    up = torch.randn(found.shape, generator=rng, dtype=torch.float64).masked_fill(wanted.isneginf(), 0.0)
    pairs = zip(torch.autograd.grad(found, inputs, up), torch.autograd.grad(wanted, inputs, up), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)
