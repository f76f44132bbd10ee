"""Every method on two tables: what `make demo` runs. The same as `bayeslearn demo`."""

from bayeslearn.cli import main

if __name__ == "__main__":
    main(["demo"])
