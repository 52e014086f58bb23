"""The maths of drafters and of draft-and-verify in plain torch; everything here needs torch."""

import logging
import os

from eaglectl.options import CALLER

# OpenMP's threads spin while they wait, unless told otherwise: on a machine with other work a run of 3.6 s
# took 106 s. Read when torch is loaded; a user's own value counts
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if CALLER.is_quiet:  # transformers and torch write their logs to stderr
    logging.disable(logging.WARNING)
