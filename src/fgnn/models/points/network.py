"""One interface for all point networks: features and category in, scores and an auxiliary loss out."""

from __future__ import annotations

from torch import Tensor, nn

from fgnn.models.points.config import PointConfig
from fgnn.models.points.dgcnn import DGCNN, DGCNNPart
from fgnn.models.points.fgnn import PAPER_POINT_NETWORK, PointFGNN, one_hot
from fgnn.models.points.hierarchy import HierarchicalFGNN, Stages
from fgnn.models.points.pointcnn import S3DIS_DOWN, S3DIS_UP, SHAPENET_DOWN, SHAPENET_UP, PointCNN
from fgnn.models.points.pointnet import PointNet, PointNetPart, orthogonality
from fgnn.models.points.pyramid import PyramidFGNN
from fgnn.nn.summary import module_html


class PointNetwork(nn.Module):
    """A point network built from its configuration.

    Args:
        config: Which network.
        inputs: Features of a point; the first three are its coordinates.
        classes: Number of classes.
        categories: Object categories given with each cloud; 0 for none.

    Shapes:
        Features (B, P, inputs) and category (B,) to scores (B, P, classes) and a scalar auxiliary loss.
    """

    def __init__(self, config: PointConfig, inputs: int, classes: int, categories: int = 0) -> None:
        super().__init__()
        self.config, self.inputs, self.classes, self.categories = config, inputs, classes, categories
        if categories and config.architecture in ("pointnet", "dgcnn") and inputs != 3:
            raise ValueError(f"Expected coordinates alone for {config.architecture} on shapes (got {inputs} features)")
        self.net: nn.Module
        if config.architecture == "fgnn":
            self.net = PointFGNN(
                inputs, classes, categories=categories, k=config.k, bases=config.bases, aggregate=config.aggregate,
                notation=config.notation or PAPER_POINT_NETWORK, relative=config.relative, reach=config.reach,
            )  # fmt: skip
        elif config.architecture == "hierarchical":
            sizes = (tuple(part) for part in (config.samples, config.widths, config.inner, config.depths))
            self.net = HierarchicalFGNN(
                inputs, classes, categories, Stages(*sizes),
                k=config.k, bases=config.bases, reach=config.reach, drop_path=config.drop_path,
            )  # fmt: skip
        elif config.architecture == "pyramid":
            if categories:
                raise ValueError("Expected scans for a pyramid (got shapes with categories)")
            self.net = PyramidFGNN(
                inputs, classes, widths=tuple(config.widths), k=config.k, bases=config.bases, reach=config.reach
            )
        elif config.architecture == "pointnet":
            self.net = PointNetPart(classes, categories) if categories else PointNet(inputs, classes)
        elif config.architecture == "dgcnn":
            columns = (6, 9) if inputs == 9 else (0, 3)
            self.net = (
                DGCNNPart(classes, categories, k=config.k)
                if categories
                else DGCNN(inputs, classes, k=config.k, graph_columns=columns)
            )
        else:
            layers = (SHAPENET_DOWN, SHAPENET_UP) if categories else (S3DIS_DOWN, S3DIS_UP)
            self.net = PointCNN(inputs - 3, classes, *layers)

    def _repr_html_(self) -> str:
        return module_html(self)

    def forward(self, features: Tensor, category: Tensor | None = None) -> tuple[Tensor, Tensor]:
        no_loss = features.new_zeros(())
        kind = self.config.architecture
        if kind in ("fgnn", "hierarchical"):
            return self.net(features, category if self.categories else None), no_loss
        if kind == "pointcnn":
            more = features[..., 3:] if self.inputs > 3 else None
            return self.net(features[..., :3].contiguous(), more), no_loss
        if not self.categories:
            return self.net(features), no_loss
        if category is None:
            raise ValueError(f"Expected a category below {self.categories} for each cloud (got none)")
        kind_one_hot = one_hot(category, self.categories, features.dtype)
        if kind == "dgcnn":
            return self.net(features, kind_one_hot), no_loss
        scores, transform = self.net(features, kind_one_hot)
        return scores, 1e-3 * orthogonality(transform.float())
