"""The config files people have, read into one typed TrainConfig. Imports no torch."""
