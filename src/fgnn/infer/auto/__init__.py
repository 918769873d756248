"""`auto`: elimination where the induced width allows it, otherwise a portfolio of methods."""
