"""`lp`: the linear relaxation over the local polytope, solved by HiGHS."""
