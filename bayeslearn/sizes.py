"""Sizes that cannot end well are refused before any work, with an estimate of the memory."""

from __future__ import annotations

import os
import sys

from bayeslearn.errors import check_whole, refuse

BYTES_PER_WEIGHT = 4
TRAINING_COPIES = 3  # at least: the weights, their gradient, an average of it
BYTES_PER_MEMBER = 1000  # beside its weights, at least
MAX_SEED = 2**63 - 1


def check_seed(seed: object, argument: str = "seed") -> None:
    """Refuse what JAX cannot make a key of."""
    check_whole(argument, seed, least=0, most=MAX_SEED)


def check_memory(argument: str, value: object, num_bytes: float, what: str) -> None:
    """Refuse what would need more memory than this machine has."""
    have = host_memory()
    if num_bytes > have:
        must = (
            f"be smaller: {what} take about {num_bytes / 1e9:,.0f} GB, and this machine has"
            f" {have / 1e9:,.0f} GB"
        )
        refuse(argument, value, must)


def host_memory() -> int:
    """Bytes that this process can have at most."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return sys.maxsize
    try:
        import resource
    except ImportError:
        return found
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return found if limit == resource.RLIM_INFINITY else min(found, limit)
