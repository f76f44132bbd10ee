"""The compilation cache."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def use_compilation_cache() -> Path | None:
    """Keep compiled programs in the user's cache folder, so that the next run starts fast.

    Nobody else may write there, for what is in it is executed. A cache that the user has set up for
    JAX is not changed.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:  # JAX_COMPILATION_CACHE_DIR, too
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(base).expanduser() / "bayeslearn" / "jax"
    try:
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, path):
            if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
                return None
            folder.chmod(stat.S_IRWXU)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path
