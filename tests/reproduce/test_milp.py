"""Models as integer programs."""

from __future__ import annotations

import pytest

from fgnn import GraphicalModel, ModelBatch
from fgnn.reproduce.milp import solve_milp


def test_structured_factors_are_refused_rather_than_ignored() -> None:
    model = GraphicalModel([2, 2])
    model.add_parity((0, 1), 1)
    with pytest.raises(ValueError, match="structured"):
        solve_milp(ModelBatch.stack([model]))
