"""A page about a job: its plans, its steps, its numbers, in one HTML file."""
