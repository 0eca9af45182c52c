"""The command line: parse, call one function, print. Imports nothing heavy at start-up."""
