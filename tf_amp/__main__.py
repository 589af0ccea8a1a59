"""Run `python -m tf_amp`, which is `tf-amp`."""

import sys

from tf_amp.commands.cli import main

sys.exit(main())
