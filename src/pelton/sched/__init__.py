"""The scheduling core: integers only, no torch."""
