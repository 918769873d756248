"""`toulbar2`: branch and bound in child processes that keep the time limit."""
