"""Checkpoints and weights: bitwise round trips, and truncated or foreign files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fgnn.errors import InputError
from fgnn.train.checkpoint import (
    Checkpoint,
    generator_tensors,
    load_checkpoint,
    load_generators,
    load_optimiser,
    optimiser_tensors,
    save_checkpoint,
)
from fgnn.weights import load_weights, save_weights
from tests.tensors import same_tensors


def _checkpoint() -> Checkpoint:
    return Checkpoint(
        {"network/w": torch.randn(50, 40), "generator/cpu": torch.get_rng_state()}, {"state": {"step": 3}}
    )


def test_round_trip_is_bitwise_exact(tmp_path: Path) -> None:
    written = _checkpoint()
    save_checkpoint(tmp_path / "c", written)
    read = load_checkpoint(tmp_path / "c")
    assert same_tensors(written.tensors, read.tensors)
    assert read.values == written.values
    assert read.part("network").keys() == {"w"}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_a_truncated_file_is_refused_in_one_line(tmp_path: Path, share: float) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, _checkpoint())
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match=r"c: Expected a checkpoint \(got a file that is cut short") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"PK\x03\x04 a pickle's zip", b"\x80\x04\x95", b"{}" * 40, b"\xff" * 64])
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(InputError, match="Expected a checkpoint"):
        load_checkpoint(tmp_path / "c")


def test_another_kind_of_safetensors_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "c")
    with pytest.raises(InputError, match="safetensors file of another kind"):
        load_checkpoint(tmp_path / "c")
    save_weights(tmp_path / "w.safetensors", {"w": torch.zeros(2)}, {"name": "x"})
    with pytest.raises(InputError, match="safetensors file of another kind"):
        load_checkpoint(tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="no such file; expected a checkpoint"):
        load_checkpoint(tmp_path / "absent")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    old = _checkpoint()
    save_checkpoint(path, old)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, _checkpoint())
    assert same_tensors(load_checkpoint(path).tensors, old.tensors)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_restored_optimiser_continues_exactly() -> None:
    def step(network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        network(torch.ones(1, 4)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    torch.manual_seed(0)
    one = nn.Linear(4, 3)
    first = torch.optim.AdamW(one.parameters(), lr=0.1)
    for _ in range(3):
        step(one, first)
    two = nn.Linear(4, 3)
    two.load_state_dict(one.state_dict())
    second = torch.optim.AdamW(two.parameters(), lr=0.1)
    load_optimiser(second, two, {k: t.clone() for k, t in optimiser_tensors(first, one).items()})
    for _ in range(3):
        step(one, first)
        step(two, second)
    assert same_tensors(one.state_dict(), two.state_dict())


def test_restored_generators_continue_exactly() -> None:
    states = {k: t.clone() for k, t in generator_tensors().items()}
    wanted = torch.rand(5)
    load_generators(states)
    assert torch.equal(torch.rand(5), wanted)


def test_bf16_weights_load_as_float32_with_their_card(tmp_path: Path) -> None:
    tensors = {"w": torch.tensor([1.0, 2.5]), "count": torch.tensor(7)}
    save_weights(tmp_path / "w.safetensors", tensors, {"name": "w", "metrics": {"agreement": 0.9}}, bf16=True)
    read = load_weights(tmp_path / "w.safetensors")
    assert same_tensors(read.tensors, tensors)
    assert read.card["metrics"]["agreement"] == 0.9
    assert load_weights(tmp_path / "w.safetensors").name == "w"
    with pytest.raises(InputError, match="no such weights"):
        load_weights("nothing-of-the-kind")
    with pytest.raises(InputError, match="this folder holds no weights"):
        load_weights(tmp_path)
