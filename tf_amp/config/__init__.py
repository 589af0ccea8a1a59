"""The settings: read, checked, and the choices that follow on the devices here."""
