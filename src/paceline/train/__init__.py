"""The training library: Session and Trainer, and the packages that they build on."""
