"""`python -m bayeslearn`, and the script of the same name."""

from __future__ import annotations

import importlib.util
import sys
from os import _exit as exit_without_cleanup
from typing import NoReturn

NEEDED = {"click": "click", "pandas": "pandas", "sklearn": "scikit-learn"}
INTERRUPTED = (130, 143)  # exit codes after SIGINT and SIGTERM


def main() -> None:
    """Run the command line."""
    missing = [name for module, name in NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        print(
            f"Error: the command line needs {', '.join(missing)}: pip install 'bayeslearn[cli]'.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    try:
        from bayeslearn.cli.app import main as run

        run(prog_name="bayeslearn")
    except KeyboardInterrupt:  # before the command line could catch it
        print("Error: Interrupted; nothing was written.", file=sys.stderr)
        _exit_now(INTERRUPTED[0])
    except SystemExit as error:
        if error.code in INTERRUPTED:
            _exit_now(error.code)
        raise


def _exit_now(code: int) -> NoReturn:
    """End the process without the interpreter's clean-up.

    JAX compiles in a thread of its own and waits for it interruptibly: after Ctrl-C the compiler
    still runs. The clean-up would free the backend under it (JAX's `atexit` handler) or the
    compiler's own globals, and the process would die of a segmentation fault.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    exit_without_cleanup(code)


if __name__ == "__main__":
    main()
