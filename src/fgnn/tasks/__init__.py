"""What is trained: learned MAP and point clouds; their data, losses, metrics and recipes."""
