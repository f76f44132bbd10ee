"""Several methods on one table, and a recommendation."""
