"""Learned decoding as a task: noisy words of codes, and the cross-entropy of their bits after every iteration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fgnn.decoding.code import Code
from fgnn.decoding.learned import LearnedDecoder, Tanner, plain_decisions, run_decoder, violations
from fgnn.decoding.read import read_code
from fgnn.models.from_card import build_within
from fgnn.runtime.distributed import World
from fgnn.schema import plain
from fgnn.tasks.data_settings import CodeData
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.seeds import seed_for
from fgnn.tasks.task import Loss

_POOL = 4  # words drawn for each that is kept, if those on which belief propagation fails are sought
_BURST_RATE = 0.05


class _Setting(NamedTuple):
    """A code, on the device."""

    code: Code
    rate: float
    tanner: Tanner


class DecodingTask:
    """Train a `LearnedDecoder` on one or several codes at once.

    The word sent is zero, which is as hard as any other: channel and decoder are symmetric. The codes of a batch are
    one graph, their disjoint union.

    Args:
        recipe: Names the codes, the channel and the network.
        world: This process among those that train together.
        device: The device of data and network.
    """

    metric, chosen_by = "bits", "words"
    epoch_steps: int | None = None

    def __init__(self, recipe: Recipe, world: World | None = None, device: torch.device | str = "cpu") -> None:
        assert recipe.data.codes is not None
        self.recipe, self.data, self.device = recipe, recipe.data.codes, torch.device(device)
        self.share = (world or World()).share(recipe.batch)
        codes = [read_code(place) for place in self.data.files]
        self.settings = [_Setting(code, code.rate, Tanner.of(code, self.device)) for code in codes]
        self.union = Tanner.of(Code.disjoint(codes), self.device)
        torch.manual_seed(seed_for(recipe.seed, "network") % (1 << 32))
        self.network: nn.Module = build_within(lambda: LearnedDecoder(recipe.decoder)).to(self.device)

    def batch(self, step: int) -> Tensor:
        """Log-likelihood ratios of the words of all codes.  # shape: (B, bits of all codes)"""
        random = self._random("words", step)
        return torch.cat([self._words(setting, random)[self.share] for setting in self.settings], 1)

    def _random(self, purpose: str, step: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed_for(self.recipe.seed, purpose, step))

    def _words(self, setting: _Setting, random: torch.Generator) -> Tensor:
        count, hard = self.recipe.batch, round(self.recipe.batch * self.data.hard)
        if not hard:
            return draw_words(setting.code, setting.rate, count, self.data, random)
        pool = draw_words(setting.code, setting.rate, _POOL * count, self.data, random)
        solved = plain_decisions(setting.tanner, pool, _zeros(pool, setting.code), self.data.iterations)
        first = torch.argsort(solved.byte(), stable=True)[:hard]  # those that failed, if there are enough
        return torch.cat([pool[first], pool[hard - count :]]) if hard < count else pool[first]

    def loss(self, network: nn.Module, batch: Tensor) -> Loss:
        """The cross-entropy of the bits, over the iterations that a word needs."""
        assert isinstance(network, LearnedDecoder)
        syndrome = batch.new_zeros(len(batch), len(self.union.by_check))
        state = network.begin(self.union, batch)
        total, weight = batch.new_zeros(()), batch.new_zeros(())
        for _ in range(self.data.iterations):
            alive = self._alive(violations(self.union, state.post, syndrome))
            state = network.step(self.union, batch, syndrome, state)
            total = total + (alive * nn.functional.softplus(-state.post)).sum()
            weight = weight + alive.sum()
        return Loss(total / weight.clamp(min=1), (state.post >= 0).float().mean())

    def _alive(self, violated: Tensor) -> Tensor:
        """The bits of the codes whose word still violates a check.  # shape: (B, C) -> (B, N)"""
        parts, at = [], 0
        for setting in self.settings:
            checks = setting.code.num_checks
            alive = violated[:, at : at + checks].any(1, keepdim=True).float()
            parts.append(alive.expand(-1, setting.code.num_bits))
            at += checks
        return torch.cat(parts, 1)

    @torch.no_grad()
    def validate(self, network: nn.Module) -> dict[str, float]:
        """The share of words that are right, and the loss of their bits, over all codes at all levels of noise."""
        assert isinstance(network, LearnedDecoder)
        right, bits, loss = [], [], []
        for setting in self.settings:
            random = self._random("validation", 0)
            llr = draw_words(setting.code, setting.rate, self.recipe.validation, self.data, random)
            found = run_decoder(network, setting.tanner, llr, _zeros(llr, setting.code), self.data.iterations)
            right.append((found.post >= 0).all(1).float().mean())
            bits.append((found.post >= 0).float().mean())
            loss.append(nn.functional.softplus(-found.post).mean())
        mean = [float(torch.stack(values).mean()) for values in (right, bits, loss)]
        return {"words": mean[0], "bits": mean[1], "loss": mean[2]}

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
