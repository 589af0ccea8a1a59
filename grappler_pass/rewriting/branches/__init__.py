"""What makes a branch of a lowered graph cost little, one graph after the other."""
