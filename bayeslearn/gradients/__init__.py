"""Estimators of gradients and curvature of the expected log-density."""
