"""Explain what went wrong without running the user's program.

Each package imports only those above it.

variables  the environment variables that NCCL, torch and gloo read, and which are harmful
catalogue  what every finding means
doctor     what is wrong with this machine
explain    the likely cause of a failure in the text of a log
lint       mistakes in job scripts and training scripts
"""
