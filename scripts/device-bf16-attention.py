#!/usr/bin/env python3
"""Times torch's BF16 attention (flash and cuDNN) on the shapes of benchmarks/cuda.cu.

Prints "name milliseconds" a line, the fastest back end of each shape, for benchmark_cuda --bf16;
every back end's time goes to standard error.
"""
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def median_ms(call, rounds):
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    times = []
    for i in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for j in range(4):
            call(4 * i + j)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 4)
    return sorted(times)[len(times) // 2]


def graph_ms(call, calls):
    """The calls replayed from a graph, as benchmark_cuda times decode."""
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    times = []
    for _ in range(11):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return sorted(times)[len(times) // 2]


def attention_times(name, batch, queries, tokens, causal, copies):
    g = dict(device="cuda", dtype=torch.bfloat16)
    caches = [tuple(torch.randn(batch, 8, tokens, 128, **g) for _ in range(2)) for _ in range(copies)]
    q = torch.randn(batch, 32, queries, 128, **g)
    # One new token: its four query heads of a KV head as four rows, which spares the repeat.
    grouped = q.view(batch, 8, 4, 128) if queries == 1 else None

    def call(i):
        k, v = caches[i % copies]
        if grouped is not None:
            return F.scaled_dot_product_attention(grouped, k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    best = None
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            try:
                ms = graph_ms(call, 16 if batch == 1 else 4) if queries == 1 else median_ms(call, 3)
            except Exception as error:  # a back end that refuses the shape
                print(f"{name} {backend.name}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
        rate = batch * tokens * 8 * 512 / ms * 1e-9 if queries == 1 else 0
        print(f"{name} {backend.name} {ms:.4f} ms {rate:.2f} TB/s", file=sys.stderr)
        best = ms if best is None else min(best, ms)
    if best is not None:
        print(f"{name} {best:.5f}", flush=True)


with torch.no_grad():
    for batch in (32, 8, 1):
        attention_times(f"decode{batch}", batch, 1, 102400, False, 3 if batch == 1 else 1)
    attention_times("causal32768", 1, 32768, 32768, True, 1)
    attention_times("causal4096", 8, 4096, 4096, True, 1)
