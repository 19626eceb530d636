"""Prepare a model: its parallelism, precision and activation checkpointing."""
