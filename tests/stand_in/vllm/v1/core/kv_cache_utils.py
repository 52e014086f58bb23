from vllm import faults


def check_enough_kv_cache_memory():
    if faults.HOW == "has no memory":
        raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`")
