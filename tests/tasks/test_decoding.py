"""Learned decoding as a task: reproducible words, a loss that falls, and weights that decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fgnn.decoding import AWGN, Bursts, decode, noise_of
from fgnn.decoding.learned import DecoderSize, LearnedDecoder, run_plain
from fgnn.decoding.regular import alist, regular_code
from fgnn.errors import InputError
from fgnn.tasks.data_settings import CodeData, Data
from fgnn.tasks.decoding import DecodingTask, draw_words
from fgnn.tasks.recipe import Recipe, Schedule
from fgnn.train.run import run


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    files = []
    for bits in (24, 48):
        files.append(tmp_path / f"{bits}.alist")
        files[-1].write_text(alist(regular_code(bits, 3, 6)))
    data = CodeData(files=tuple(map(str, files)), low=1.0, high=3.0, iterations=4)
    return Recipe(
        name="codes", data=Data(codes=data), decoder=DecoderSize(width=8, bases=2, turns=2, plain=2),
        schedule=Schedule(name="constant"), batch=16, steps=4, log_every=2,
        checkpoint_every=4, validation=200,
    )  # fmt: skip


def test_batches_depend_on_seed_and_step_alone(recipe: Recipe) -> None:
    one, other = DecodingTask(recipe), DecodingTask(recipe.with_changes(seed=1))
    assert one.batch(3).shape == (16, 24 + 48)
    assert torch.equal(one.batch(3), DecodingTask(recipe).batch(3))
    assert not torch.equal(one.batch(3), one.batch(4))
    assert not torch.equal(one.batch(3), other.batch(3))


def test_all_words_are_beyond_the_plain_iterations(recipe: Recipe) -> None:
    task = DecodingTask(recipe)
    words, setting = task.batch(0)[:, 24:], task.settings[1]
    zeros, state = torch.zeros(16, 24), LearnedDecoder().begin(setting.tanner, words)
    assert not run_plain(setting.tanner, words, zeros, state, 2)[1].any()
    assert run_plain(setting.tanner, words, zeros, state, 20)[1].any()
    assert task.batch(63).shape == task.batch(64).shape


def test_the_network_needs_iterations_of_its_own(recipe: Recipe) -> None:
    with pytest.raises(InputError, match="than the 4 plain ones \\(got 4\\)"):
        DecodingTask(recipe.with_changes(decoder=DecoderSize(plain=4)))


def test_the_loss_begins_as_that_of_belief_propagation_and_falls(recipe: Recipe) -> None:
    task = DecodingTask(recipe)
    network, batch = task.network, task.batch(0)
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = task.loss(network, batch).loss
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.97 * losses[0]
    torch.manual_seed(9)
    assert float(task.loss(LearnedDecoder(recipe.decoder), batch).loss.detach()) == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("burst", [0.0, 3.0])
def test_words_are_those_of_the_channels(burst: float) -> None:
    code = regular_code(48, 3, 6)
    data = CodeData(files=("x",), low=2.0, high=2.0, burst=burst)
    got = draw_words(code, 0.5, 4000, data, torch.Generator().manual_seed(0)).numpy()
    sigma = noise_of(2.0, 0.5)
    channel = Bursts(sigma, burst) if burst else AWGN(sigma)
    want = channel.llr(np.zeros((4000, 48), np.uint8), np.random.default_rng(0))
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        assert np.quantile(got, share) == pytest.approx(np.quantile(want, share), abs=0.12)


def test_a_run_leaves_weights_that_decode(recipe: Recipe, tmp_path: Path) -> None:
    state, folder = run(recipe, tmp_path / "run", device="cpu")
    assert state.step == 4
    code = regular_code(24, 3, 6)
    llr = AWGN(0.7).llr(np.zeros((50, 24), np.uint8), np.random.default_rng(0))
    found = decode(code, llr, "fgnn", weights=str(folder.path), device="cpu")
    assert found.iterations.max() <= 4
    assert found.converged.mean() > 0.5
    run(folder.path, device="cpu", resume=True, steps=6, allow_changes=True)
