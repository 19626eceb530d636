"""What is done to a model: how it is made parallel, its precision, activation checkpointing."""
