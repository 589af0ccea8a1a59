"""Measure the present device, so that decisions are priced by what they cost here."""
