"""A decoder that learns: belief propagation whose messages a factor graph neural network corrects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from fgnn.decoding.tanner import GROUP, Tanner, Turn, gather, select, sum_product, violated, violations
from fgnn.errors import InputError
from fgnn.models.from_card import load_into
from fgnn.nn import FGNNLayer
from fgnn.schema import Between, check_fields
from fgnn.weights import load_weights


@dataclass(frozen=True)
class DecoderSize:
    """How large the network is.

    Attributes:
        width: Length of the features of bits and checks.
        bases: Matrices of which Q is a sum.
        turns: Parts of an iteration: checks of a part see the posteriors that the part before left. One is the
            flooding schedule.
        plain: Iterations of sum-product before the network takes over from it.
    """

    width: Annotated[int, Between(1, 1024)] = 16
    bases: Annotated[int, Between(1, 256)] = 8
    turns: Annotated[int, Between(1, 1000)] = 1
    plain: Annotated[int, Between(0, 1000)] = 4

    def __post_init__(self) -> None:
        check_fields(self)


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
    With several turns an iteration does this for one part of the checks after the other (the layered schedule).
    The first iterations are sum-product in any case: most words need no more, and the network learns from the others.
    All inputs are seen from the present decision s. Adding a code word flips signs on both sides, so that the network
    fails on every word sent with the same probability, and zeros are enough to train and to test it.
    """

    def __init__(self, size: DecoderSize = DecoderSize()) -> None:
        super().__init__()
        self.size = size
        d = size.width
        self.layer = FGNNLayer(
            d + 2, {GROUP: 1}, {GROUP: 2}, d, q="basis", aggregate="sum", norm="rms", activation="relu",
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
        return State(llr, llr, llr.new_zeros(len(llr), tanner.edges), llr.new_zeros(*llr.shape, self.size.width))

    def step(self, tanner: Tanner, llr: Tensor, syndrome: Tensor, state: State) -> State:
        """One iteration.

        Args:
            llr: Priors.  # shape: (B, N)
            syndrome: Zeros and ones, in the order of the Tanner graph.  # shape: (B, C)
        """
        post, base, r, hidden = state
        messages = []
        for turn in tanner.turns:
            old = r[:, turn.edge_span]
            new, f = self._messages(turn, llr, syndrome[:, turn.check_span], State(post, base, old, hidden))
            remembered = llr + self.bit_head(f)[..., 0] * (post - llr)
            post = post + (remembered - base) + gather(new - old, turn.by_bit).sum(-1)
            base, hidden = remembered, hidden + f
            messages.append(new)
        return State(post, base, torch.cat(messages, 1), hidden)

    def _messages(self, turn: Turn, llr: Tensor, syndrome: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """New messages from the checks of a turn, and what the layer says about bits.  # shape: (B, E), (B, N, d)"""
        post, _, r, hidden = state
        sign = torch.where(post < 0, -1.0, 1.0)
        q = select(post, turn.bits) - r
        message = sum_product(turn, q, syndrome)
        side = select(sign, turn.bits)
        t = _squash(torch.stack([side * message, side * q], -1))  # shape: (B, E, 2)
        f = torch.cat([_squash(torch.stack([sign * post, sign * llr], -1)), hidden], -1)
        g = violated(turn, post, syndrome).to(llr.dtype)[..., None]
        f, gs = self.layer(turn.graph, f, {GROUP: g}, {GROUP: t})
        on_edge = self.on_edge(t) + select(self.on_bit(f), turn.bits) + select(self.on_check(gs[GROUP]), turn.checks)
        weight, shift = self.edge_head(torch.relu(on_edge)).unbind(-1)
        return (1 + weight) * message + side * shift, f


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
    """Between two iterations.

    Attributes:
        post: Posteriors M.  # shape: (B, N)
        base: What they are without messages: the priors, and what bits remember.  # shape: (B, N)
        r: Messages from checks.  # shape: (B, E)
        hidden: Features of bits.  # shape: (B, N, width)
    """

    post: Tensor
    base: Tensor
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
    step = max(64, _AT_ONCE // max(1, tanner.edges))
    syndrome = syndrome[:, tanner.order]
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
        step = plain_step if k < network.size.plain else network.step
        state = step(tanner, llr, syndrome, state)
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
def run_plain(tanner: Tanner, llr: Tensor, syndrome: Tensor, state: State, iterations: int) -> tuple[State, Tensor]:
    """Some iterations of sum-product, and whether a word satisfied all checks after any.  # shape: (B,)

    Args:
        syndrome: Zeros and ones, in the order of the Tanner graph.  # shape: (B, C)
    """
    done = torch.zeros(len(llr), dtype=torch.bool, device=llr.device)
    for _ in range(iterations):
        state = plain_step(tanner, llr, syndrome, state)
        done |= ~violations(tanner, state.post, syndrome).any(1)
    return state, done


def plain_step(tanner: Tanner, llr: Tensor, syndrome: Tensor, state: State) -> State:
    """One iteration of sum-product."""
    post, messages = state.post, []
    for turn in tanner.turns:
        old = state.r[:, turn.edge_span]
        new = sum_product(turn, select(post, turn.bits) - old, syndrome[:, turn.check_span])
        post = post + gather(new - old, turn.by_bit).sum(-1)
        messages.append(new)
    return State(post, llr, torch.cat(messages, 1), state.hidden)


def _squash(x: Tensor) -> Tensor:
    """Log-likelihood ratios to (-2, 2)."""
    return 2 * torch.tanh(x / 8)
