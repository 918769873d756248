"""Discrete graphical models: variables, factors, scores and files."""

from fgnn.pgm.batch import ModelBatch, model_structure
from fgnn.pgm.factors import (
    KINDS,
    AutomatonKind,
    Budget,
    BudgetGroup,
    Kind,
    StructuredFactor,
    StructuredGroup,
    Table,
    TableGroup,
)
from fgnn.pgm.group_batches import BudgetBatch, StructuredBatch, TableBatch
from fgnn.pgm.io import Limits, read_model, write_model
from fgnn.pgm.model import GraphicalModel

__all__ = [
    "KINDS",
    "AutomatonKind",
    "Budget",
    "BudgetBatch",
    "BudgetGroup",
    "GraphicalModel",
    "Kind",
    "Limits",
    "ModelBatch",
    "StructuredBatch",
    "StructuredFactor",
    "StructuredGroup",
    "Table",
    "TableBatch",
    "TableGroup",
    "model_structure",
    "read_model",
    "write_model",
]
