"""R-hat, effective sample sizes and E-BFMI of Markov chains.

R-hat and the effective sample sizes are those of Vehtari, Gelman, Simpson, Carpenter and Buerkner
(2021, Bayesian Analysis 16): chains are split in halves, and draws replaced by normal scores of
their ranks, so that both exist for distributions without moments. With m split chains of n draws,
W the mean variance within chains and B / n the variance of their means,

    var+  = (n - 1) / n W + B / n
    R-hat = sqrt(var+ / W)
    rho_t = 1 - (W - mean over chains of the autocovariance at lag t) / var+
    ESS   = m n / tau,   tau = -1 + 2 sum_k P_k,   P_k = rho_2k + rho_2k+1

The sum ends before the first P_k that is not positive, and each P_k is at most the one before it
(Geyer 1992, initial monotone sequence). tau is at least 1 / log10(m n). Numbers are ArviZ's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

MIN_DRAWS = 4
TAIL_PROBS = (0.05, 0.95)
BLOCK_SIZE = 2**21  # draws of all quantities that are processed together


def rhat(values: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat of each quantity, the larger of bulk and tail.

    Args:
        values: draws (chains, draws, quantities).

    Returns:
        One number per quantity. NaN for a single chain, fewer than four draws, draws with NaN, and
        quantities that are constant.
    """
    if len(values) < 2:
        return np.full(np.shape(values)[-1], np.nan)
    return _by_quantity(_rhat, values)


def ess_bulk(values: np.ndarray) -> np.ndarray:
    """Effective sample size of each quantity for its location, from rank-normalised draws.

    Args:
        values: draws (chains, draws, quantities).

    Returns:
        One number per quantity. The number of draws for a constant; NaN for fewer than four draws
        and draws with NaN.
    """
    return _by_quantity(lambda block: _ess(_normal_scores(_split(block))), values)


def ess_tail(values: np.ndarray) -> np.ndarray:
    """Effective sample size of each quantity in its tails.

    The smaller one of the indicators of being below the 5 % and below the 95 % quantile.
    Arguments and returns as in `ess_bulk`.
    """
    return _by_quantity(_ess_tail, values)


