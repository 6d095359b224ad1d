"""Flags that users of vLLM know and that mean nothing here: each with the reason and Pelton's way."""

_ALWAYS_CHUNKED = "prefill is always chunked; --max-num-batched-tokens sets the budget of a step"
_NO_LORA = "LoRA adapters are not supported yet; merge the adapter into the weights"
_ONE_PROCESS = "the model runs on one device for now; start more servers behind a load balancer for more throughput"
_NO_GRAPHS = "models always run eagerly; nothing is compiled or captured, leave it out"
_REQUESTS_NOT_LOGGED = (
    "single requests are never logged; --log-level debug shows the engine's steps, /metrics the counts"
)
_NO_SPECULATION = "speculative decoding is not supported yet"
_TLS = "put a reverse proxy with TLS (nginx, Caddy) in front; --uds lets it connect through a Unix socket"
_ROPE = "the checkpoint's own RoPE parameters are used; edit rope_scaling in its config.json"

REFUSED_FLAGS = {
    "--gpu-memory-utilization": "the KV cache is sized in bytes: --kv-cache-memory 4G",
    "--num-gpu-blocks-override": "the KV cache is sized in bytes: --kv-cache-memory 4G",
    "--swap-space": "preempted requests are recomputed, never swapped; leave it out",
    "--cpu-offload-gb": "weights are memory-mapped and never offloaded; leave it out",
    "--preemption-mode": "preempted requests are always recomputed; leave it out",
    "--enforce-eager": _NO_GRAPHS,
    "--compilation-config": _NO_GRAPHS,
    "-O": _NO_GRAPHS,
    "--max-seq-len-to-capture": _NO_GRAPHS,
    "--enable-chunked-prefill": _ALWAYS_CHUNKED,
    "--max-num-partial-prefills": _ALWAYS_CHUNKED,
    "--num-scheduler-steps": "every step is scheduled; leave it out",
    "--scheduler-delay-factor": "waiting requests start as soon as a step has room; leave it out",
    "--async-scheduling": "the engine decides by itself whether to plan ahead; leave it out",
    "--disable-log-requests": _REQUESTS_NOT_LOGGED,
    "--enable-log-requests": _REQUESTS_NOT_LOGGED,
    "--disable-log-stats": "statistics are not logged but served at /metrics; leave it out",
    "--uvicorn-log-level": "one level for everything: --log-level",
    "--trust-remote-code": "no code from a model repository is ever run; use a model whose architecture is built in",
    "--tensor-parallel-size": _ONE_PROCESS,
    "-tp": _ONE_PROCESS,
    "--pipeline-parallel-size": _ONE_PROCESS,
    "-pp": _ONE_PROCESS,
    "--data-parallel-size": _ONE_PROCESS,
    "-dp": _ONE_PROCESS,
    "--enable-expert-parallel": _ONE_PROCESS,
    "--distributed-executor-backend": _ONE_PROCESS,
    "--quantization": "the checkpoint decides: give a GGUF file for quantized weights",
    "-q": "the checkpoint decides: give a GGUF file for quantized weights",
    "--load-format": "the format is seen from the files: safetensors directory or GGUF; leave it out",
    "--tokenizer": "the tokenizer comes with the model: from its directory or the GGUF file; leave it out",
    "--tokenizer-mode": "there is one tokenizer, the fast one; leave it out",
    "--tokenizer-revision": "the tokenizer comes with the model: --revision holds for both",
    "--hf-overrides": "edit the checkpoint's config.json instead",
    "--hf-config-path": "the configuration is read from the model's own directory; leave it out",
    "--rope-scaling": _ROPE,
    "--rope-theta": _ROPE,
    "--enable-lora": _NO_LORA,
    "--lora-modules": _NO_LORA,
    "--max-loras": _NO_LORA,
    "--max-lora-rank": _NO_LORA,
    "--speculative-config": _NO_SPECULATION,
    "--speculative-model": _NO_SPECULATION,
    "--num-speculative-tokens": _NO_SPECULATION,
    "--ssl-keyfile": _TLS,
    "--ssl-certfile": _TLS,
    "--task": "every model generates text; leave it out",
    "--runner": "every model generates text; leave it out",
    "--limit-mm-per-prompt": "models take text only; leave it out",
}
