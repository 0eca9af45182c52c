"""autotune fits LoRA training of diffusion models into the GPU memory at hand.

The controller: device (which GPU), memory (what the bytes mean), ladder (what to try next), trial (does it
fit), profile (what was learned), store (where it is kept). It knows a training job only as the `Workload`
protocol of `autotune.trial.workload`. Importing this package imports nothing heavy.
"""

__version__ = "0.1.0"
