"""Check a layer against a loop over edges, finite differences, permutations and batching."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import Aggregation, FGNNLayer
from fgnn.testing.permutations import assert_permutation_equivariant, assert_same, call_layer

Features = tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]  # f, gs, edges


def check_layer(
    layer: nn.Module,
    *,
    variable_in: int,
    factor_in: Mapping[str, int],
    edge_in: Mapping[str, int] | None = None,
    edge_types: bool = False,
    reference: Callable[..., Any] | None = None,
    trials: int = 3,
    seed: int = 0,
) -> None:
    """Check a layer on small random graphs, in float64 and evaluation mode.

    The graphs have scopes of equal and of different lengths, empty scopes, and a variable in no scope. On each of them

    - the result must equal that of ``reference``;
    - gradients of features and parameters must equal finite differences (``torch.autograd.gradcheck``);
    - the order of variables, factors and edges must not matter (`assert_permutation_equivariant`);
    - samples (B, N, d) on one graph, and graphs joined by `FactorGraph.concat`, must give what each gives alone.

    Args:
        layer: Called as ``layer(graph, f, gs, edges)``; returns f, or f and gs. A copy is checked.
        variable_in: Length of f_i.
        factor_in: Length of g_c by group.
        edge_in: Length of t_ci by group, or the number of types; left out: no edge features.
        edge_types: Whether edge features are types, integers below ``edge_in``.
        reference: A plain implementation, called as ``reference(layer, graph, f, gs, edges)`` with the copy; by default
            `layer_by_loop` for an `FGNNLayer`, and none for other layers.
        trials: How many graphs to draw.
        seed: Seeds graphs and features.

    Raises:
        AssertionError: At the first check that fails; the message names it.

    Example:
        >>> layer = fgnn.nn.FGNNLayer(2, {"pair": 3}, {"pair": 2}, out=4)
        >>> fgnn.testing.check_layer(layer, variable_in=2, factor_in={"pair": 3}, edge_in={"pair": 2})
    """
    layer = copy.deepcopy(layer).double().eval()
    if reference is None and isinstance(layer, FGNNLayer):
        reference = layer_by_loop
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    widths = {"f": variable_in, **factor_in}
    for _ in range(trials):
        graphs = [random_graph(factor_in, rng) for _ in range(2)]
        samples = [_features(g, widths, edge_in or {}, edge_types, generator) for g in graphs]
        graph, (f, gs, edges) = graphs[0], samples[0]
        with torch.no_grad():
            if reference is not None:
                expected = call_layer(partial(reference, layer), graph, f, gs, edges)
                result = call_layer(layer, graph, f, gs, edges)
                assert_same(result, expected, "The result differs from the reference")
            _check_batching(layer, graphs, samples)
        assert_permutation_equivariant(layer, graph, f, gs, edges, seed=seed)
        _check_gradients(layer, graph, (f, gs, edges), generator)


def layer_by_loop(
    layer: FGNNLayer,
    graph: FactorGraph,
    f: Tensor,  # shape: (N, d)
    gs: Mapping[str, Tensor],
    edges: Mapping[str, Tensor],  # (E, t) or types (E,)
    *,
    message: Callable[[Any, Tensor, Tensor], Tensor] = lambda m, g, f: m(g, f),
    matrix: Callable[[Any, Tensor], Tensor] = lambda q, t: q.matrix(t),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Alg. 1 as a plain loop over edges, for one sample; ``message`` evaluates M([g, f]), ``matrix`` Q(t)."""

    def edge_messages(name: str, parts: Any, g: Tensor | None) -> Iterable[tuple[int, int, Tensor]]:
        """Factor, variable and message of each edge of a group."""
        pairs = [(c, i) for c, scope in enumerate(graph.groups[name].lists()) for i in scope]
        for e, (c, i) in enumerate(pairs):
            t = edges[name][e] if name in edges else torch.zeros((), dtype=torch.int64)
            row = f.new_zeros(0) if g is None else g[c]
            yield c, i, matrix(parts.matrix, t) @ message(parts.message, row, f[i])

    def aggregate(half: Any, rows: list[list[Tensor]]) -> Tensor:
        empty = torch.tensor([not messages for messages in rows])
        total = torch.stack(
            [_aggregate(messages, half.aggregation, f.new_zeros(half.output.width)) for messages in rows]
        )
        result: Tensor = half.output(total, empty)
        return result

    new_gs = {}
    for name, half in layer.variable_to_factor.items():
        to_factor: list[list[Tensor]] = [[] for _ in range(graph.groups[name].num_factors)]
        for c, _, value in edge_messages(name, half.edge_messages, gs.get(name)):
            to_factor[c].append(value)
        new_gs[name] = aggregate(half, to_factor)
    to_variable: list[list[Tensor]] = [[] for _ in range(graph.num_variables)]
    seen = new_gs if layer.schedule == "sequential" else gs
    for name, parts in layer.factor_to_variable.edge_messages.items():
        for _, i, value in edge_messages(name, parts, seen.get(name)):
            to_variable[i].append(value)
    return aggregate(layer.factor_to_variable, to_variable), new_gs


