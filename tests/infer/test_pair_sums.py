"""Sum-product messages of binary pairs, against those of any table."""

from __future__ import annotations

import pytest
import torch

from fgnn.infer.max_product.binary_pairs import PairSum
from fgnn.pgm.factors.tables import table_messages


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [0.1, 3.0, 1000.0])
@pytest.mark.parametrize("models", [1, 5])
def test_messages_equal_those_of_a_table(dtype: torch.dtype, scale: float, models: int) -> None:
    torch.manual_seed(0)
    theta = 3 * torch.randn(2, 2, 7, models, dtype=dtype)
    nu = scale * torch.randn(2, 7, 5, dtype=dtype)
    pairs = PairSum.of(theta)
    assert pairs is not None
    ours = pairs.ratios(nu, torch.empty_like(nu))
    theirs = torch.cat(table_messages(theta, [nu[:1], nu[1:]], full=False, total=True))
    # The table subtracts two numbers of the size of the incoming ratios.
    tolerance = max(1.0, scale) * (1e-5 if dtype == torch.float32 else 1e-13)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    torch.testing.assert_close(pairs.ratios(nu, nu), ours)


def test_tables_of_a_wide_range_are_left_to_the_log_domain() -> None:
    theta = torch.zeros(2, 2, 3, 1, dtype=torch.float64)
    theta[0, 0, 1] = 500.0
    assert PairSum.of(theta) is None
