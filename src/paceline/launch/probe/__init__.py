"""Measurements inside a rank: steps, losses, loops and parameters, and answers to the launcher."""
