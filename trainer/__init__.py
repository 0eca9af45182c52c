"""The LoRA trainer of autotune: it implements the `Workload` protocol and runs the full training.

Nothing here decides what fits; that is autotune's part. Importing this package imports nothing heavy.
"""

AUTOTUNE_TRAINER = True  # tells our package from another one that is also called `trainer`
