"""Layers of the factor graph neural network, and the notation that builds networks of them."""

from fgnn.nn import functional
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import choose_backend, use_backend
from fgnn.nn.blocks import DR, FC, MLP, GlobalPooling, Res
from fgnn.nn.crf import CRF
from fgnn.nn.direction import FactorToVariable, VariableToFactor
from fgnn.nn.edge_matrix import BasisMatrix, CosineMatrix, DenseMatrix, EdgeMatrix, TableMatrix, make_edge_matrix
from fgnn.nn.functional import aggregate_messages
from fgnn.nn.graphed import Graphed, graphed
from fgnn.nn.half_layer import EdgeMessages
from fgnn.nn.layer import FGNNLayer
from fgnn.nn.message import Message
from fgnn.nn.mpnn import MessagePassing, MPNNLayer
from fgnn.nn.network import Network, build
from fgnn.nn.norm import RMSNorm
from fgnn.nn.notation import NotationError
from fgnn.nn.pooling import EdgeHead, GraphHead, GraphPool
from fgnn.nn.record import record
from fgnn.nn.residual import ResidualFGNNLayer, ResidualUpdate
from fgnn.nn.residual_network import ResidualNetwork
from fgnn.nn.summary import count_parameters

__all__ = [
    "CRF",
    "DR",
    "FC",
    "MLP",
    "Aggregation",
    "BasisMatrix",
    "CosineMatrix",
    "DenseMatrix",
    "EdgeHead",
    "EdgeMatrix",
    "EdgeMessages",
    "FGNNLayer",
    "FactorToVariable",
    "GlobalPooling",
    "GraphHead",
    "GraphPool",
    "Graphed",
    "MPNNLayer",
    "Message",
    "MessagePassing",
    "Network",
    "NotationError",
    "RMSNorm",
    "Res",
    "ResidualFGNNLayer",
    "ResidualNetwork",
    "ResidualUpdate",
    "TableMatrix",
    "VariableToFactor",
    "aggregate_messages",
    "build",
    "choose_backend",
    "count_parameters",
    "functional",
    "graphed",
    "make_edge_matrix",
    "record",
    "use_backend",
]
