"""Whether gradients were finite, wherever they are taken, and what follows from it."""
