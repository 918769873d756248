"""Networks that read graphical models and score every state of every variable."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fgnn.models.map.canonical import canonical
from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.family import Family
from fgnn.models.map.featurise import BUDGET_FEATURES, Featuriser, Positions
from fgnn.models.points.dgcnn import DGCNN
from fgnn.models.points.pointnet import PointNet
from fgnn.nn import ResidualNetwork, build
from fgnn.pgm import BudgetBatch, ModelBatch

PAPER = """FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - MLP(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(256)
- Res[FC(64) - FGNN(64) - FC(256)] - FC(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(64)
- Res[FC(64) - FGNN(64) - FC(64)] - FGNN(N)"""


@dataclass(frozen=True, eq=False)
class _Structure:
    """What depends on the scopes alone."""

    featuriser: Featuriser
    tables: tuple[Tensor, ...]
    budgets: tuple[Tensor, ...]
    read: tuple[Tensor, ...]  # the budgets' scopes as the network reads them: other than the model's in the ablation


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
        self._structures: OrderedDict[tuple[object, ...], _Structure] = OrderedDict()
        if config.factor_size is not None and "budget" not in family.fixed:
            raise ValueError("Expected factor_size only where budgets are fixed (got a family whose budgets vary)")
        self.body = self._build()
        # a budget's counts in units of 8, so that its features are of the size of the others
        self.register_buffer("scale", torch.tensor([1 / 8, 1 / 8, 1.0, 1 / 8]), persistent=False)

    def _build(self) -> nn.Module:
        config, family, states = self.config, self.family, self.family.states
        if config.architecture == "pointnet":
            return PointNet(states, states)
        if config.architecture == "dgcnn":
            return DGCNN(states, states, graph_columns=None)
        masks = 1 if family.finite else 2
        factor_in = {f"table{s}": 1 if f"table{s}" in family.fixed else masks * _cells(s) for s in family.tables}
        if family.budgets:
            factor_in["budget"] = 1 if "budget" in family.fixed else len(BUDGET_FEATURES)
        arity = {f"table{s}": s.count("x") + 1 for s in family.tables}
        if self.deep:
            return ResidualNetwork(
                masks * states - 1,  # unaries relative to state 0
                factor_in,
                arity,  # budgets may have any
                states,
                width=config.width,
                layers=config.blocks,
                repeat=config.repeat,
                bases=config.bases,
                supervise=config.supervise > 0,
            )
        if family.budgets:
            arity["budget"] = config.factor_size or max(family.budgets)
        text = PAPER if config.architecture == "paper" else config.architecture
        return build(
            text,
            variable_in=masks * states,
            factor_in=factor_in,
            edge_in=None if config.q == "cosine" else arity,
            num_classes=states if "(N)" in text else None,
            q=config.q,
            aggregate=config.aggregate,
            norm=None if config.norm == "none" else config.norm,
            q_options={"bases": config.bases} if config.q in ("basis", "cosine") else None,
        )

    @property
    def deep(self) -> bool:
        return self.config.architecture == "deep"

    def forward(self, batch: ModelBatch) -> Tensor:
        dtype = next(self.parameters()).dtype
        batch = batch.to(dtype=dtype) if batch.dtype != dtype else batch
        if self.config.architecture in ("pointnet", "dgcnn"):
            scores: Tensor = self.body(batch.unary)
            return scores.float()
        if self.deep:
            batch = canonical(batch)
        structure = self._structure(batch)
        # the same scope tensors every time: the featuriser then sees at once that the structure is known
        batch = replace(
            batch,
            tables=tuple(replace(t, scopes=s) for s, t in zip(structure.tables, batch.tables, strict=True)),
            budgets=self._budgets(batch, structure),
        )
        features = structure.featuriser(batch)
        factors = {
            name: g * self.scale if g.shape[-1] == len(BUDGET_FEATURES) and name == "budget" else g
            for name, g in features.factors.items()
        }
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

    # ---- structure ------------------------------------------------------------------------------------------------

    def _structure(self, batch: ModelBatch) -> _Structure:
        """The structure of a batch, found by its scope tensors or, where those are new, by what they hold."""
        scopes = [t.scopes for t in batch.tables] + [u.scopes for u in batch.budgets]
        quick = (batch.device, batch.num_variables, *map(id, scopes))
        known = self._structures.get(quick)
        if known is not None and all(a is b for a, b in zip((*known.tables, *known.budgets), scopes, strict=True)):
            self._structures.move_to_end(quick)
            return known
        slow = (batch.device, batch.num_variables, *(s.cpu().numpy().tobytes() for s in scopes))
        known = self._structures.get(slow)
        if known is None:
            known = self._make(batch)
        for key in (quick, slow):
            self._structures[key] = known
            self._structures.move_to_end(key)
        while len(self._structures) > 32:
            self._structures.popitem(last=False)
        return known

    def _make(self, batch: ModelBatch) -> _Structure:
        tables, budgets = tuple(t.scopes for t in batch.tables), tuple(u.scopes for u in batch.budgets)
        read = budgets
        if self.config.factor_size is not None:
            read = tuple(sub_windows(s, self.config.factor_size) for s in budgets)
            batch = replace(batch, budgets=_unread(read, len(batch)))
        forms: dict[str, Positions] = {"table": "index", "cosine": "none"}
        positions = forms.get(self.config.q, "one-hot")
        featuriser = self.family.featuriser(batch, deep=self.deep, positions=positions)
        return _Structure(featuriser, tables, budgets, read)

    def _budgets(self, batch: ModelBatch, structure: _Structure) -> tuple[BudgetBatch, ...]:
        if self.config.factor_size is not None:
            return _unread(structure.read, len(batch))
        return tuple(replace(u, scopes=s) for s, u in zip(structure.budgets, batch.budgets, strict=True))


def sub_windows(scopes: Tensor, size: int) -> Tensor:
    """All distinct runs of ``size`` neighbours in the scopes, in order: what a network of smaller factors sees."""
    if size > scopes.shape[1]:
        raise ValueError(f"Expected a factor_size of at most the budgets' {scopes.shape[1]} variables (got {size})")
    found: Tensor = torch.unique(scopes.unfold(1, size, 1).reshape(-1, size), dim=0)
    return found


def _unread(scopes: tuple[Tensor, ...], count: int) -> tuple[BudgetBatch, ...]:
    """Budgets whose bounds nobody reads."""
    none = [s.new_zeros(1, 1).expand(count, len(s)) for s in scopes]
    return tuple(
        BudgetBatch(s, z, z, shared=frozenset({"at_least", "at_most"})) for s, z in zip(scopes, none, strict=True)
    )


def _cells(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))
