"""Networks on point clouds: the paper's, and its baselines."""
