"""Data larger than memory: files read in blocks, shuffled by a rule, from any batch on.

x = np.load("x.npy", mmap_mode="r")
source = bl.sources.arrays(x, y, batch_size=1024, seed=0)
posterior = bl.fit(model, bl.VOGN(), source, seed=0)
"""

from bayeslearn.data.sources.arrays import arrays
from bayeslearn.data.sources.base import Source
from bayeslearn.data.sources.parquet import parquet

__all__ = ["Source", "arrays", "parquet"]
