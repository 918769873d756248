"""Layers of the factor graph neural network, and the notation that builds networks of them."""

from fgnn.nn import functional
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.direction import EdgeMessages, FactorToVariable, VariableToFactor
from fgnn.nn.edge_matrix import BasisMatrix, DenseMatrix, EdgeMatrix, TableMatrix, make_edge_matrix
from fgnn.nn.functional import aggregate_messages, choose_backend, use_backend
from fgnn.nn.layer import FGNNLayer
from fgnn.nn.message import Message
from fgnn.nn.mpnn import MessagePassing, MPNNLayer

__all__ = [
    "Aggregation",
    "BasisMatrix",
    "DenseMatrix",
    "EdgeMatrix",
    "EdgeMessages",
    "FGNNLayer",
    "FactorToVariable",
    "MPNNLayer",
    "Message",
    "MessagePassing",
    "TableMatrix",
    "VariableToFactor",
    "aggregate_messages",
    "choose_backend",
    "functional",
    "make_edge_matrix",
    "use_backend",
]
