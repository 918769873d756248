"""Training: recipes, the loop, checkpoints, evaluation, and the paper's tables.

`fgnn.train.run.run` trains by a recipe; `fgnn.tasks.evaluate_map.evaluate` compares weights with exact answers.
"""

from fgnn.tasks.metrics import Quality
from fgnn.tasks.recipe import Recipe, read_recipe

__all__ = ["Quality", "Recipe", "read_recipe"]
