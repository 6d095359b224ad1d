"""The OpenAI API."""
