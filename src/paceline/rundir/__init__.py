"""The run folder: its files, which training it belongs to, and who is using it."""
