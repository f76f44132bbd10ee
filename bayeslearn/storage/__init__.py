"""Files: one folder format for posteriors and checkpoints. No pickle."""

from bayeslearn.storage.registry import register

__all__ = ["register"]
