"""Where an overflow began, found by running its step once more."""
