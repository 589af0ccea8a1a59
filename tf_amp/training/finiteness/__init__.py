"""Whether gradients were finite, wherever in a program they are taken."""
