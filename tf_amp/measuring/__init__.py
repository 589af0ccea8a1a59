"""What is timed: the program's own steps, graphs in a sandbox, and the CPU here."""
