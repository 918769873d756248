"""Discrete graphical models: variables, tables, budgets, scores and files."""

from fgnn.pgm.batch import BudgetBatch, ModelBatch, TableBatch, model_structure
from fgnn.pgm.factors import Budget, BudgetGroup, Table, TableGroup
from fgnn.pgm.io import Limits, read_model, write_model
from fgnn.pgm.model import GraphicalModel

__all__ = [
    "Budget",
    "BudgetBatch",
    "BudgetGroup",
    "GraphicalModel",
    "Limits",
    "ModelBatch",
    "Table",
    "TableBatch",
    "TableGroup",
    "model_structure",
    "read_model",
    "write_model",
]
