"""How this machine is built, and what follows for training on its devices.

`processors` reads what is reported, `advice` concludes. Nothing is concluded from
what is not known.
"""
