"""What is measured inside a rank: steps, losses, loops, parameters, and what the rank answers to
its launcher.
"""
