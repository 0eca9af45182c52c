"""Dry runs: any unmodified PyTorch program on null cards, watched from outside.

`interpreter` finds whose Python runs it, `run` runs it, `states` reads what the hook inside saw, `verdict` judges,
`commands` and `ladder` walk the ladder on the options of trainers whose command lines are known. `hook/` is put on
the program's path and imports nothing of autotune.
"""
