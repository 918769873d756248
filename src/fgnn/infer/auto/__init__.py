"""`auto`: elimination where the width allows it, otherwise a portfolio of methods."""
