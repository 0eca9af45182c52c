"""Where profiles are kept: one Protocol, and directories that implement it."""
