"""`python -m fgnn` is the `fgnn` command."""

from fgnn.cli import main

main()
