"""Networks: on graphical models, on point clouds, and the baselines of both."""

from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.family import Family
from fgnn.models.map.learned import load_network
from fgnn.models.map.network import MAPNetwork
from fgnn.models.points.config import PointConfig
from fgnn.models.points.network import PointNetwork

__all__ = ["Family", "MAPNetwork", "NetworkConfig", "PointConfig", "PointNetwork", "load_network"]
