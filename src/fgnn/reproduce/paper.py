"""The paper's numbers for section 4.1: percent agreement on Dataset1 to Dataset3."""

from __future__ import annotations

# mean and ±, both in percent (the paper gives the ± as a fraction)
TABLE1: dict[str, tuple[tuple[float, float] | None, ...]] = {
    "PointNet": ((42.6, 0.7), None, None),
    "DGCNN": ((60.2, 1.7), None, None),
    "LP": ((80.7, 2.5), (83.8, 2.4), (88.2, 1.1)),
    "max-product": ((53.0, 10.1), (54.2, 16.4), None),
    "FGNN": ((92.5, 2.0), (89.1, 1.7), (87.7, 1.3)),
}

# agreement on Dataset1 by the number of variables under a factor of the network
ABLATION: dict[int, float] = {4: 81.7, 6: 89.9, 8: 92.5}
