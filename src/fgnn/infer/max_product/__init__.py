"""`max-product`: loopy belief propagation in the log domain, batched."""
