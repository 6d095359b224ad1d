"""Structured output: grammars that an output must obey, and the token masks that enforce them."""