def bfmi(energy: np.ndarray) -> np.ndarray:
    """Estimated Bayesian fraction of missing information of each chain (Betancourt 2016).

    The mean squared change of the energy from draw to draw, divided by its variance. Below 0.3 the
    momenta explore the energies slowly, and tails may be missed.

    Args:
        energy: Hamiltonian energies (chains, draws). With log-densities it is the same ratio for
            the potential energy.
    """
    energy = np.asarray(energy, np.float64)
    if energy.shape[1] < 2:
        return np.full(len(energy), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.mean(np.diff(energy, axis=1) ** 2, axis=1) / np.var(energy, axis=1, ddof=1)


def _by_quantity(statistic: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """The statistic of blocks (quantities, chains, draws); NaN where it is undefined."""
    chains, draws, num = np.shape(values)
    result = np.full(num, np.nan)
    if draws < MIN_DRAWS or chains == 0:
        return result
    size = max(1, BLOCK_SIZE // (chains * draws))
    for start in range(0, num, size):
        block = np.moveaxis(np.asarray(values)[:, :, start : start + size], -1, 0)
        block = np.array(block, np.float64, order="C")
        is_defined = ~np.any(np.isnan(block), axis=(1, 2))
        with np.errstate(invalid="ignore", divide="ignore"):
            result[start : start + size][is_defined] = statistic(block[is_defined])
    return result


def _split(block: np.ndarray) -> np.ndarray:
    """The first and second half of each chain as chains; of odd numbers the middle is left out."""
    half = block.shape[-1] // 2
    return np.concatenate([block[..., :half], block[..., -half:]], axis=1)


def _normal_scores(block: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks among all chains; ties have their mean rank."""
    from scipy.special import ndtri  # slow to import

    flat = block.reshape(len(block), -1)
    size = flat.shape[1]
    order = np.argsort(flat, axis=1)  # ties have one rank, in whatever order
    # Ranks are whole or half numbers, of which there are fewer than draws of all quantities.
    of_rank = ndtri((0.5 * np.arange(2 * size) + 0.625) / (size + 0.25))
    ordered = np.take_along_axis(flat, order, axis=1)
    is_new = np.ones(flat.shape, bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    by_rank = np.broadcast_to(of_rank[::2], flat.shape)
    if not np.all(is_new):
        position = np.broadcast_to(np.arange(size), flat.shape)
        is_end = np.ones(flat.shape, bool)
        is_end[:, :-1] = is_new[:, 1:]
        first = np.maximum.accumulate(np.where(is_new, position, 0), axis=1)
        last = np.where(is_end, position, size)
        last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
        by_rank = of_rank[first + last]
    scores = np.empty(flat.shape)
    np.put_along_axis(scores, order, by_rank, axis=1)
    return scores.reshape(block.shape)


def _rhat(block: np.ndarray) -> np.ndarray:
    split = _split(block)
    folded = np.abs(split - np.median(split, axis=(1, 2), keepdims=True))
    bulk, tail = (_potential_scale(_normal_scores(part)) for part in (split, folded))
    return np.where(tail > bulk, tail, bulk)  # the tail alone may be constant


def _potential_scale(block: np.ndarray) -> np.ndarray:
    """Square root of the ratio of the total variance to that within chains."""
    draws = block.shape[-1]
    mean = np.where(np.ptp(block, axis=2) == 0, block[..., 0], np.mean(block, axis=2))
    between, within = _variance(mean), np.mean(_variance(block), axis=1)
    return np.sqrt((draws * between / within + draws - 1) / draws)


def _variance(values: np.ndarray) -> np.ndarray:
    """Along the last axis; exactly zero for equal values, whose mean may be rounded."""
    is_constant = np.ptp(values, axis=-1) == 0
    return np.where(is_constant, 0.0, np.var(values, axis=-1, ddof=1))


def _ess_tail(block: np.ndarray) -> np.ndarray:
    flat = np.sort(block.reshape(len(block), -1), axis=1)
    num = flat.shape[1]
    found = []
    for prob in TAIL_PROBS:
        # Type 7 of Hyndman and Fan (1996). How it is rounded decides whether a draw that equals
        # the quantile is below it.
        position = num * prob + (1.0 - prob)
        below = min(max(int(position), 1), num - 1)
        share = min(max(position - below, 0.0), 1.0)
        quantile = (1.0 - share) * flat[:, below - 1] + share * flat[:, below]
        found.append(_ess(_split((block <= quantile[:, None, None]).astype(np.float64))))
    return np.minimum(*found)


def _autocovariance(block: np.ndarray) -> np.ndarray:
    """Autocovariances of each chain at all lags, divided by its length."""
    draws = block.shape[-1]
    size = 1 << (2 * draws - 1).bit_length()  # padded, so that ends do not wrap around
    spectrum = np.fft.rfft(block - np.mean(block, axis=-1, keepdims=True), size)
    return np.fft.irfft(np.abs(spectrum) ** 2, size)[..., :draws] / draws


def _ess(block: np.ndarray) -> np.ndarray:
    """Effective sample size of split chains (quantities, chains, draws)."""
    chains, draws = block.shape[1:]
    autocovariance = np.mean(_autocovariance(block), axis=1)
    within = autocovariance[:, 0] * draws / (draws - 1)
    total = within * (draws - 1) / draws
    if chains > 1:
        total = total + np.var(np.mean(block, axis=2), axis=1, ddof=1)
    rho = 1.0 - (within[:, None] - autocovariance) / total[:, None]
    rho[:, 0] = 1.0
    size = chains * draws
    ess = size / np.maximum(_autocorrelation_time(rho), 1.0 / np.log10(size))
    is_constant = np.ptp(block, axis=(1, 2)) < np.finfo(np.float64).resolution
    return np.where(is_constant, float(size), ess)


def _autocorrelation_time(rho: np.ndarray) -> np.ndarray:
    """tau of autocorrelations (quantities, lags), by Geyer's initial monotone sequence.

    Of the pair at which the sum ends the first autocorrelation is added once where it is positive,
    which makes antithetic chains' estimate more stable.
    """
    most = max(0, -(-(rho.shape[1] - 4) // 2))  # pairs; the last lags are too noisy to be used
    even = rho[:, 0 : 2 * most + 1 : 2]
    pairs = even + rho[:, 1 : 2 * most + 2 : 2]
    is_end = pairs <= 0.0
    is_end[:, most] = True
    end = np.argmax(is_end, axis=1)[:, None]
    is_before = np.arange(most + 1) < end
    monotone = np.where(is_before, np.minimum.accumulate(pairs, axis=1), 0.0)
    last_even, last_pair = (np.take_along_axis(part, end, axis=1)[:, 0] for part in (even, pairs))
    last = np.where((last_even > 0.0) | (last_pair >= 0.0), last_even, 0.0)
    return -1.0 + 2.0 * np.sum(monotone, axis=1) + last
