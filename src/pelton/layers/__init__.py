"""The shared layers that models are made of."""
