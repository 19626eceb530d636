"""The training library: Session and Trainer, and the packages that they build on.

Each package imports only those above it.

runtime      the process group, the device, and a few collectives
logging      loggers of numbers
model        parallelism, precision and activation checkpointing
data         the loader: an epoch's order, each rank's share, and weights of batches
checkpoint   checkpoints that all ranks write, for any world size
session      the Session class
preemptible  stopping and resuming for loops without a Session
trainer      the Trainer class, a training loop built on Session
"""
