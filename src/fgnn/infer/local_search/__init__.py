"""Local search on the true score: repair an assignment, improve it, perturb and repeat."""
