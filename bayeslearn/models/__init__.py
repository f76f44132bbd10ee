"""What is fitted: networks, likelihoods, priors, `Model`, and `Target` (a model bound to data)."""
