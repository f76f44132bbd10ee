"""The base of the methods that start at the posterior mode."""

from __future__ import annotations

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.map import MAP


class ModeStart(Algorithm):
    """Base of the methods whose warm start is MAP (abstract)."""

    def warm_start(self) -> Algorithm | None:
        """MAP with the noise scale fixed.

        With more weights than rows, the joint mode of weights and noise interpolates the data
        without noise, far from the bulk of the posterior.
        """
        return MAP(learn_noise=False)
