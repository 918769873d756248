"""Networks on graphical models: learned MAP inference."""
