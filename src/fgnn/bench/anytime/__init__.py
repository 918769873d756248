"""`fgnn bench anytime`: score against time, for our methods and their peers, on named instances."""
