"""`toulbar2`: branch and bound in child processes that keep to the time limit."""
