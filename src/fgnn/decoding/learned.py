"""A decoder that learns: belief propagation whose messages a factor graph neural network corrects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fgnn.decoding.code import Code
from fgnn.errors import InputError
from fgnn.graph import FactorGraph, FactorGroup
from fgnn.models.from_card import load_into
from fgnn.nn import FGNNLayer
from fgnn.schema import Between, check_fields
from fgnn.weights import load_weights

_MOST = 1 - 1e-7  # the largest product of tanh; 1 would be infinite
_TINY = 1e-30
_GROUP = "check"

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class DecoderSize:
    """How large the network is.

    Attributes:
        width: Length of the features of bits and checks.
        bases: Matrices of which Q is a sum.
    """

    width: Annotated[int, Between(1, 1024)] = 16
    bases: Annotated[int, Between(1, 256)] = 8

    def __post_init__(self) -> None:
        check_fields(self)


class Tanner(NamedTuple):
    """The edges of a code as tensors; edge E stands for those that a shorter row lacks.

    Attributes:
        graph: The factor graph, whose edges are in the order of the code.
        bits: The bit of each edge.  # shape: (E,)
        checks: The check of each edge.  # shape: (E,)
        by_check: The edges of each check.  # shape: (C, A)
        by_bit: The edges of each bit.  # shape: (N, D)
    """

    graph: FactorGraph
    bits: Tensor
    checks: Tensor
    by_check: Tensor
    by_bit: Tensor

    @classmethod
    def of(cls, code: Code, device: torch.device | str = "cpu") -> Tanner:
        order = code.by_bit[1]
        by_check = _rows(code.checks, np.arange(code.num_edges), code.num_checks)
        by_bit = _rows(code.bits[order], order, code.num_bits)
        scopes = torch.from_numpy(code.bits), torch.from_numpy(code.starts)
        graph = FactorGraph(code.num_bits, {_GROUP: FactorGroup.ragged(*scopes)})
        tensors = (torch.from_numpy(a).to(device) for a in (code.bits, code.checks, by_check, by_bit))
        return cls(graph.to(device), *tensors)


def _rows(owner: Numbers, number: Numbers, count: int) -> Numbers:
    """A table of the edges of each owner, padded with the number of edges; owners ascend."""
    degree = np.bincount(owner, minlength=count)
    starts = np.concatenate([[0], np.cumsum(degree)])
    table = np.full((count, max(1, degree.max(initial=1))), len(owner))
    table[owner, np.arange(len(owner)) - starts[owner]] = number
    return table


class LearnedDecoder(nn.Module):
    r"""Belief propagation with a learned correction, the same in every iteration and for every edge of every code.

    With the prior :math:`\lambda_i`, the posterior :math:`M_i`, its sign :math:`s_i` and
    :math:`q_{ic} = M_i - r_{ci}`, an iteration is

    .. math::
        \hat r_{ci} &= 2 \operatorname{artanh}\Big((-1)^{s_c} \prod_{j \ne i} \tanh\tfrac{q_{jc}}{2}\Big) \\
        (f, g) &= \mathrm{FGNN}(f, g \mid t), \qquad
            t_{ci} = [s_i \hat r_{ci},\; s_i q_{ic}], \quad f_i \ni [|M_i|,\; s_i \lambda_i], \quad g_c \ni
            \text{check } c \text{ is violated} \\
        r_{ci} &= (1 + \alpha_{ci})\, \hat r_{ci} + s_i\, \delta_{ci}, \qquad
        M_i \leftarrow \lambda_i + \gamma_i (M_i - \lambda_i) + \sum_c r_{ci}

    where :math:`\alpha, \delta, \gamma` are linear in what the layer leaves on edges and bits. They begin as zero, so
    that the network begins as sum-product; α are the weights of neural belief propagation, γ the memory of relay.
    All inputs are seen from the present decision s. Adding a code word flips signs on both sides, so that the network
    fails on every word sent with the same probability, and zeros are enough to train and to test it.
    """

    def __init__(self, size: DecoderSize = DecoderSize()) -> None:  # noqa: B008 (frozen)
        super().__init__()
        self.size = size
        d = size.width
        self.layer = FGNNLayer(
            d + 2, {_GROUP: 1}, {_GROUP: 2}, d, q="basis", aggregate="sum", norm="rms", activation="relu",
            q_options={"bases": size.bases, "hidden": (16,)},
        )  # fmt: skip
        self.on_edge = nn.Linear(2, d)
        self.on_bit = nn.Linear(d, d, bias=False)
        self.on_check = nn.Linear(d, d, bias=False)
        self.edge_head = nn.Linear(d, 2)
        self.bit_head = nn.Linear(d, 1)
        for head in (self.edge_head, self.bit_head):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def begin(self, tanner: Tanner, llr: Tensor) -> State:
        """The state before the first iteration.  # llr: (B, N)"""
        return State(llr, llr.new_zeros(len(llr), len(tanner.bits)), llr.new_zeros(*llr.shape, self.size.width))

    def step(self, tanner: Tanner, llr: Tensor, syndrome: Tensor, state: State) -> State:
        """One iteration.

        Args:
            llr: Priors.  # shape: (B, N)
            syndrome: Zeros and ones.  # shape: (B, C)
        """
        post, r, hidden = state
        sign = torch.where(post < 0, -1.0, 1.0)
        q = post[:, tanner.bits] - r
        message = _sum_product(tanner, q, syndrome)
        side = sign[:, tanner.bits]
        t = _squash(torch.stack([side * message, side * q], -1))  # shape: (B, E, 2)
        f = torch.cat([_squash(torch.stack([sign * post, sign * llr], -1)), hidden], -1)
        violated = violations(tanner, post, syndrome).to(llr.dtype)[..., None]
        f, gs = self.layer(tanner.graph, f, {_GROUP: violated}, {_GROUP: t})
        on_edge = self.on_edge(t) + self.on_bit(f)[:, tanner.bits] + self.on_check(gs[_GROUP])[:, tanner.checks]
        weight, shift = self.edge_head(torch.relu(on_edge)).unbind(-1)
        r = (1 + weight) * message + side * shift
        memory = self.bit_head(f)[..., 0] * (post - llr)
        return State(llr + memory + _gather(r, tanner.by_bit).sum(-1), r, hidden + f)


