"""Networks: on graphical models, on point clouds, and the baselines of both."""

from fgnn.models.config import NetworkConfig
from fgnn.models.family import Family
from fgnn.models.learned import load_network
from fgnn.models.map_network import MAPNetwork

__all__ = ["Family", "MAPNetwork", "NetworkConfig", "load_network"]
