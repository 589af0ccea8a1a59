"""What the user asked for: read, checked, and turned into what the pass is given."""
