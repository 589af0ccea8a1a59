"""A user's own model under several methods: how fast, how large, how far off.

plan of runs (`job`) -> one process each (`worker`, which writes a `journal`) ->
`samples` -> `summary` -> what is printed and drawn (`words`, `chart`).
"""
