"""What was measured on this machine: probes, their seconds, and their file."""
