"""Messages of several groups, aggregated and finished: what both halves of a layer have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, Incidence, Side, Structure, tracing
from fgnn.nn.aggregate import Aggregation, combine_groups, finish
from fgnn.nn.backends.choice import choose_backend, working_dtype
from fgnn.nn.backends.combine import MOST
from fgnn.nn.backends.half_call import FUSED, PER_EDGE, RELU, Ends, GroupCall, HalfCall, Operands, form_of
from fgnn.nn.backends.half_operator import covers_all, empty_factors, isolated_variables, run_half
from fgnn.nn.backends.linear import compiled, have_kernels
from fgnn.nn.backends.triton.linear import fits
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.edge_matrix import BasisMatrix, DenseMatrix, EdgeMatrix, TableMatrix, called_operands
from fgnn.nn.edge_net import net_weights
from fgnn.nn.functional import Activation, aggregate_messages, number_of_samples
from fgnn.nn.message import Message, call_on_edges, in_parts
from fgnn.nn.norm import NodeBatchNorm, Norm, batch_norms, make_norm
from fgnn.nn.plain_modules import is_plain


class EdgeMessages(nn.Module):
    r"""One group's :math:`\mathcal{Q}(t_{ci} \mid \Phi)\, \mathcal{M}([g_c, f_i] \mid \Theta)`, aggregated."""

    def __init__(self, message: Message, matrix: EdgeMatrix) -> None:
        super().__init__()
        if message.out != matrix.columns:
            raise ValueError(f"Expected Q with as many columns as M has outputs, {message.out} (got {matrix.columns})")
        self.message = message
        self.matrix = matrix

    def forward(
        self,
        incidence: Incidence,
        f: Tensor | None,  # shape: (B?, N, d)
        g: Tensor | None,  # shape: (B?, C, d)
        t: EdgeFeatures | None,
        towards: Side,
        aggregation: Aggregation,
    ) -> Tensor:
        """The aggregate at each destination, the identity element without edges.  # shape: (B?, D, m)"""
        a, b, activation = self._given(incidence, f, g)
        coefficients, weight = self.matrix(t, incidence)
        return aggregate_messages(
            a, b, incidence, coefficients, weight,
            towards=towards, activation=activation, aggregation=aggregation,
        )  # fmt: skip

    def _given(
        self, incidence: Incidence, f: Tensor | None, g: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Activation]:
        """The parts a and b of M and the activation of their sum; with a tail of M, a for each edge alone."""
        message = self.message
        if not in_parts(message):
            return call_on_edges(message, g, f, incidence.factor, incidence.variable), None, "identity"
        a, b = message.parts(g, f, incidence.num_factors, incidence.num_variables)
        if len(message.tail):
            return message.per_edge(a, b, incidence.factor, incidence.variable), None, "identity"
        return a, b, message.first_activation

    def operands(
        self, incidence: Incidence, f: Tensor | None, g: Tensor | None, t: EdgeFeatures | None, kernels: bool
    ) -> tuple[Operands, EdgeTypes | None, int]:
        """What the operation on a half-layer reads of this group: operands, types of edges, and options.

        It computes M's first layer and φ itself, if M and Q are of our own kinds; by ``kernels`` where they fit.
        """
        message, matrix = self.message, self.matrix
        if hasattr(matrix, "operands"):
            types, edge_operands, options = matrix.operands(t, incidence, kernels)
        else:  # another module in the place of Q
            types, edge_operands, options = called_operands(matrix, t, incidence)
        if not is_plain(message, Message) or len(message.tail):
            a, b, activation = self._given(incidence, f, g)
            options |= (PER_EDGE if b is None else 0) | (RELU if activation == "relu" else 0)
            return Operands(a, None, None, b, None, *edge_operands), types, options
        message.check(g, f)
        options |= RELU if message.first_activation == "relu" else 0
        theta_g = message.factor_weight if g is not None and message.factor_in else None
        theta_f = message.variable_weight if f is not None and message.variable_in else None
        for x, theta in ((g, theta_g), (f, theta_f)):
            kernels = kernels and (theta is None or x is None or fits(x, theta))
        operands = Operands(None if theta_g is None else g, theta_g, message.bias, None, theta_f, *edge_operands)
        return operands, types, options | (FUSED if kernels else 0)

    def in_steps(self) -> bool:
        """Whether the operation on a half-layer computes all of M, and Q from features of edges alone."""
        if not is_plain(self, EdgeMessages) or not is_plain(self.message, Message) or len(self.message.tail):
            return False
        matrix = self.matrix
        if is_plain(matrix, TableMatrix):
            return True
        known = is_plain(matrix, BasisMatrix) or is_plain(matrix, DenseMatrix)
        return known and net_weights(matrix.net) is not None  # type: ignore[arg-type]