@dataclass(frozen=True)
class _Trained:
    """What the card of a decoder says."""

    decoder: DecoderSize = field(default_factory=DecoderSize)
    iterations: Annotated[int, Between(1, 1000)] = 12


def load_decoder(weights: str, device: torch.device | str = "cpu") -> tuple[LearnedDecoder, int]:
    """Return a trained decoder and the iterations it was trained with; ``""`` gives an untrained one."""
    if not weights:
        return LearnedDecoder().to(device).eval(), _Trained().iterations
    stored = load_weights(weights)
    if stored.card.task != "decode":
        raise InputError(f"Expected the weights of a decoder (got those of {stored.card.task!r:.40})", file=weights)
    said = stored.card.part(_Trained)
    return load_into(lambda: LearnedDecoder(said.decoder), stored, device), said.iterations


class State(NamedTuple):
    """Between two iterations: posteriors (B, N), messages from checks (B, E), features of bits (B, N, width)."""

    post: Tensor
    r: Tensor
    hidden: Tensor


class Outcome(NamedTuple):
    """When a decoder stopped: posteriors (B, N), iterations (B,), and whether all checks are satisfied (B,)."""

    post: Tensor
    iterations: Tensor
    converged: Tensor


# Edges of the words that are decoded at once: bounds memory, and fills a GPU.
_AT_ONCE = 1 << 22


@torch.no_grad()
def run_decoder(network: LearnedDecoder, tanner: Tanner, llr: Tensor, syndrome: Tensor, iterations: int) -> Outcome:
    """Decode words; those that satisfy all checks leave the batch.

    Args:
        llr: Priors.  # shape: (B, N)
        syndrome: Zeros and ones.  # shape: (B, C)
    """
    step = max(64, _AT_ONCE // max(1, len(tanner.bits)))
    parts = [
        _run_together(network, tanner, llr[a : a + step], syndrome[a : a + step], iterations)
        for a in range(0, len(llr), step)
    ]
    return Outcome(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _run_together(network: LearnedDecoder, tanner: Tanner, llr: Tensor, syndrome: Tensor, iterations: int) -> Outcome:
    final, steps = llr.clone(), torch.full((len(llr),), iterations, device=llr.device)
    done = torch.zeros(len(llr), dtype=torch.bool, device=llr.device)
    rows, state = torch.arange(len(llr), device=llr.device), network.begin(tanner, llr)
    for k in range(iterations):
        state = network.step(tanner, llr, syndrome, state)
        solved = ~violations(tanner, state.post, syndrome).any(1)
        final[rows] = state.post
        steps[rows[solved]], done[rows[solved]] = k + 1, True
        rest = (~solved).nonzero()[:, 0]
        if not len(rest):
            break
        rows, llr, syndrome = rows[rest], llr[rest], syndrome[rest]
        state = State(*(part[rest] for part in state))
    return Outcome(final, steps, done)


@torch.no_grad()
def plain_decisions(tanner: Tanner, llr: Tensor, syndrome: Tensor, iterations: int) -> Tensor:
    """Whether plain sum-product satisfies all checks within some iterations.  # shape: (B,)"""
    post, r = llr, llr.new_zeros(len(llr), len(tanner.bits))
    done = ~violations(tanner, post, syndrome).any(1)
    for _ in range(iterations):
        r = _sum_product(tanner, post[:, tanner.bits] - r, syndrome)
        post = llr + _gather(r, tanner.by_bit).sum(-1)
        done |= ~violations(tanner, post, syndrome).any(1)
    return done


def violations(tanner: Tanner, post: Tensor, syndrome: Tensor) -> Tensor:
    """Whether the decisions violate each check.  # shape: (B, C)"""
    ones = _gather((post < 0).to(syndrome.dtype)[:, tanner.bits], tanner.by_check).sum(-1)
    return (ones + syndrome) % 2 != 0


def _gather(edges: Tensor, rows: Tensor) -> Tensor:
    """The values of edges in rows, zero where a row is shorter.  # shape: (B, E) -> (B, *rows)"""
    return nn.functional.pad(edges, (0, 1))[:, rows]


def _squash(x: Tensor) -> Tensor:
    """Log-likelihood ratios to (-2, 2)."""
    return 2 * torch.tanh(x / 8)


def _sum_product(tanner: Tanner, q: Tensor, syndrome: Tensor) -> Tensor:
    """The messages of sum-product from checks.  # shape: (B, E) -> (B, E)"""
    size = torch.tanh(0.5 * q.abs()).clamp(_TINY, _MOST).log()
    negative = (q < 0).to(syndrome.dtype)
    total = _gather(size, tanner.by_check).sum(-1)[:, tanner.checks]
    parity = (_gather(negative, tanner.by_check).sum(-1) + syndrome)[:, tanner.checks] + negative
    product = (total - size).exp().clamp(max=_MOST)
    return torch.where(parity % 2 != 0, -2.0, 2.0) * torch.atanh(product)
