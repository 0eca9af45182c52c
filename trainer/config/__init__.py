"""The config files people have, read into one typed TrainConfig. Imports no torch.

`load_config` reads them (loader.py), `rewrite_config` writes one back with only chosen values changed
(rewrite.py). A file goes text -> document -> dialect -> values -> checks, one module each.
"""
