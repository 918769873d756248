"""Random calls of ``aggregate_messages``, and their value and gradients from a float64 loop over destinations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, FactorGroup, Hints, Incidence, Side
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import use_backend
from fgnn.nn.functional import aggregate_messages


@dataclass(frozen=True)
class Case:
    """One call; ``q`` is phi, own (φ of each sample), types or places; whole numbers make ties.

    ``bounded`` gives a bound on the degree of variables as a hint.
    """

    factors: int = 6
    arity: int = 4
    variables: int = 9
    ragged: bool = False
    towards: Side = "factor"
    q: str = "phi"
    batch: int = 0
    n: int = 8
    m: int = 5
    terms: int = 3
    kind: str = "max"
    activation: str = "relu"
    per_edge: bool = False
    whole: bool = False
    bounded: bool = False
    seed: int = 0


def incidence_of(case: Case, device: str = "cpu") -> Incidence:
    """A random group; scopes of a ragged one have lengths from 0 to the arity."""
    make = torch.Generator().manual_seed(case.seed)
    lengths = [case.arity] * case.factors
    if case.ragged:
        lengths = torch.randint(0, case.arity + 1, (case.factors,), generator=make).tolist()
    scopes = [torch.randperm(case.variables, generator=make)[:length].tolist() for length in lengths]
    if case.ragged:
        flat = torch.tensor([i for scope in scopes for i in scope], dtype=torch.long)
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        group = FactorGroup(flat, offsets)
    else:
        group = FactorGroup(torch.tensor(scopes, dtype=torch.long).reshape(case.factors, case.arity))
    hints = Hints(max_degree=case.factors) if case.bounded else Hints()
    return Incidence.of(group.to(device), case.variables, hints)


@dataclass(frozen=True)
class Inputs:
    """The tensors of a call, and an upstream gradient."""

    a: Tensor
    b: Tensor | None
    phi: Tensor | None
    weight: Tensor
    upstream: Tensor

    def leaves(self) -> list[Tensor]:
        return [x for x in (self.a, self.b, self.phi, self.weight) if x is not None]

    def to(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        moved = [
            None if x is None else x.detach().to(device=device, dtype=dtype)
            for x in (self.a, self.b, self.phi, self.weight)
        ]
        for x in moved:
            if x is not None:
                x.requires_grad_()
        return Inputs(*moved, self.upstream.to(device))  # type: ignore[arg-type]


def draw(case: Case, incidence: Incidence) -> Inputs:
    """Normal numbers, or integers from -2 to 2, so that many messages are equal."""
    make = torch.Generator().manual_seed(case.seed + 1)

    def numbers(*shape: int) -> Tensor:
        x = torch.randn(*shape, generator=make)
        return x.round().clamp(-2, 2) if case.whole else x

    lead = (case.batch,) if case.batch else ()
    edges = incidence.num_edges
    terms = incidence.positions.num_types if case.q == "places" else case.terms
    phi = None
    if case.q in ("phi", "own"):
        phi = numbers(*(lead if case.q == "own" else ()), edges, terms)
    return Inputs(
        a=numbers(*lead, edges if case.per_edge else case.factors, case.n),
        b=None if case.per_edge else numbers(*lead, case.variables, case.n),
        phi=phi,
        weight=numbers(terms, case.m, case.n),
        upstream=numbers(*lead, incidence.num_destinations(case.towards), case.m).double(),
    )


def types_of(case: Case, incidence: Incidence) -> EdgeTypes:
    """Edge types, random or by place."""
    if case.q == "places":
        return incidence.positions
    make = torch.Generator().manual_seed(case.seed + 2)
    index = torch.randint(0, case.terms, (incidence.num_edges,), generator=make)
    return EdgeTypes(index.to(incidence.factor.device), case.terms)


def reference(case: Case, incidence: Incidence, inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
    """Value and gradients in float64, one destination at a time; -inf (max) or 0 without edges."""
    leaves = [x.detach().cpu().double().requires_grad_() for x in inputs.leaves()]
    rest = iter(leaves)
    a = next(rest)
    b = next(rest) if inputs.b is not None else None
    phi = next(rest) if inputs.phi is not None else None
    weight = next(rest)
    factor, variable = incidence.factor.cpu(), incidence.variable.cpu()
    h = a if b is None else a[..., factor, :] + b[..., variable, :]
    h = h.relu() if case.activation == "relu" else h
    if phi is None:
        messages = torch.einsum("emn,...en->...em", weight[types_of(case, incidence).index.cpu()], h)
    else:
        messages = torch.einsum("...et,tmn,...en->...em", phi, weight, h)
    to = factor if case.towards == "factor" else variable
    reduced = []
    for d in range(incidence.num_destinations(case.towards)):
        mine = messages[..., to == d, :]
        if case.kind == "sum":
            reduced.append(mine.sum(-2))
        elif mine.shape[-2] == 0:
            reduced.append(mine.new_full((*mine.shape[:-2], case.m), -torch.inf))
        else:
            first = torch.from_numpy(mine.detach().numpy().argmax(-2, keepdims=True))  # numpy's is the first maximum
            reduced.append(mine.gather(-2, first).squeeze(-2))
    out = torch.stack(reduced, -2) if reduced else messages[..., :0, :]
    loss = (torch.where(torch.isfinite(out), out, 0.0) * inputs.upstream.cpu().double()).sum()
    loss = loss + sum((x.sum() * 0 for x in leaves), torch.zeros(()))  # zeros without edges, not None
    return out.detach(), list(torch.autograd.grad(loss, leaves))


def call(case: Case, incidence: Incidence, inputs: Inputs, backend: str) -> tuple[Tensor, list[Tensor]]:
    """Value and gradients by one backend."""
    coefficients = inputs.phi if inputs.phi is not None else types_of(case, incidence)
    with use_backend(backend):
        out = aggregate_messages(
            inputs.a, inputs.b, incidence, coefficients, inputs.weight, towards=case.towards,
            activation=case.activation, aggregation=Aggregation(case.kind),  # type: ignore[arg-type]
        )  # fmt: skip
    finite = torch.isfinite(out)
    loss = (torch.where(finite, out, 0.0) * inputs.upstream.to(out.dtype)).sum()
    return out.detach(), list(torch.autograd.grad(loss, inputs.leaves()))


def distance(found: Tensor, wanted: Tensor) -> float:
    """‖found - wanted‖ / ‖wanted‖ over finite entries; infinite if the others differ."""
    found = found.detach().cpu().double()
    if not torch.equal(torch.isfinite(found), torch.isfinite(wanted)):
        return float("inf")
    keep = torch.isfinite(wanted)
    if not torch.equal(found[~keep], wanted[~keep]):
        return float("inf")
    return float((found[keep] - wanted[keep]).norm() / wanted[keep].norm().clamp_min(1e-30))


def worst(case: Case, backend: str, dtype: torch.dtype, device: str = "cpu") -> float:
    """The largest distance from the reference over the value and all gradients, on the same rounded inputs."""
    incidence = incidence_of(case, device)
    inputs = draw(case, incidence).to(dtype, device)
    out, grads = call(case, incidence, inputs, backend)
    wanted, wanted_grads = reference(case, incidence, inputs)
    return max(distance(x, y) for x, y in zip([out, *grads], [wanted, *wanted_grads], strict=True))
