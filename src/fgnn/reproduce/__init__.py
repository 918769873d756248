"""`fgnn reproduce`: the paper's tables and figures, ours beside the paper's."""
