"""Embeddings, and scores and rankings made of them."""
