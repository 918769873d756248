"""The paper's numbers, in percent."""

from __future__ import annotations

# Section 4.1: agreement on Dataset1 to Dataset3, mean and ± (the paper gives the ± as a fraction)
TABLE1: dict[str, tuple[tuple[float, float] | None, ...]] = {
    "PointNet": ((42.6, 0.7), None, None),
    "DGCNN": ((60.2, 1.7), None, None),
    "LP": ((80.7, 2.5), (83.8, 2.4), (88.2, 1.1)),
    "max-product": ((53.0, 10.1), (54.2, 16.4), None),
    "FGNN": ((92.5, 2.0), (89.1, 1.7), (87.7, 1.3)),
}

# agreement on Dataset1 by the number of variables under a factor of the network
ABLATION: dict[int, float] = {4: 81.7, 6: 89.9, 8: 92.5}

# Section 4.2: mean over shapes, then the categories in alphabetical order, as in `fgnn.data.shapenet.CATEGORIES`.
TABLE3: dict[str, tuple[float, ...]] = {
    "PointNet": (83.7, 83.4, 78.7, 82.5, 74.9, 89.6, 73.0, 91.5, 85.9, 80.8, 95.3, 65.2, 93.0, 81.2, 57.9, 72.8, 80.6),
    "DGCNN": (85.1, 84.2, 83.7, 84.4, 77.1, 90.9, 78.5, 91.5, 87.3, 82.9, 96.0, 67.8, 93.3, 82.6, 59.7, 75.5, 82.0),
    "PointCNN": (86.1, 84.1, 86.5, 86.0, 80.8, 90.6, 79.7, 92.3, 88.4, 85.3, 96.1, 77.2, 95.3, 84.2, 64.2, 80.0, 83.0),
    "FGNN": (84.7, 84.7, 84.0, 86.1, 78.2, 90.8, 70.4, 90.8, 88.7, 82.4, 95.5, 70.6, 94.7, 81.0, 56.8, 75.3, 80.5),
}

# Overall accuracy and mean IoU, then the classes as in `fgnn.data.s3dis.CLASSES`; None where the paper has no number.
# From the supplement; the main text gives PointNet's accuracy as 81.1 and DGCNN's as 84.1.
TABLE2: dict[str, tuple[float | None, ...]] = {
    "PointNet": (78.5, 47.6, 88.0, 88.7, 69.3, 42.4, 23.1, 47.5, 51.6, 54.1, 42.0, 9.6, 38.2, 29.4, 35.2),
    "DGCNN": (84.4, 56.1, *(None,) * 13),
    "PointCNN": (84.5, 57.3, 92.0, 93.2, 76.0, 46.1, 23.6, 43.8, 56.2, 67.5, 64.5, 30.0, 52.1, 49.0, 50.8),
    "FGNN": (85.5, 60.0, 93.0, 95.3, 78.3, 59.8, 38.3, 55.4, 61.2, 64.5, 57.7, 26.7, 50.0, 49.1, 50.3),
}
# PointNet's own baseline on hand-made features, which only the main text has.
TABLE2_BASELINE = ("PointNet (baseline)", 53.2, 20.1)
NAMES = {"fgnn": "FGNN", "dgcnn": "DGCNN", "pointnet": "PointNet", "pointcnn": "PointCNN"}
