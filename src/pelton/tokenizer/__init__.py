"""Text to token ids and back, and chats to prompts. Torch-free: the HTTP process lives on it."""

from pelton.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
