"""Point clouds: files, nearest neighbours, blocks and tiles, metrics, and labelling of scans of any size."""

from fgnn.points.cloud import Cloud, open_cloud, read_cloud, write_cloud
from fgnn.points.knn import knn
from fgnn.points.metrics import confusion, ground_score, scene_score, shape_score
from fgnn.points.segment import Segmenter, segment_cloud, segment_file

__all__ = [
    "Cloud",
    "Segmenter",
    "confusion",
    "ground_score",
    "knn",
    "open_cloud",
    "read_cloud",
    "scene_score",
    "segment_cloud",
    "segment_file",
    "shape_score",
    "write_cloud",
]
