"""A deep network of residual FGNN layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph
from fgnn.nn.checked import Checked
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.inputs import Widths, check_groups, check_sizes
from fgnn.nn.norm import RMSNorm
from fgnn.nn.residual import ResidualFGNNLayer
from fgnn.nn.summary import module_html

# With supervision, training reads the scores after every k-th layer.
_SUPERVISE_EVERY = 4


class ResidualNetwork(Checked):
    r"""An embedding of all nodes, L residual FGNN layers, and a read-out :math:`R\, \hat f_i + r` of the variables.

    Args:
        variable_in: Length of f_i.
        factor_in: Length of g_c by group.
        arity: The arity of each group; None, or left out, for a group of any arity.
        out: Scores for each variable.
        width: Features of all nodes between the layers.
        layers: Layers with parameters of their own.
        repeat: How many times the stack of layers runs, so that L = layers · repeat.
        bases: Cosines in Q; see :class:`ResidualFGNNLayer`.
        supervise: Whether training also returns the scores after every fourth layer.

    Shapes:
        f (N, variable_in) and gs by group (C, factor_in), or with B in front, to scores (B?, N, out). In training with
        ``supervise``: (R, B?, N, out), the answer last.

    Example:
        >>> from fgnn import FactorGraph, FactorGroup
        >>> graph = FactorGraph(4, {"pair": FactorGroup([[0, 1], [1, 2]]), "count": FactorGroup([[0, 1, 2], [2, 3]])})
        >>> net = ResidualNetwork(1, {"pair": 4, "count": 1}, {"pair": 2}, out=2, width=8, layers=3)
        >>> net(graph, torch.ones(4, 1), {"pair": torch.ones(2, 4), "count": torch.ones(2, 1)}).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        variable_in: int,
        factor_in: Mapping[str, int],
        arity: Mapping[str, int | None] | None = None,
        out: int = 2,
        *,
        width: int = 64,
        layers: int = 16,
        repeat: int = 1,
        bases: int = 8,
        supervise: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(variable_in, factor_in, {}, out=out, width=width, layers=layers, repeat=repeat, bases=bases)
        for what, length in (("variable_in", variable_in), *((f"factor_in[{k!r}]", d) for k, d in factor_in.items())):
            if not length:
                raise ValueError(
                    f"Expected {what} as an integer of at least 1 (got 0); features may be constant, all 1"
                )
        arity = {} if arity is None else arity
        check_groups("arity", arity)
        unknown = sorted(set(arity) - set(factor_in))
        if unknown:
            raise ValueError(f"Expected arities of the groups {list(factor_in)} only (got {unknown})")
        arities = {name: arity.get(name) for name in factor_in}
        self.embed_variables = _embedding(variable_in, width)
        self.embed_factors = nn.ModuleDict({name: _embedding(length, width) for name, length in factor_in.items()})
        self.layers = nn.ModuleList(ResidualFGNNLayer(width, arities, bases) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.readout = nn.Linear(width, out)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)
        self.repeat, self.supervise = repeat, supervise
        self._widths = Widths(variable_in, dict(factor_in), dict.fromkeys(factor_in))

    def _repr_html_(self) -> str:
        return module_html(self)

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor | None = None,
        gs: Mapping[str, Tensor] | None = None,
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Tensor:
        """Scores of the variables; edge features are not read.  # shape: (R?, B?, N, out)"""
        gs = {} if gs is None else gs
        self._check(graph, f, gs, {})
        first = self.layers[0]
        if isinstance(first, ResidualFGNNLayer):
            first.prepare(graph)  # not inside a compiled layer
        # Autocast would round what the layers add up: scores that differ by a thousandth are equal in bf16.
        assert f is not None
        with torch.autocast(f.device.type, enabled=False):
            f = self.embed_variables(f)
            gs = {name: self.embed_factors[name](gs[name]) for name in graph.groups}
        scores, depth = [], self.repeat * len(self.layers)
        for n in range(1, depth + 1):
            f, gs = self.layers[(n - 1) % len(self.layers)](graph, f, gs)
            if n == depth or (self.training and self.supervise and n % _SUPERVISE_EVERY == 0):
                scores.append(self.read(f))
        return torch.stack(scores) if len(scores) > 1 else scores[0]

    def _reads(self) -> tuple[Widths, torch.dtype]:
        return self._widths, next(self.parameters()).dtype

    def read(self, f: Tensor) -> Tensor:
        """The scores of variables with features f.  # shape: (..., width) -> (..., out)"""
        with torch.autocast(f.device.type, enabled=False):
            scores: Tensor = self.readout(self.norm(f))
        return scores

    def compile_layers(self) -> None:
        """Compile the layer; one compilation serves all, since layers differ in their parameters only."""
        for layer in self.layers:
            layer.compile(dynamic=False)


def _embedding(length: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(length, width), nn.SiLU(), nn.Linear(width, width))
