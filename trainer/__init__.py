"""The LoRA trainer of autotune: it implements the `Workload` protocol and runs the full training.

Nothing here decides what fits; that is autotune's part. Importing this package imports nothing heavy, and keeps
the Hugging Face libraries off the network if they were not imported before: all that a base model needs is in
its own files or shipped with us. Asked for the hub without a network, transformers tries each file five times
(about 25 seconds) and may go on with a wrong tokenizer.
"""

import logging
import os

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"

# On a CPU bitsandbytes warns at import that an optional package for 4-bit products is missing: not used here.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
