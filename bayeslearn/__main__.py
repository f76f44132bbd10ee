"""`python -m bayeslearn`, and the script of the same name."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = {"click": "click", "pandas": "pandas", "sklearn": "scikit-learn"}


def main() -> None:
    missing = [name for module, name in NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        print(
            f"Error: the command line needs {', '.join(missing)}: pip install 'bayeslearn[cli]'.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    from bayeslearn.cli.app import main as run

    run(prog_name="bayeslearn")


if __name__ == "__main__":
    main()