def random_graph(groups: Iterable[str], rng: random.Random) -> FactorGraph:
    """A small graph whose last variable is in no scope; scopes of a group are of equal length or of 0 to 3."""
    count = rng.randint(4, 7)
    scopes = {}
    for name in groups:
        length = rng.choice([2, 3, None])
        lengths = [length or 1] + [rng.randint(0, 3) if length is None else length for _ in range(rng.randint(1, 3))]
        scopes[name] = FactorGroup([rng.sample(range(count - 1), k) for k in lengths])
    return FactorGraph(count, scopes)


def _aggregate(rows: list[Tensor], how: Aggregation, zeros: Tensor) -> Tensor:
    """The aggregate of the messages that reach one node."""
    if not rows:
        return zeros
    if how.kind == "max":
        best = rows[0]
        for row in rows[1:]:
            best = torch.where(row > best, row, best)  # on ties the gradient goes to the first
        return best
    stack = torch.stack(rows)
    if how.kind == "softmax":
        return (how.gamma * stack).exp().sum(0).log() / how.gamma
    return stack.sum(0) if how.kind == "sum" else stack.mean(0)


def _features(
    graph: FactorGraph, widths: Mapping[str, int], edge_in: Mapping[str, int], types: bool, rng: torch.Generator
) -> Features:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    gs = {name: normal(group.num_factors, widths[name]) for name, group in graph.groups.items()}
    edges = {}
    for name, width in edge_in.items():
        count = graph.groups[name].num_edges
        edges[name] = torch.randint(width, (count,), generator=rng) if types else normal(count, width)
    return normal(graph.num_variables, widths["f"]), gs, edges


def _check_batching(layer: nn.Module, graphs: list[FactorGraph], samples: list[Features]) -> None:
    """Compare joined graphs with each graph, and two samples on one graph with each sample."""
    alone = [call_layer(layer, graph, *features) for graph, features in zip(graphs, samples, strict=True)]
    f, gs = _join([(f, gs) for f, gs, _ in samples], torch.cat)
    edges = {name: torch.cat([edges[name] for _, _, edges in samples]) for name in samples[0][2]}
    joined = call_layer(layer, FactorGraph.concat(graphs), f, gs, edges)
    assert_same(joined, _join(alone, torch.cat), "Joined graphs differ from the graphs one by one")

    f, gs, edges = samples[0]
    expected = _join([alone[0], call_layer(layer, graphs[0], f + 1, gs, edges)], torch.stack)
    batch = call_layer(layer, graphs[0], *_join([(f, gs), (f + 1, gs)], torch.stack), edges)
    assert_same(batch, expected, "A batch of samples differs from its samples")


def _join(
    parts: list[tuple[Tensor, dict[str, Tensor]]], how: Callable[[list[Tensor]], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    return how([f for f, _ in parts]), {name: how([gs[name] for _, gs in parts]) for name in parts[0][1]}


def _check_gradients(layer: nn.Module, graph: FactorGraph, features: Features, rng: torch.Generator) -> None:
    """Compare gradients with finite differences along random directions."""
    f, gs, edges = features
    fixed = {name: t for name, t in edges.items() if not t.is_floating_point()}
    moving = {name: t for name, t in edges.items() if name not in fixed}
    parameters = dict(layer.named_parameters())
    # A bias of exactly 0 can put a ReLU on its kink, where finite differences are wrong.
    shifted = [p + 0.1 * torch.rand(p.shape, generator=rng, dtype=p.dtype) for p in parameters.values()]
    inputs = [f, *gs.values(), *moving.values(), *shifted]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = iter(tensors)
        args = (
            graph,
            next(values),
            {name: next(values) for name in gs},
            {name: next(values) for name in moving} | fixed,
        )
        result = torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), args)
        new_f, new_gs = result if isinstance(result, tuple) else (result, {})
        return tuple(x for x in (new_f, *new_gs.values()) if x.requires_grad)

    try:
        torch.autograd.gradcheck(run, [x.detach().clone().requires_grad_() for x in inputs], fast_mode=True)
    except RuntimeError as error:
        raise AssertionError(f"Gradients differ from finite differences: {error}") from error
