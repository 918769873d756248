"""The operation that every layer is made of: aggregate Q(t_e) · M(·) over the edges of each destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side, tracing
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import EdgeCall, choose_backend, working_dtype
from fgnn.nn.backends.half_call import PER_EDGE, RELU, GroupCall, HalfCall, Operands, form_of
from fgnn.nn.backends.half_operator import run_half
from fgnn.nn.backends.linear import compiled
from fgnn.nn.backends.torch.traced import aggregate_traced

Activation = Literal["relu", "identity"]
# How edge matrices are given: coefficients φ, or a type for each edge.
Coefficients = Tensor | EdgeTypes


def aggregate_messages(
    a: Tensor,
    b: Tensor | None,
    incidence: Incidence,
    coefficients: Coefficients,
    weight: Tensor,
    *,
    towards: Side,
    activation: Activation = "relu",
    aggregation: Aggregation = Aggregation(),  # noqa: B008 (frozen)
) -> Tensor:
    r"""Aggregate :math:`Q_e\, h_e` over the edges e = (c, i) of each destination:

    .. math:: h_e = \sigma(a_c + b_i), \qquad Q_e = \sum_\tau \varphi_{e\tau} W_\tau
              \quad\text{or}\quad Q_e = W_{\text{type}(e)}

    Nothing of size E·m·n is stored. All backends follow this contract:

    Args:
        a: (C, n) or (B, C, n), the factor's part of M's first linear layer, bias included.
            If ``b`` is None: (E, n) or (B, E, n), one row per edge.
        b: (N, n) or (B, N, n), the variable's part. A side without B is shared by all samples.
        incidence: The edges, numbered factor by factor. ``incidence.arity`` is A if all factors have A edges
            (edge e is place e % A of factor e // A); else ``factor_ptr`` (C + 1,) splits the edges by factor. Towards
            variables, ``var_edge`` (E,) lists edges by variable and ``var_ptr`` (N + 1,) splits that list.
        coefficients: φ (E, T), or (B, E, T) if it differs by sample, or ``EdgeTypes`` (then T = K matrices). In edge
            order in both directions.
        weight: W (T, m, n).
        towards: "factor" (D = C) or "variable" (D = N).
        activation: σ, "relu" or "identity".
        aggregation: max, sum, mean (returns the *sum*: the caller divides, because edges of other groups count
            too) or softmax(γ).

    Returns:
        (D, m), or (B, D, m) if any input has B. A destination without edges gets the identity element, -inf for max
        and softmax and 0 for sum, and passes no gradient. The gradient of a maximum goes, entry by entry, to the
        lowest-numbered edge that attains it. Gradients reach a, b, φ and W.

    Under autocast all inputs are cast to its dtype, which the result has too.
    """
    types, phi = (coefficients, None) if isinstance(coefficients, EdgeTypes) else (None, coefficients)
    batch = number_of_samples([x for x in (a, b, phi) if x is not None])
    dtype, relu = working_dtype(a), activation == "relu"
    if tracing() and (not compiled() or incidence.handle < 0):
        a, (b, phi) = a.to(dtype), (None if x is None else x.to(dtype) for x in (b, phi))
        with torch.autocast(a.device.type, enabled=False):
            return aggregate_traced(a, b, phi, weight, EdgeCall(incidence, towards, relu, aggregation, types, batch))
    x = Operands(a, None, None, b, None, phi, weight, ())
    form = form_of(x, (RELU if relu else 0) | (PER_EDGE if b is None else 0))
    group = GroupCall(incidence, types, incidence.num_factors, incidence.num_variables, form)
    backend = choose_backend(device=a.device, dtype=dtype, aggregation=aggregation)
    call = HalfCall((group,), towards, aggregation, False, batch, "none", False, (), dtype, backend)
    return run_half(call, None, [x], (), ())[0]


def number_of_samples(features: Sequence[Tensor]) -> int | None:
    """B, the first of three axes of all features that have three; None if none has."""
    sizes = [x.shape[0] for x in features if x.dim() == 3]
    if [size for size in sizes if size != sizes[0]]:
        raise ValueError(f"Expected the same number of samples in all features (got {sizes})")
    return sizes[0] if sizes else None
