"""Methods that start at the mode of the posterior."""

from __future__ import annotations

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.map import MAP


class ModeStart(Algorithm):
    """Base of the methods whose warm start is MAP (abstract)."""

    def warm_start(self) -> Algorithm | None:
        """MAP with the noise scale fixed.

        The joint mode of weights and noise of a network with more weights than rows is an
        interpolation without noise, far from the bulk of the posterior.
        """
        return MAP(learn_noise=False)