class Output(nn.Module):
    """Bias, normalisation and ReLU after the aggregation. None by default, as in Alg. 1."""

    def __init__(self, width: int, *, bias: bool = False, norm: Norm = None, activation: str | None = None) -> None:
        super().__init__()
        if activation not in (None, "relu"):
            raise ValueError(f"Expected activation 'relu' or None (got {activation!r})")
        self.width = width
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.norm = make_norm(norm, width)
        self.activation = activation

    def forward(self, x: Tensor, empty: Tensor | None) -> Tensor:
        """x (..., D, m), which is zero and stays zero where ``empty`` (D,)."""
        if self.fused_norm(x):
            return _normalised([self], [x], [empty])[0]
        x = x if self.bias is None else (x + self.bias).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        x = x if self.activation is None else x.relu()
        return self.masked(x, empty)

    def masked(self, x: Tensor, empty: Tensor | None) -> Tensor:
        """x, zero where ``empty`` if it was before, too."""
        if empty is None or (self.bias is None and self.norm is None):
            return x
        return x.masked_fill(empty.unsqueeze(-1), 0.0)

    def fused_norm(self, x: Tensor) -> bool:
        """Whether the norm also adds the bias and applies the ReLU."""
        return isinstance(self.norm, NodeBatchNorm) and self.norm.fused(x)

    @property
    def fused(self) -> bool:
        """Whether the operation on a half-layer adds the bias and applies the ReLU itself."""
        return self.norm is None and is_plain(self, Output)


def _normalised(outputs: Sequence[Output], xs: Sequence[Tensor], empties: Sequence[Tensor | None]) -> list[Tensor]:
    """Outputs whose norms are fused, in the same launches."""
    norms: Any = [one.norm for one in outputs]
    relu = outputs[0].activation is not None
    ys = batch_norms(norms, xs, [one.bias for one in outputs], [None] * len(xs), relu=relu)
    return [one.masked(y, empty) for one, y, empty in zip(outputs, ys, empties, strict=True)]


def _all_outputs(outputs: Sequence[Output], xs: Sequence[Tensor], empties: Sequence[Tensor | None]) -> list[Tensor]:
    """The outputs of all groups, with their norms in the same launches where kernels serve them."""
    if len(outputs) > 1 and all(is_plain(one, Output) for one in outputs):
        alike = len({one.activation for one in outputs}) == 1
        if alike and all(one.fused_norm(x) for one, x in zip(outputs, xs, strict=True)):
            return _normalised(outputs, xs, empties)
    return [one(x, empty) for one, x, empty in zip(outputs, xs, empties, strict=True)]


class Sent(NamedTuple):
    """The messages of one group, and what they are computed from besides f."""

    messages: EdgeMessages
    incidence: Incidence
    g: Tensor | None
    t: EdgeFeatures | None


def to_factors(
    sent: Sequence[Sent], f: Tensor | None, aggregation: Aggregation, outputs: Sequence[Output]
) -> list[Tensor]:
    """The first half of a layer, whose groups have as many outputs, of the same kind.  # shapes: (B?, C, m)"""
    return _half(sent, f, "factor", aggregation, outputs, [group.incidence for group in sent])


def to_variables(
    sent: Sequence[Sent], f: Tensor | None, aggregation: Aggregation, output: Output, structure: Structure
) -> Tensor:
    """The second half of a layer.  # shape: (B?, N, m)"""
    return _half(sent, f, "variable", aggregation, [output], [structure])[0]


