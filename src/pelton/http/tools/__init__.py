"""Tools and reasoning: how models write them, from their text to parts and from a request's tools to a grammar."""
