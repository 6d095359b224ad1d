"""The Messages API of Anthropic, over the same chat turns as the OpenAI API."""
