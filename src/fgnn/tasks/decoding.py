"""Learned decoding as a task: noisy words of codes, and the cross-entropy of their bits after every iteration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fgnn.decoding.code import Code
from fgnn.decoding.learned import LearnedDecoder, run_decoder, run_plain
from fgnn.decoding.read import read_code
from fgnn.decoding.tanner import Tanner, violations
from fgnn.errors import InputError
from fgnn.models.from_card import build_within
from fgnn.runtime.distributed import World
from fgnn.schema import plain
from fgnn.tasks.data_settings import CodeData
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.seeds import seed_for
from fgnn.tasks.task import Loss

_POOL = 1024  # words drawn for each of a batch, to find those that plain belief propagation does not solve
_PERIOD = 64  # steps that share what was found
_CHUNK = 1 << 16
_BURST_RATE = 0.05


class _Setting(NamedTuple):
    """A code, on the device."""

    code: Code
    rate: float
    tanner: Tanner


class DecodingTask:
    """Train a `LearnedDecoder` on one or several codes at once.

    The word sent is zero, which is as hard as any other: channel and decoder are symmetric. All words are ones that the
    plain iterations at the beginning do not solve, which are those that the network sees when it decodes. The codes of
    a batch are one graph, their disjoint union.

    Args:
        recipe: Names the codes, the channel and the network.
        world: This process among those that train together.
        device: The device of data and network.
    """

    metric, chosen_by = "words", "words"
    epoch_steps: int | None = None

    def __init__(self, recipe: Recipe, world: World | None = None, device: torch.device | str = "cpu") -> None:
        assert recipe.data.codes is not None
        self.recipe, self.data, self.device = recipe, recipe.data.codes, torch.device(device)
        self.share = (world or World()).share(recipe.batch)
        size = recipe.decoder
        if self.data.iterations <= size.plain:
            raise InputError(f"Expected more iterations than the {size.plain} plain ones (got {self.data.iterations})")
        codes = [read_code(place) for place in self.data.files]
        self.settings = [_Setting(c, c.rate, Tanner.of(c, turns=size.turns, device=self.device)) for c in codes]
        self.union = Tanner.of(*codes, turns=size.turns, device=self.device)
        owner = np.repeat(np.arange(len(codes)), [c.num_checks for c in codes])[self.union.order.cpu().numpy()]
        self._checks = [torch.from_numpy(np.flatnonzero(owner == k)).to(self.device) for k in range(len(codes))]
        self._bank: tuple[int, list[Tensor]] = -1, []
        torch.manual_seed(seed_for(recipe.seed, "network") % (1 << 32))
        self.network: nn.Module = build_within(lambda: LearnedDecoder(recipe.decoder)).to(self.device)

    def batch(self, step: int) -> Tensor:
        """Log-likelihood ratios of the words of all codes.  # shape: (B, bits of all codes)"""
        period = step // _PERIOD
        if period != self._bank[0]:
            random = self._random("words", period)
            self._bank = period, [self._unsolved(setting, random) for setting in self.settings]
        random = self._random("choice", step)
        rows = [
            torch.randint(len(words), (self.recipe.batch,), generator=random, device=self.device)[self.share]
            for words in self._bank[1]
        ]
        return torch.cat([words[row] for words, row in zip(self._bank[1], rows, strict=True)], 1)

    def _random(self, purpose: str, step: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed_for(self.recipe.seed, purpose, step))

    def _unsolved(self, setting: _Setting, random: torch.Generator) -> Tensor:
        """Words that the plain iterations do not solve; any words if they solve all."""
        network, found = self.network, []
        assert isinstance(network, LearnedDecoder)
        for start in range(0, _POOL * self.recipe.batch, _CHUNK):
            count = min(_CHUNK, _POOL * self.recipe.batch - start)
            words = draw_words(setting.code, setting.rate, count, self.data, random)
            state = network.begin(setting.tanner, words)
            solved = run_plain(setting.tanner, words, _zeros(words, setting.code), state, network.size.plain)[1]
            found.append(words[~solved])
        unsolved = torch.cat(found)
        return unsolved if len(unsolved) else words

    def loss(self, network: nn.Module, batch: Tensor) -> Loss:
        r"""The mean over words and iterations of log(1 + Σ_i softplus(-M_i)), until a word satisfies its checks.

        The logarithm keeps words that are beyond repair from deciding the gradient. Later iterations count more.
        """
        assert isinstance(network, LearnedDecoder)
        syndrome = batch.new_zeros(len(batch), len(self.union.order))
        state = run_plain(self.union, batch, syndrome, network.begin(self.union, batch), network.size.plain)[0]
        learned = self.data.iterations - network.size.plain
        total = batch.new_zeros(())
        alive = self._alive(state.post, syndrome)
        for k in range(learned):
            state = network.step(self.union, batch, syndrome, state)
            wrong = nn.functional.softplus(-state.post).split([s.code.num_bits for s in self.settings], 1)
            each = torch.stack([part.sum(1).log1p() for part in wrong], 1)  # shape: (B, codes)
            total = total + (k + 1) * (alive * each).mean()
            alive = alive * self._alive(state.post, syndrome)
        return Loss(2 * total / (learned * (learned + 1)), 1 - alive.mean())

    def _alive(self, post: Tensor, syndrome: Tensor) -> Tensor:
        """Whether the word of each code violates a check.  # shape: (B, codes)"""
        wrong = violations(self.union, post, syndrome).to(post.dtype)
        return torch.stack([wrong[:, checks].amax(1) for checks in self._checks], 1)

    @torch.no_grad()
    def validate(self, network: nn.Module) -> dict[str, float]:
        """Of the words that the plain iterations do not solve, the share that is right in the end; over all codes."""
        assert isinstance(network, LearnedDecoder)
        right, loss = [], []
        for setting in self.settings:
            random = self._random("validation", 0)
            llr = draw_words(setting.code, setting.rate, self.recipe.validation, self.data, random)
            found = run_decoder(network, setting.tanner, llr, _zeros(llr, setting.code), self.data.iterations)
            rest = ~found.converged | (found.iterations > network.size.plain)
            post = found.post[rest] if bool(rest.any()) else found.post
            right.append((post >= 0).all(1).float().mean())
            loss.append(nn.functional.softplus(-post).sum(1).log1p().mean())
        return {"words": float(torch.stack(right).mean()), "loss": float(torch.stack(loss).mean())}

    def card(self) -> dict[str, Any]:
        return {
            "task": "decode", "decoder": plain(self.recipe.decoder), "iterations": self.data.iterations,
            "data": plain(self.recipe.data),
        }  # fmt: skip


