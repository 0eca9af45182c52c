"""What holds for all tests: property tests draw the same examples in every run.

`HYPOTHESIS_PROFILE=explore` draws new ones, for looking for faults; what it finds becomes an `@example`.
"""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
