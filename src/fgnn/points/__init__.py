"""Point clouds: files, nearest neighbours, blocks and tiles, metrics, and labelling a scan."""

from fgnn.points.cloud import Cloud, open_cloud, read_cloud, write_cloud
from fgnn.points.knn import knn

__all__ = ["Cloud", "knn", "open_cloud", "read_cloud", "write_cloud"]
