"""Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayeslearn.data.sources.base import BUFFER_BYTES, Rows, Source, concatenate
from bayeslearn.errors import DataError, Shown, refuse


class _Parquet(Source):
    def __init__(
        self,
        files: list[Path],
        target: str | list[str],
        columns: list[str],
        metadata: list[Any],
        **options: Any,
    ):
        self._files, self._target, self._columns = files, target, columns
        self._where = [
            (f, g) for f, meta in enumerate(metadata) for g in range(meta.num_row_groups)
        ]
        sizes = [metadata[f].row_group(g).num_rows for f, g in self._where]
        # Empty row groups hold nothing to shuffle.
        self._where = [place for place, size in zip(self._where, sizes, strict=True) if size]
        edges = np.cumsum([0, *(size for size in sizes if size)])
        width = len(columns) + (1 if isinstance(target, str) else len(target))
        super().__init__(edges, 8.0 * width, **options)

    def read(self, blocks: Sequence[int]) -> Rows:
        """The rows of some row groups."""
        tables = [self._read_one(*self._where[block]) for block in blocks]
        return concatenate(tables)

    def _read_one(self, file: int, group: int) -> Rows:
        import pyarrow.parquet as pq

        wanted = [self._target] if isinstance(self._target, str) else self._target
        with pq.ParquetFile(self._files[file]) as opened:
            table = opened.read_row_group(group, columns=[*self._columns, *wanted])

        def column(name: str) -> np.ndarray:
            values = table.column(name)
            if values.null_count:
                raise DataError(
                    f"{self._files[file]} has {values.null_count} missing value(s) in the column"
                    f" {name!r} of row group {group}. Drop or fill those rows."
                )
            return values.to_numpy()

        x = np.stack([column(name) for name in self._columns], axis=1)
        if isinstance(self._target, str):
            return x, column(self._target)
        return x, np.stack([column(name) for name in self._target], axis=1)


def parquet(
    path: str | os.PathLike[str],
    target: str | Sequence[str],
    columns: Sequence[str] | None = None,
    batch_size: int | str = "auto",
    seed: int = 0,
    *,
    shuffle: bool = True,
    buffer_bytes: int = BUFFER_BYTES,
) -> Source:
    """Batches of a Parquet file, or of all in a folder, through PyArrow.

    A row group is a block of the shuffling, and two at least are in memory: write files with row
    groups that are small beside it (`row_group_size=`).

    Args:
        path: a file; or a folder, whose `.parquet` files (also in folders inside) are read in
            alphabetical order.
        target: the column that is y, or several.
        columns: the columns of numbers that are x; all but the target by default.
        batch_size: rows in a batch; "auto": 256, or all where there are fewer.
        seed: of the shuffling.
        shuffle: False: rows come in their order.
        buffer_bytes: memory for the rows that are shuffled among each other.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:  # pragma: no cover
        raise ImportError("Parquet needs PyArrow: pip install 'bayeslearn[parquet]'") from error

    place = Path(path)
    files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
    if not files:
        refuse("path", str(place), "hold .parquet files")
    targets = [target] if isinstance(target, str) else list(target)
    metadata = []
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                metadata.append(opened.metadata)
                schema = opened.schema_arrow
        except (OSError, pa.ArrowInvalid) as error:
            refuse("path", str(file), "be a Parquet file", str(error).splitlines()[0])
        if columns is None:  # the first file's, for all
            columns = [name for name in schema.names if name not in targets]
        for argument, names in (("target", targets), ("columns", columns)):
            for name in names:
                if name not in schema.names:
                    refuse(argument, name, f"be among the columns of {file}")
                kind = schema.field(name).type
                if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and (
                    not pa.types.is_boolean(kind)
                ):
                    what = Shown(f"{name!r}, which is {kind} in {file}")
                    refuse(argument, what, "hold numbers", "Encode text columns as numbers first.")
    for argument, names in (("target", targets), ("columns", columns or ())):
        if not len(names):
            refuse(argument, names, "name at least one column")
    if not sum(meta.num_rows for meta in metadata):
        refuse("path", str(place), "hold at least one row")
    return _Parquet(
        files,
        target if isinstance(target, str) else targets,
        list(columns or ()),
        metadata,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        buffer_bytes=buffer_bytes,
    )
