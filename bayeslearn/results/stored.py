"""The parts of a posterior that a file holds as plain data. Knows no file and no `Posterior`."""

from __future__ import annotations

from typing import Any

from bayeslearn.data.scaling import TableScaling
from bayeslearn.inference.options import Phase
from bayeslearn.results.calibration import Calibrator


def to_stored(fields: dict[str, Any]) -> dict[str, Any]:
    """Phases, scaling and calibrator for a file."""
    scaling, calibrator = fields["scaling"], fields["calibrator"]
    return {
        "phases": [phase._asdict() for phase in fields["phases"]],
        "scaling": None if scaling is None else scaling.to_list(),
        "calibrator": None if calibrator is None else calibrator.to_dict(),
    }


def from_stored(fields: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `to_stored`."""
    scaling, calibrator = fields["scaling"], fields["calibrator"]
    return {
        "phases": tuple(Phase(**phase) for phase in fields["phases"]),
        "scaling": None if scaling is None else TableScaling.from_list(scaling),
        "calibrator": None if calibrator is None else Calibrator.from_dict(calibrator),
    }
