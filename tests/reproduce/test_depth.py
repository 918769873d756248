"""The answer of a deep network, block by block."""

from __future__ import annotations

from pathlib import Path

import pytest

from fgnn.errors import InputError
from fgnn.models.map.learned import load_network, score
from fgnn.reproduce.depth import by_block, reproduce_depth
from fgnn.reproduce.experiment import Cell, Setting, fresh_set
from fgnn.tasks.metrics import Quality


def test_the_last_block_gives_the_answer_and_the_first_is_much_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fgnn.reproduce.depth._SLICE", 32)
    setting = Setting(instances=70, quick=True)
    result = reproduce_depth(setting, tmp_path, lambda text: None, kinds=(2,))
    qualities = [cell.quality for cell in result.cells if isinstance(cell, Cell)]
    network, _ = load_network("deep-map-joint")
    assert len(qualities) == network.config.blocks
    examples = fresh_set(setting, 2)
    assert qualities[-1] == Quality.of(examples.models, score(network, examples.models).argmax(2), examples.labels)
    assert qualities[0].agreement < qualities[-1].agreement - 0.1
    assert "after block 16" in (tmp_path / "depth.md").read_text()


def test_other_networks_have_no_blocks() -> None:
    network, _ = load_network("paper-map-1")
    with pytest.raises(InputError, match="Expected a deep network"):
        by_block(network, fresh_set(Setting(instances=2), 1))
