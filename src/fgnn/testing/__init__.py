"""Checks for solvers, factors and layers of your own: the project's tests use them too."""

from fgnn.testing.factors import check_factor
from fgnn.testing.layers import check_layer, layer_by_loop
from fgnn.testing.permutations import assert_permutation_equivariant
from fgnn.testing.solvers import check_solver, random_models

__all__ = [
    "assert_permutation_equivariant",
    "check_factor",
    "check_layer",
    "check_solver",
    "layer_by_loop",
    "random_models",
]
