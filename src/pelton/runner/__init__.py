"""From a Plan to tokens: batches, the KV cache, sampling."""
