"""What is trained: learned MAP and point clouds, with their data, losses, metrics and recipes."""

from fgnn.schema import plain
from fgnn.tasks.data_settings import Data, GridData
from fgnn.tasks.evaluate_map import evaluate
from fgnn.tasks.map import map_loss
from fgnn.tasks.metrics import Quality
from fgnn.tasks.recipe import Recipe, Soft, read_recipe
from fgnn.tasks.settings import Optimiser, Schedule, TrainingSettings
from fgnn.tasks.task import Loss, Task

__all__ = [
    "Data",
    "GridData",
    "Loss",
    "Optimiser",
    "Quality",
    "Recipe",
    "Schedule",
    "Soft",
    "Task",
    "TrainingSettings",
    "evaluate",
    "map_loss",
    "plain",
    "read_recipe",
]
