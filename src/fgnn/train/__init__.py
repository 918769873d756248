"""The training engine: a loop over any task, run folders, and checkpoints that resume exactly.

`run_recipe` trains what a recipe describes; `train` runs the loop on a task of your own.
"""

from fgnn.tasks import Quality, Recipe, read_recipe
from fgnn.train.loop import train
from fgnn.train.run import run as run_recipe
from fgnn.train.run_folder import RunFolder

__all__ = ["Quality", "Recipe", "RunFolder", "read_recipe", "run_recipe", "train"]
