"""The model families: loading, text encoding, noise prediction and sampling per family."""
