"""Watches ranks while they run: progress, hangs, what their data show, what they wait in."""
