"""The command line: parse, call one function, print. Imports nothing heavy at start-up."""

DEFAULT_DEVICE = "auto"
DEFAULT_LADDER = "classic"
