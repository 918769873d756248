"""Other implementations of one layer, with the same parameters if they compute the same function.

Each maps a :class:`Problem` to a function of (f, g, t) to be timed:

- *authors*: M on every edge, its product with all W_τ, then contracted with φ edge by edge;
- *node GEMM*: products with W_τ once per node, then gathered; needs an M without activation;
- *outer*: φ ⊗ h and one product, the form that gains most from ``torch.compile``;
- *NNConv*: PyG's layer, one matrix per edge, on the variables' features alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.errors import need
from fgnn.graph import FactorGroup, Incidence
from fgnn.nn import BasisMatrix, Message, VariableToFactor

Form = Callable[[Tensor, Tensor, Tensor], Tensor]
Edges = tuple[Tensor, Tensor]  # the factor and the variable of each edge, shape: (E,) each
EdgeMessages = Callable[[Message, BasisMatrix, Edges, Tensor, Tensor, Tensor], Tensor]  # shape: (E, m)


@dataclass(frozen=True, eq=False)
class Problem:
    """A k-NN graph, one half of a layer, and features; every factor has k edges."""

    half: VariableToFactor
    incidence: Incidence
    f: Tensor  # shape: (N, width)
    g: Tensor  # shape: (N, width)
    t: Tensor  # shape: (E, 3)
    k: int

    @property
    def matrix(self) -> BasisMatrix:
        """Q."""
        matrix = self.half.edge_messages.matrix
        assert isinstance(matrix, BasisMatrix)
        return matrix

    @property
    def message(self) -> Message:
        """M."""
        return self.half.edge_messages.message


def make_problem(
    clouds: int, points: int, k: int, width: int, *, bases: int = 16, device: str = "cpu", seed: int = 0
) -> Problem:
    """Random points, each a factor over its k nearest neighbours; 3-d edge features, in which φ is linear."""
    from fgnn.points import knn

    torch.manual_seed(seed)
    xyz = torch.rand(clouds, points, 3).to(device)
    near, _ = knn(xyz, k)
    scopes = (near + torch.arange(clouds, device=device)[:, None, None] * points).view(-1, k)
    flat = xyz.view(-1, 3)
    incidence = Incidence.of(FactorGroup(scopes), clouds * points)
    message = Message(width, width, width)
    matrix = BasisMatrix(3, width, width, bases=bases, hidden=())
    f, g = torch.randn(clouds * points, width).to(device), torch.randn(clouds * points, width).to(device)
    t = (flat[:, None] - flat[scopes]).view(-1, 3) * 10
    return Problem(VariableToFactor(message, matrix).to(device), incidence, f, g, t, k)


def ours(problem: Problem) -> Form:
    """This package's layer, by the chosen backend."""
    return lambda f, g, t: problem.half(problem.incidence, f, g, t)


def recorded(problem: Problem) -> Form:
    """The same as a CUDA graph that each call replays."""
    from fgnn.bench.measure import half_precision
    from fgnn.nn import graphed

    example = [x.detach().clone().requires_grad_() for x in (problem.f, problem.g)]
    with half_precision(problem.f.device):
        fast = graphed(problem.half, problem.incidence, *example, problem.t)
    if not fast.recorded:
        raise RuntimeError(fast.reason or "nothing to record on this device")
    return lambda f, g, t: fast(problem.incidence, f, g, t)


def max_over_edges(messages: EdgeMessages) -> Callable[[Problem], Form]:
    """A peer from its edge messages: their maximum over the k edges of every factor."""

    def peer(problem: Problem) -> Form:
        message, matrix, k = problem.message, problem.matrix, problem.k
        edges = problem.incidence.factor, problem.incidence.variable
        return lambda f, g, t: messages(message, matrix, edges, f, g, t).view(-1, k, matrix.rows).amax(1)

    return peer


@max_over_edges
def authors(message: Message, matrix: BasisMatrix, edges: Edges, f: Tensor, g: Tensor, t: Tensor) -> Tensor:
    """A product on every edge, contracted with φ."""
    factor, variable = edges
    theta = torch.cat([message.factor_weight, message.variable_weight], 1)
    h = nn.functional.linear(torch.cat([g[factor], f[variable]], 1), theta, message.bias).relu()
    every = h @ matrix.weight.permute(2, 0, 1).flatten(1)  # shape: (E, T m)
    return torch.bmm(matrix.coefficients(t).unsqueeze(1), every.view(len(h), matrix.terms, -1))


@max_over_edges
def node_gemm(message: Message, matrix: BasisMatrix, edges: Edges, f: Tensor, g: Tensor, t: Tensor) -> Tensor:
    """Products once per node: a different function, without σ."""
    factor, variable = edges
    a, b = message.parts(g, f, g.shape[0], f.shape[0])
    flat = matrix.weight.permute(2, 0, 1).flatten(1)
    every = ((a @ flat)[factor] + (b @ flat)[variable]).view(-1, matrix.terms, matrix.rows)
    return torch.bmm(matrix.coefficients(t).unsqueeze(1), every)


@max_over_edges
def outer(message: Message, matrix: BasisMatrix, edges: Edges, f: Tensor, g: Tensor, t: Tensor) -> Tensor:
    """φ ⊗ h, then one product of inner length T·n."""
    factor, variable = edges
    a, b = message.parts(g, f, g.shape[0], f.shape[0])
    h = (a[factor] + b[variable]).relu()
    every = (matrix.coefficients(t).unsqueeze(2) * h.unsqueeze(1)).flatten(1)  # shape: (E, T n)
    return every @ matrix.weight.transpose(1, 2).flatten(0, 1)


def compiled(make: Callable[[Problem], Form]) -> Callable[[Problem], Form]:
    """The same form under ``torch.compile``."""
    return lambda problem: torch.compile(make(problem), dynamic=False)


def nnconv(problem: Problem) -> Form:
    """PyG's layer with the same Q on the variables' own features."""
    conv_module: Any = need("torch_geometric.nn")
    matrix = problem.matrix
    into = nn.Linear(matrix.terms, matrix.rows * matrix.columns, bias=False)
    net = nn.Sequential(*copy.deepcopy(matrix.net), into).to(problem.f.device)
    conv = conv_module.NNConv(matrix.columns, matrix.rows, net, aggr="max", root_weight=False, bias=False)
    with torch.no_grad():  # after its constructor, which initialises all parameters
        into.weight.copy_(matrix.weight.permute(2, 1, 0).flatten(0, 1))  # PyG's matrices are (in, out)
        for mine, theirs in zip(matrix.net.parameters(), net.parameters(), strict=False):
            theirs.copy_(mine)
    index = torch.stack([problem.incidence.variable, problem.incidence.factor])
    return lambda f, g, t: conv(f, index, t)


PEERS: dict[str, Callable[[Problem], Form]] = {
    "NNConv": nnconv,
    "authors": authors,
    "node GEMM": node_gemm,
    "outer": outer,
    "authors, compiled": compiled(authors),
    "outer, compiled": compiled(outer),
}
# Those that compute the same function as ours.
SAME_FUNCTION = ("authors", "outer", "authors, compiled", "outer, compiled")
