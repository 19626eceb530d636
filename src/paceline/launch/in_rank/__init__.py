"""Run the user's script in a rank: the worker entry, its files, and workarounds."""
