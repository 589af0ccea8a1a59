"""Small programs as people write them, of the kinds that mixed precision breaks."""
