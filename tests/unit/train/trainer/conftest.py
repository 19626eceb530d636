"""The surroundings of every test of the Trainer."""

from unit.train.trainer.training import first_optimizer, no_signals, unlaunched  # noqa: F401
