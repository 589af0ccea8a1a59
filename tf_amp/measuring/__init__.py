"""Find out on the present device what prices leave uncertain.

`OnlineTuner` is what the pass asks. It measures single ops (`measuring`, on inputs of
`synthetic`) and tries whole graphs, within the time that `budget` leaves.
"""
