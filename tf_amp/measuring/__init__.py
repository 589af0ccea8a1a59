"""Find out on the present device what prices leave uncertain.

`OnlineTuner` is what the pass asks. It measures single ops (`probe_timing`) and has
whole steps compared (`steps`), within the time that `budget` leaves.
"""
