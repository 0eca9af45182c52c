"""The model families: loading, text encoding, noise prediction and sampling per family.

Importing any part of this package keeps the Hugging Face libraries off the network, if they were not
imported before. All that a base model needs is in its own files or shipped with us; asked for the hub
without a network, transformers tries each file five times (about 25 seconds) and may go on with a wrong
tokenizer.
"""

import os

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
