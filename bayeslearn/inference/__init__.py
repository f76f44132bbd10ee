"""`fit` and `resume`: one loop for every algorithm, in parts."""
