"""The one operation all layers are made of: aggregate Q(t_e) · M(·) over the edges of each destination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import choose_backend
from fgnn.nn.backends.torch.messages import aggregate_plain

Activation = Literal["relu", "identity"]
# How the edge matrices are given: coefficients φ, or a type for each edge.
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
    r"""For every destination d, the aggregate over its edges e = (c, i) of :math:`Q_e\, h_e`:

    .. math:: h_e = \sigma(a_c + b_i), \qquad Q_e = \sum_\tau \varphi_{e\tau} W_\tau
              \quad\text{or}\quad Q_e = W_{\text{type}(e)}

    Nothing of size E·m·n is stored. Backends must agree on all of the following.

    Args:
        a: (C, n) or (B, C, n), the factor's part of M's first linear layer, bias included.
            With ``b`` None: (E, n) or (B, E, n), one row for each edge.
        b: (N, n) or (B, N, n), the variable's part. A side without B is the same for all samples.
        incidence: The edges, numbered factor by factor. ``incidence.arity`` is A where all factors have A edges
            (edge e is place e % A of factor e // A); else ``factor_ptr`` (C + 1,) cuts the edges by factor. Towards
            variables, ``var_edge`` (E,) lists edges by variable and ``var_ptr`` (N + 1,) cuts that list.
        coefficients: φ (E, T), or (B, E, T) where samples have their own, or ``EdgeTypes`` (then T = K matrices).
            Always in edge order, whichever the direction.
        weight: W (T, m, n).
        towards: "factor" (D = C) or "variable" (D = N).
        activation: σ, "relu" or "identity".
        aggregation: max, sum, mean (its *sum* is returned: the caller divides, since edges of other groups count
            too) or softmax(γ).

    Returns:
        (D, m), or (B, D, m) where any input has B. A destination without edges gets the neutral element, -inf for max
        and softmax and 0 for sum, and passes no gradient. The gradient of a maximum goes, entry by entry, to the
        edge of the lowest number among those that attain it. Gradients reach a, b, φ and W.

    Under autocast all inputs are cast to its dtype; the result has that dtype too.
    """
    if torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        a = a.to(dtype)  # W is rounded by the backend
        b = b if b is None else b.to(dtype)
        coefficients = coefficients.to(dtype) if isinstance(coefficients, Tensor) else coefficients
        with torch.autocast(a.device.type, enabled=False):
            return _dispatch(a, b, incidence, coefficients, weight, towards, activation, aggregation)
    return _dispatch(a, b, incidence, coefficients, weight, towards, activation, aggregation)


def _dispatch(
    a: Tensor,
    b: Tensor | None,
    incidence: Incidence,
    coefficients: Coefficients,
    weight: Tensor,
    towards: Side,
    activation: Activation,
    aggregation: Aggregation,
) -> Tensor:
    backend = choose_backend(device=a.device, dtype=a.dtype, aggregation=aggregation)
    return BACKENDS[backend](a, b, incidence, coefficients, weight, towards, activation, aggregation)


Backend = Callable[[Tensor, Tensor | None, Incidence, Coefficients, Tensor, Side, Activation, Aggregation], Tensor]


def _fused(
    a: Tensor,
    b: Tensor | None,
    incidence: Incidence,
    coefficients: Coefficients,
    weight: Tensor,
    towards: Side,
    activation: Activation,
    aggregation: Aggregation,
) -> Tensor:
    from fgnn.nn.backends.triton import aggregate_fused

    return aggregate_fused(a, b, incidence, coefficients, weight, towards, activation, aggregation)


BACKENDS: dict[str, Backend] = {"torch": aggregate_plain, "triton": _fused}
