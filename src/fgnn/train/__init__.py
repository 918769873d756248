"""Training: recipes, the loop, checkpoints, evaluation, and the paper's tables.

`fgnn.train.run.run` trains by a recipe; `fgnn.train.evaluate.evaluate` compares weights with exact answers.
"""

from fgnn.train.metrics import Quality
from fgnn.train.recipe import Recipe, read_recipe

__all__ = ["Quality", "Recipe", "read_recipe"]