def _zeros(llr: Tensor, code: Code) -> Tensor:
    return llr.new_zeros(len(llr), code.num_checks)


def draw_words(code: Code, rate: float, count: int, data: CodeData, random: torch.Generator) -> Tensor:
    """Log-likelihood ratios of zeros that were sent, as the channels of `fgnn.decoding` define them, on the device."""
    device, shape = random.device, (count, code.num_bits)
    decibels = data.low + (data.high - data.low) * torch.rand(count, 1, generator=random, device=device)
    quiet = 1 / (2 * rate * 10 ** (decibels / 10))  # variance
    y = 1 + quiet.sqrt() * torch.randn(shape, generator=random, device=device)
    if data.burst:
        hit = torch.rand(shape, generator=random, device=device) < _BURST_RATE
        y = y + hit * data.burst * torch.randn(shape, generator=random, device=device)
        llr = _log_density(y - 1, quiet, data.burst) - _log_density(y + 1, quiet, data.burst)
    else:
        llr = 2 / quiet * y
    llr[:, : code.hidden] = 0
    return llr


def _log_density(noise: Tensor, quiet: Tensor, burst: float) -> Tensor:
    """log p(noise) up to a constant."""
    loud = quiet + burst**2
    a = math.log1p(-_BURST_RATE) - 0.5 * quiet.log() - noise**2 / (2 * quiet)
    b = math.log(_BURST_RATE) - 0.5 * loud.log() - noise**2 / (2 * loud)
    return torch.logaddexp(a.expand_as(noise), b.expand_as(noise))
