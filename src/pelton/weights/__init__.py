"""Checkpoints on disk and how they get into a model."""
