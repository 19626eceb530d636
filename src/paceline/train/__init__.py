"""The training library: Session and Trainer, and what they stand on."""
