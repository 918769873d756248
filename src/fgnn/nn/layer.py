"""The FGNN layer, Alg. 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, tracing
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import choose_backend, working_dtype
from fgnn.nn.backends.combine import MOST
from fgnn.nn.backends.fork import fork
from fgnn.nn.checked import Checked
from fgnn.nn.direction import FactorToVariable, VariableToFactor, all_to_factors
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.edge_matrix import BasisMatrix, CosineMatrix, DenseMatrix, EdgeMatrix, Form, TableMatrix, make_edge_matrix
from fgnn.nn.functional import Activation
from fgnn.nn.half_layer import EdgeMessages, Output
from fgnn.nn.inputs import Widths, check_sizes
from fgnn.nn.message import Message
from fgnn.nn.norm import Norm
from fgnn.nn.plain_modules import is_plain
from fgnn.nn.replays import replays
from fgnn.nn.summary import module_html

Schedule = Literal["sequential", "parallel"]


class FGNNLayer(Checked):
    r"""Variable-to-Factor, then Factor-to-Variable (Alg. 1), with separate parameters for each group:

    .. math::
        \tilde g_c &= \operatorname{agg}_{i: (c,i)} \mathcal{Q}(t_{ci}|\Phi_{VF}) \mathcal{M}([g_c, f_i]|\Theta_{VF}) \\
        \tilde f_i &= \operatorname{agg}_{c: (c,i)} \mathcal{Q}(t_{ci}|\Phi_{FV}) \mathcal{M}([g_c, f_i]|\Theta_{FV})

    By default exactly this; ``bias``, ``norm`` and ``activation`` may be added after the aggregation.

    Args:
        variable_in: Length of f_i.
        factor_in: Length of g_c by group; 0 for a group without factor features.
        edge_in: Length of t_ci by group, for ``q="table"`` the number of types; 0 or missing: no edge features.
        out: Length of the new f_i, and of the new g_c unless ``factor_out`` says otherwise.
        q: The form of Q: "dense", "basis", "table", or "cosine" of the position in the scope, without edge features.
        aggregate: "max", "sum", "mean", "softmax" or "softmax(γ)", where softmax is log Σ exp(γ·) / γ.
        schedule: "sequential" feeds the new g to FV, "parallel" reads the old g in both.
        factor_out: Length of the new g_c, for all groups or by group.
        width: n, the length of M's output; by default the output width of its direction.
        hidden: Widths of further layers in M before its last.
        message_activation: σ in M, "relu" or "identity".
        bias, norm, activation: After the aggregation: a bias, normalisation ("batch", "layer", "rms"), "relu".
        q_options: Further arguments of Q, such as ``bases`` or ``hidden``.
        variables_only: Return no factor features, and skip the parameters that only they need.

    Shapes:
        f (N, variable_in) or (B, N, variable_in); gs by group (C, factor_in) or with B; edges by group (C, A, edge_in)
        or (E, edge_in), with a leading B where samples differ, or (A, edge_in), the same for every factor and sample.
        Returns f (B?, N, out) and gs (B?, C, factor_out).
    """

    def __init__(
        self,
        variable_in: int,
        factor_in: Mapping[str, int],
        edge_in: Mapping[str, int] | None = None,
        out: int = 64,
        *,
        q: Form = "basis",
        aggregate: str | Aggregation = "max",
        schedule: Schedule = "sequential",
        factor_out: int | Mapping[str, int] | None = None,
        width: int | None = None,
        hidden: Sequence[int] = (),
        message_activation: Activation = "relu",
        bias: bool = False,
        norm: Norm = None,
        activation: str | None = None,
        q_options: Mapping[str, Any] | None = None,
        variables_only: bool = False,
    ) -> None:
        edge_in = {} if edge_in is None else edge_in
        check_sizes(variable_in, factor_in, edge_in, hidden, out=out, width=width)
        if isinstance(factor_out, Mapping) and set(factor_out) != set(factor_in):
            raise ValueError(f"Expected factor_out for the groups {list(factor_in)} (got {list(factor_out)})")
        after: dict[str, Any] = {"aggregate": aggregate, "bias": bias, "norm": norm, "activation": activation}
        vf, fv = {}, {}
        for name, length in factor_in.items():
            new_length = factor_out[name] if isinstance(factor_out, Mapping) else factor_out or out
            fv_length = new_length if schedule == "sequential" else length

            def parts(g_in: int, rows: int, t_in: int = edge_in.get(name, 0)) -> tuple[Message, EdgeMatrix]:
                n = width or rows
                message = Message(g_in, variable_in, n, hidden=hidden, activation=message_activation)
                return message, make_edge_matrix(q, t_in, rows, n, **(q_options or {}))

            if schedule == "sequential" or not variables_only:
                vf[name] = VariableToFactor(*parts(length, new_length), **after)
            fv[name] = parts(fv_length, out)
        self._setup(vf, FactorToVariable(fv, **after), schedule, variables_only)

    @classmethod
    def from_parts(
        cls, vf: Mapping[str, VariableToFactor], fv: FactorToVariable, schedule: Schedule = "sequential"
    ) -> FGNNLayer:
        """A layer from its two halves, for a custom M and Q."""
        layer = cls.__new__(cls)
        layer._setup(vf, fv, schedule)
        return layer

    def _setup(
        self, vf: Mapping[str, VariableToFactor], fv: FactorToVariable, schedule: Schedule, variables_only: bool = False
    ) -> None:
        nn.Module.__init__(self)
        if schedule not in ("sequential", "parallel"):
            raise ValueError(f"Expected schedule 'sequential' or 'parallel' (got {schedule!r})")
        if set(vf) != set(fv.edge_messages) and not (variables_only and schedule == "parallel"):
            raise ValueError(
                f"Expected the same groups in both directions (got {list(vf)} and {list(fv.edge_messages)})"
            )
        self.schedule = schedule
        self.variables_only = variables_only
        self.variable_to_factor = nn.ModuleDict(dict(vf))
        self.factor_to_variable = fv

    def _repr_html_(self) -> str:
        return module_html(self)

    @replays
    def forward(
        self,
        graph: FactorGraph,
        f: Tensor | None = None,
        gs: Mapping[str, Tensor] | None = None,
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """New variable features, and new factor features by group."""
        gs, edges = {} if gs is None else gs, {} if edges is None else edges
        self._check(graph, f, gs, edges)
        if tracing():
            return self._halves(graph, f, gs, edges)
        try:
            return self._halves(graph, f, gs, edges)
        except ValueError as error:  # of values, which are read at every call
            raise self._named(error, graph, f, gs, edges) from None

    def _halves(self, graph: FactorGraph, f: Any, gs: Any, edges: Any) -> tuple[Tensor, dict[str, Tensor]]:
        new_gs: dict[str, Tensor] = {}
        again = f
        if len(self.variable_to_factor):
            if f is not None:
                (f,), (again,) = fork([f])
            new_gs = all_to_factors(self.variable_to_factor, graph, f, gs, edges)  # type: ignore[arg-type]
        read = new_gs if self.schedule == "sequential" else gs
        if self.schedule == "sequential" and not self.variables_only:
            first, second = fork(list(new_gs.values()))
            read, new_gs = dict(zip(new_gs, first, strict=True)), dict(zip(new_gs, second, strict=True))
        return self.factor_to_variable(graph, again, read, edges), {} if self.variables_only else new_gs

    def _reads(self) -> tuple[Widths | None, torch.dtype | None]:
        """The lengths of the features that the layer reads, and its dtype; any lengths where M is no `Message`."""
        halves: Any = self.variable_to_factor  # in a sequential layer, the other half reads the new g
        parts = {name: getattr(half, "edge_messages", half) for name, half in halves.items()}
        parts = parts or dict(getattr(self.factor_to_variable, "edge_messages", {}).items())
        messages = {name: getattr(part, "message", None) for name, part in parts.items()}
        matrices: dict[str, Any] = {name: getattr(part, "matrix", None) for name, part in parts.items()}
        widths = Widths(
            max([m.variable_in for m in messages.values() if isinstance(m, Message)], default=0),
            {name: m.factor_in if isinstance(m, Message) else 0 for name, m in messages.items()},
            {name: _edge_in(q) for name, q in matrices.items()},
            {name: q.terms for name, q in matrices.items() if type(q) is TableMatrix and q.reads_types},
        )
        known = widths if widths.factors else None  # a module of the user's stands for both halves
        return known, next((p.dtype for p in self.parameters() if p.is_floating_point()), None)

    def in_steps(self) -> bool:
        """Whether the layer consists of two half-layers alone, which compiled code takes as steps.

        It is called while tracing, not traced itself: what the halves do depends on the same, so a change is noticed.
        """
        fv = self.factor_to_variable
        halves: list[Any] = [*self.variable_to_factor.values(), fv]
        for half in halves:
            if not is_plain(half, FactorToVariable if half is fv else VariableToFactor):
                return False
            if half.aggregation.kind not in ("max", "sum") or not isinstance(half.output, Output):
                return False
            if not half.output.fused:
                return False
        messages: list[Any] = [*fv.edge_messages.values(), *(half.edge_messages for half in halves[:-1])]
        plain = all(isinstance(part, EdgeMessages) and part.in_steps() for part in messages)
        return plain and len(fv.edge_messages) <= MOST

    in_steps._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @property
    def backend(self) -> str:
        """The backend the layer uses on its parameters' device: "torch" or "triton"."""
        some, aggregation = next(self.parameters()), getattr(self.factor_to_variable, "aggregation", Aggregation())
        return choose_backend(device=some.device, dtype=working_dtype(some), aggregation=aggregation)

    def extra_repr(self) -> str:
        return f"schedule={self.schedule}"


def _edge_in(q: Any) -> int | None:
    """The length of t_ci that a Q reads, 0 for none; None if it has types, or is a module of the user's."""
    if type(q) in (BasisMatrix, DenseMatrix):
        return int(q.edge_in)
    shared = type(q) is CosineMatrix or (type(q) is TableMatrix and not q.reads_types)
    return 0 if shared else None
