"""Tables, plots, pages and pictures of results."""
