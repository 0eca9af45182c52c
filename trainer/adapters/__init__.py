"""LoRA: injection, names, and the file every UI loads."""
