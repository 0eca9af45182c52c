"""What do the bytes mean? Phases of a run and their peaks."""
