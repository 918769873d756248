"""`dual`: an upper bound by block-coordinate descent on the dual, tightened by cycles."""
