"""How gradients and curvature of the expected log-density are estimated."""
