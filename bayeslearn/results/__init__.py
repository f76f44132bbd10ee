"""What `fit` returns, and how to judge it: posteriors, predictions, diagnostics, metrics, plots."""
