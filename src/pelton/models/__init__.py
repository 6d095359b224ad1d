"""One file per model family, made of shared layers."""
