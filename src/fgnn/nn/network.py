"""Networks built from the paper's notation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, tracing
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import working_dtype
from fgnn.nn.backends.triton.ahead import compile_ahead
from fgnn.nn.blocks import DR, FC, GlobalPooling, Res, in_steps, run_layers
from fgnn.nn.checked import Checked
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.edge_matrix import Form
from fgnn.nn.inputs import Widths, check_kinds, check_sizes, kind_of
from fgnn.nn.layer import FGNNLayer, Schedule
from fgnn.nn.norm import Norm, make_norm
from fgnn.nn.notation import Item, NotationError, parse, to_text
from fgnn.nn.replays import replays
from fgnn.nn.summary import count_parameters, lines_html


class Network(Checked):
    """A sequence of layers, as :func:`build` makes it.

    Attributes:
        notation: The paper's notation it was built from, in one line.
        layers: One module for each item of it.
    """

    def __init__(
        self,
        items: Sequence[Item],
        layers: Sequence[nn.Module],
        lines: Sequence[tuple[str, ...]],
        widths: Widths | None = None,
    ) -> None:
        super().__init__()
        self._widths = widths  # of the inputs
        self.items = tuple(items)
        self.layers = nn.ModuleList(layers)
        self._lines = tuple(lines)
        self._ahead: set[tuple[Any, ...]] = set()  # kinds of calls whose kernels are compiled

    @property
    def notation(self) -> str:
        """The notation in one line, as the paper prints it."""
        return to_text(self.items)

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters."""
        return count_parameters(self)

    @property
    def backend(self) -> str:
        """The backend its FGNN layers use."""
        return next((m.backend for m in self.modules() if isinstance(m, FGNNLayer)), "torch")

    @replays
    def forward(
        self,
        graph: FactorGraph,
        f: Tensor | None = None,
        gs: Mapping[str, Tensor] | None = None,
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Tensor:
        """Scores of the variables.  # shape: (B?, N, out)"""
        gs, edges = {} if gs is None else gs, {} if edges is None else edges
        if type(self.layers[0]) is FGNNLayer:  # which checks the rest, and edge features too
            check_kinds(graph, f, gs, edges)
        else:
            self._check(graph, f, gs, edges)
        if f is not None and f.is_cuda and not tracing():
            self._compile_ahead(graph, f, gs, edges)
        return run_layers(self.layers, graph, f, gs, edges)[0]  # type: ignore[arg-type]

    def _reads(self) -> tuple[Widths | None, torch.dtype | None]:
        return self._widths, next((p.dtype for p in self.parameters() if p.is_floating_point()), None)

    def _compile_ahead(self, graph: FactorGraph, f: Tensor, gs: Any, edges: Any) -> None:
        """Compile the kernels of the first call of a kind, if nothing else happens in it that is seen from outside."""
        kind = working_dtype(f), torch.is_grad_enabled()
        if kind in self._ahead:
            return
        self._ahead.add(kind)
        if self.backend == "triton" and all(in_steps(layer) for layer in self.layers):
            with torch.cuda.device(f.device):
                compile_ahead(lambda: run_layers(self.layers, graph, f, gs, edges)[0], list(self.parameters()))

    def _repr_html_(self) -> str:
        return lines_html(f"Network, {self.num_parameters:,} parameters", self._lines)

    def __repr__(self) -> str:
        sizes = [max(map(len, column)) for column in zip(*self._lines, strict=True)]
        rows = [f"Network, {self.num_parameters:,} parameters"]
        for *cells, parameters in self._lines:
            left = "  ".join(f"{cell:<{size}}" for cell, size in zip(cells, sizes, strict=False))
            rows.append(f"  {left}  {parameters:>{sizes[-1]}}".rstrip())
        return "\n".join(rows)


def build(
    notation: str,
    *,
    variable_in: int,
    factor_in: Mapping[str, int],
    edge_in: Mapping[str, int] | None = None,
    num_classes: int | None = None,
    q: Form = "basis",
    aggregate: str | Aggregation = "max",
    schedule: Schedule = "sequential",
    norm: Norm = None,
    width: int | None = None,
    hidden: Sequence[int] = (),
    q_options: Mapping[str, Any] | None = None,
) -> Network:
    """Build a network from the paper's notation.

    ``FGNN(d)`` is an FGNN layer with bias, normalisation if any, and ReLU; ``FC(d)`` (or ``MLP(d)``) a fully connected
    layer with ReLU, on variables and on every group of factors with their own weights; ``Res[...]`` a residual
    connection on all of them; ``DR(p)`` dropout; ``GlobalPooling`` as in PointNet; ``Input`` the input itself. ``N``
    is ``num_classes``. The last layer has neither normalisation nor ReLU: its outputs are scores.

    Nothing reads the factors after the last FGNN, so later layers act on variables only. The factor features inside
    that last FGNN, and its M, are at least as wide as its input.

    Args:
        notation: As printed, over any number of lines.
        variable_in, factor_in, edge_in: Lengths of the input features; see ``FGNNLayer``.
        num_classes: What ``N`` stands for.
        q, aggregate, schedule, width, hidden, q_options: As in ``FGNNLayer``, for every FGNN layer.
        norm: "batch", "layer", "rms" or None, after every layer but the last.

    Raises:
        NotationError: A mistake in the notation, with line and column.
    """
    if not isinstance(notation, str):
        raise ValueError(f"Expected the notation as text (got {kind_of(notation)})")  # noqa: TRY004
    edge_in = {} if edge_in is None else edge_in
    check_sizes(variable_in, factor_in, edge_in, hidden, num_classes=num_classes, width=width)
    make_norm(norm, 1)  # refuses unknown names also where no layer has a norm
    items = parse(notation)
    uses_classes = any(item.argument == "N" for item in _flat(items))
    if uses_classes and num_classes is None:
        raise ValueError("Expected num_classes, since the notation has N (got None)")
    if num_classes is not None and not uses_classes:
        raise ValueError(f"Expected N in the notation, since num_classes is {num_classes} (got {to_text(items)})")
    common: dict[str, Any] = {
        "q": q, "aggregate": aggregate, "schedule": schedule, "hidden": hidden, "q_options": q_options,
    }  # fmt: skip
    builder = _Builder(notation, edge_in, num_classes, norm, width, common, tuple(factor_in))
    widths = _Widths(variable_in, dict(factor_in))
    layers, _ = builder.sequence(items, widths, factors_read=False, last=True, depth=0)
    return Network(items, layers, builder.lines, Widths(variable_in, dict(factor_in), dict.fromkeys(factor_in)))


@dataclass(frozen=True)
class _Widths:
    """Feature lengths at one point of a network; without factors once no later layer reads them."""

    variable: int
    factors: dict[str, int]


@dataclass
class _Builder:
    text: str
    edge_in: Mapping[str, int]
    num_classes: int | None
    norm: Norm
    width: int | None
    common: dict[str, Any]
    groups: tuple[str, ...]
    lines: list[tuple[str, ...]] = field(default_factory=list)

    def sequence(
        self, items: Sequence[Item], widths: _Widths, *, factors_read: bool, last: bool, depth: int
    ) -> tuple[list[nn.Module], _Widths]:
        layers = []
        for k, item in enumerate(items):
            reads = factors_read or any(leaf.name == "FGNN" for leaf in _flat(items[k + 1 :]))
            final = last and k == len(items) - 1
            layer, widths = self.one(item, widths, reads, final, depth)
            layers.append(layer)
        return layers, widths

    def one(self, item: Item, widths: _Widths, reads: bool, final: bool, depth: int) -> tuple[nn.Module, _Widths]:
        indent = "  " * depth
        if item.name == "Res":
            place = len(self.lines)
            body, after = self.sequence(item.body, widths, factors_read=reads, last=False, depth=depth + 1)
            self._check_residual(item, widths, after)
            layer: nn.Module = Res(body)
            self.lines.insert(place, self._line(f"{indent}Res[", None, layer))
            self.lines.append(self._line(f"{indent}]", after))
            return layer, after
        layer, widths = self.plain(item, widths, reads, final)
        self.lines.append(self._line(f"{indent}{item}", widths, layer))
        return layer, widths

    def _line(self, name: str, widths: _Widths | None, layer: nn.Module | None = None) -> tuple[str, ...]:
        """A line of the printed network: the item, the shapes after it, and its number of parameters."""
        count = 0 if layer is None else count_parameters(layer)
        variables = f"variables (N, {widths.variable})" if widths else ""
        widths_of = widths.factors if widths else {}
        factors = (f"{group} (C, {widths_of[group]})" if widths_of.get(group) else "" for group in self.groups)
        return name, variables, *factors, f"{count:,}" if count else ""

    def plain(self, item: Item, widths: _Widths, reads: bool, final: bool) -> tuple[nn.Module, _Widths]:
        carried = widths.factors if reads else {}
        norm, activation = (None, None) if final else (self.norm, "relu")
        if item.name == "Input":
            return _Input(), widths
        if item.name != "FGNN" and not widths.variable:
            what = f"Expected FGNN first where variables have no features, variable_in 0 (got {item})"
            raise NotationError(what, self.text, item.at)
        if item.name == "DR":
            return DR(float(item.argument or 0)), _Widths(widths.variable, carried)
        if item.name == "GlobalPooling":
            return GlobalPooling(), _Widths(2 * widths.variable, carried)
        out = self.num_classes if item.argument == "N" else int(item.argument or 0)
        assert out is not None
        if item.name != "FGNN":
            after = _Widths(out, {name: out if d else 0 for name, d in carried.items()})
            return FC(widths.variable, carried, out, norm=norm, activation=activation), after
        after = _Widths(out, dict.fromkeys(carried, out))
        inner = out if reads else max(out, widths.variable)
        layer = FGNNLayer(
            widths.variable, widths.factors, self.edge_in, out,
            factor_out=inner, width=self.width or inner, bias=True, norm=norm, activation=activation,
            variables_only=not reads, **self.common,
        )  # fmt: skip
        return layer, after

    def _check_residual(self, item: Item, before: _Widths, after: _Widths) -> None:
        """Refuse a residual connection whose ends differ in length."""
        pairs = [("variables", before.variable, after.variable)]
        pairs += [(f"factors {name!r}", before.factors[name], d) for name, d in after.factors.items()]
        for what, old, new in pairs:
            if old != new:
                raise NotationError(
                    f"Expected Res to end as wide as it begins, {old} for {what} (got {new})", self.text, item.at
                )


class _Input(nn.Module):
    """The input itself."""

    def forward(self, graph: FactorGraph, f: Tensor, gs: dict[str, Tensor], edges: Any = None) -> Any:
        return f, gs


def _flat(items: Sequence[Item]) -> list[Item]:
    return [leaf for item in items for leaf in (_flat(item.body) if item.body else [item])]
