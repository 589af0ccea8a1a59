"""Loss scales: what a loss is multiplied by, and how that number changes."""
