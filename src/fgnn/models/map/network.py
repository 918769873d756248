"""Networks that read graphical models and score every state of every variable."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.equivalent import canonical
from fgnn.models.map.family import Family, cells
from fgnn.models.map.featurise import BUDGET_FEATURES, Positions, featurise, group_names
from fgnn.models.points.dgcnn import DGCNN
from fgnn.models.points.pointnet import PointNet
from fgnn.nn import ResidualNetwork, build
from fgnn.nn.summary import module_html
from fgnn.pgm import ModelBatch

PAPER = """FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - MLP(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(256)
- Res[FC(64) - FGNN(64) - FC(256)] - FC(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(64)
- Res[FC(64) - FGNN(64) - FC(64)] - FGNN(N)"""

# How edges encode their position in the scope, by the form of Q; one-hot for the others.
_POSITIONS: dict[str, Positions] = {"table": "index", "cosine": "none"}


class MAPNetwork(nn.Module):
    """Scores for MAP inference, from the numbers of a model.

    Args:
        config: The architecture; ``paper`` is section 4.1's, verbatim.
        family: The models it reads.

    Shapes:
        A `ModelBatch` to scores (B, N, K), ``-inf`` at states a variable does not have. In training with inner
        read-outs (``config.supervise``): (R, B, N, K), the answer last.
    """

    scale: Tensor

    def __init__(self, config: NetworkConfig, family: Family) -> None:
        super().__init__()
        self.config, self.family = config, family
        if config.factor_size is not None and "budget" not in family.fixed:
            raise ValueError("Expected factor_size only where budgets are fixed (got a family whose budgets vary)")
        self.arity = {f"table{s}": s.count("x") + 1 for s in family.tables}
        if family.budgets:
            self.arity["budget"] = config.factor_size or max(family.budgets)
        self.body = self._build()
        # counts of a budget in units of 8, so that its features have the scale of the others
        self.register_buffer("scale", torch.tensor([1 / 8, 1 / 8, 1.0, 1 / 8]), persistent=False)

    @property
    def deep(self) -> bool:
        return self.config.architecture == "deep"

    def _build(self) -> nn.Module:
        config, family, states = self.config, self.family, self.family.states
        if config.architecture == "pointnet":
            return PointNet(states, states)
        if config.architecture == "dgcnn":
            return DGCNN(states, states, graph_columns=None)
        masks = 1 if family.finite else 2
        factor_in = {
            name: masks * cells(name.removeprefix("table")) if name != "budget" else len(BUDGET_FEATURES)
            for name in self.arity
        }
        factor_in |= {name: 1 for name in family.fixed if name in factor_in}
        if self.deep and states < 2:
            raise ValueError(f"Expected variables of two or more states for a deep network (got {states})")
        if self.deep:
            return ResidualNetwork(
                masks * states - 1,  # unaries relative to state 0
                factor_in,
                {name: a if name != "budget" else None for name, a in self.arity.items()},
                states,
                width=config.width,
                layers=config.blocks,
                repeat=config.repeat,
                bases=config.bases,
                supervise=config.supervise > 0,
            )
        text = PAPER if config.architecture == "paper" else config.architecture
        return build(
            text,
            variable_in=masks * states,
            factor_in=factor_in,
            edge_in=None if config.q == "cosine" else self.arity,
            num_classes=states if "(N)" in text else None,
            q=config.q,
            aggregate=config.aggregate,
            norm=None if config.norm == "none" else config.norm,
            q_options={"bases": config.bases} if config.q in ("basis", "cosine") else None,
        )

    def _repr_html_(self) -> str:
        return module_html(self)

    def forward(self, batch: ModelBatch) -> Tensor:
        dtype = next(self.parameters()).dtype
        batch = batch.to(dtype=dtype) if batch.dtype != dtype else batch
        if self.config.architecture in ("pointnet", "dgcnn"):
            scores: Tensor = self.body(batch.unary)
            return scores.float()
        present = group_names(batch)
        features = featurise(
            canonical(batch) if self.deep else batch,
            positions="none" if self.deep else _POSITIONS.get(self.config.q, "one-hot"),
            arity=self.arity,
            centre=self.deep,
            fixed=[name for name in self.family.fixed if name in present],
            masks=not self.family.finite,
            window=self.config.factor_size if "budget" in present else None,
            singles=not self.deep,
        )
        factors = dict(features.factors)
        if "budget" in factors and "budget" not in self.family.fixed:
            factors["budget"] = factors["budget"] * self.scale
        scores = self.body(features.graph, features.variables, factors, features.edges)
        if self.family.states > 2:
            scores = scores.masked_fill(~batch.state_mask, -torch.inf)
        return scores.float()

    def compile_blocks(self) -> None:
        """Compile the deep network's layer, or a baseline. FGNN layers have kernels of their own."""
        if isinstance(self.body, ResidualNetwork):
            self.body.compile_layers()
        elif isinstance(self.body, PointNet | DGCNN):
            self.body.compile(dynamic=False)
