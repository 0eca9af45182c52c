"""What to try next: knobs, rungs, ladders and the walk. Pure: no I/O, no clock, no torch."""
