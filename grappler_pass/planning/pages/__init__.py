"""Pages about plans, one file each, that open in a browser without a network."""
