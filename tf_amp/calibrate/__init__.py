"""Measure the present device, so that decisions are priced by what they cost here."""

from tf_amp.calibrate.cases import COARSE, Sizes
from tf_amp.calibrate.profile import calibrate
from tf_amp.calibrate.rounds import measure_cases, measure_into

__all__ = ["COARSE", "Sizes", "calibrate", "measure_cases", "measure_into"]
