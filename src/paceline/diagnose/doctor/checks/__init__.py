"""Checks of a machine: each turns the facts about one part into findings."""