def _half(
    sent: Sequence[Sent], f: Tensor | None, towards: Side, aggregation: Aggregation, outputs: Sequence[Output],
    ends: Sequence[Incidence | Structure],
) -> list[Tensor]:  # fmt: skip
    """One output for each of ``ends``: the destinations of a group, or of all groups."""
    # Every operation is followed, or the trace itself makes the edges, for which no operator can ask by handle.
    called = tracing() and (not compiled() or any(x.incidence.handle < 0 for x in sent))
    if called or not all(is_plain(x.messages, EdgeMessages) for x in sent):
        parts = [x.messages(x.incidence, f, x.g, x.t, towards, aggregation) for x in sent]
        return _finish(parts, aggregation, outputs, ends)
    some = f if f is not None else sent[0].g
    kernels = have_kernels(next(sent[0].messages.parameters()) if some is None else some)
    given = [x.messages.operands(x.incidence, f, x.g, x.t, kernels) for x in sent]
    batches = [number_of_samples(_read(x, f)) for x, _, _ in given]
    alike = batches.count(batches[0]) == len(batches)
    if towards == "factor" and not alike:  # only some groups have a batch axis
        triples = zip(sent, outputs, ends, strict=True)
        return [_half([x], f, towards, aggregation, [output], [end])[0] for x, output, end in triples]
    inside = aggregation.kind in ("max", "sum") and len(sent) <= MOST
    first = outputs[0]
    last = inside and isinstance(first, Output) and first.fused  # bias and ReLU follow at once
    biases = [output.bias for output in outputs if last and output.bias is not None]
    relu = last and first.activation is not None
    masks, held = _masks(ends)
    how: Ends = "none"
    if inside and (len(sent) > len(ends) or biases or relu or any(end is not None for end in held)):
        how = "all" if towards == "variable" else "each"
    has_f = any(x.variable_weight is not None for x, _, _ in given)
    batch = batches[0] if alike else number_of_samples([y for x, _, _ in given for y in _read(x, f)])
    groups = tuple(
        GroupCall(s.incidence, types, s.incidence.num_factors, s.incidence.num_variables, form_of(x, options))
        for s, (x, types, options) in zip(sent, given, strict=True)
    )
    x = given[0][0]
    like = f if has_f and f is not None else x.weight if x.a is None else x.a
    dtype = working_dtype(like)
    backend = choose_backend(device=like.device, dtype=dtype, aggregation=aggregation)
    call = HalfCall(groups, towards, aggregation, has_f, batch, how, relu, masks, dtype, backend)
    ys = run_half(call, f, [x for x, _, _ in given], biases, held)
    if last:
        return ys
    if not inside:
        return _finish(ys, aggregation, outputs, ends)
    return _all_outputs(outputs, ys, [_empty(end, y) for end, y in zip(ends, ys, strict=True)])


def _read(x: Operands, f: Tensor | None) -> list[Tensor]:
    """The features among the operands."""
    return [y for y in (x.a, x.b, x.t, None if x.variable_weight is None else f) if y is not None]


def _finish(
    parts: Sequence[Tensor], aggregation: Aggregation, outputs: Sequence[Output], ends: Sequence[Incidence | Structure]
) -> list[Tensor]:
    """The results, from the aggregates of the groups, by plain operations."""
    found = []
    for k, (output, end) in enumerate(zip(outputs, ends, strict=True)):
        total = combine_groups(parts if isinstance(end, Structure) else parts[k : k + 1], aggregation)
        degree, empty = None, _empty(end, total)
        if aggregation.kind == "mean":
            degree = end.variable_degree() if isinstance(end, Structure) else end.degree("factor")
        found.append(output(finish(total, degree, empty, aggregation), empty))
    return found


def _empty(end: Incidence | Structure, like: Tensor) -> Tensor | None:
    return isolated_variables(end, like) if isinstance(end, Structure) else empty_factors(end, like)


def _masks(
    ends: Sequence[Incidence | Structure],
) -> tuple[tuple[Tensor | None, ...], tuple[Incidence | Structure | None, ...]]:
    """Destinations without edges, and those of ``ends`` that have or, in compiled code, may have some."""
    if compiled():
        full = [covers_all(end) if isinstance(end, Structure) else bool(end.arity) for end in ends]
        return (None,) * len(ends), tuple(None if none else end for end, none in zip(ends, full, strict=True))
    masks = tuple(end.isolated() if isinstance(end, Structure) else end.empty_factors() for end in ends)
    return masks, tuple(None if mask is None else end for mask, end in zip(masks, ends, strict=True))
