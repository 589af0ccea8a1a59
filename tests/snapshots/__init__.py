"""What every command prints on the same small inputs, kept as text.

`python -m tests.snapshots` writes it anew, to be reviewed as a diff. Figures, paths,
versions and what is said of this machine are masked: it is the same on every one.
A new command line is written into a text by hand, behind a `$`.
"""
