"""The step loop, its process, and its clients."""
