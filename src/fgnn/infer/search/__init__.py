"""Anytime search on models too wide for elimination: annealing, exact solves of induced subgraphs, crossover."""
