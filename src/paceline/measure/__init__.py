"""Measure a training run, explain where its time goes, and forecast it on more ranks."""
