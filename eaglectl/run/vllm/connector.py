"""vLLM's example connector of hidden states, adapted for calibration. Written against vLLM 0.32.0."""

import os
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class StatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]
    """Writes each request's states to a file; on CPUs too, where vLLM's connector fails (0.32.0)."""

    def get_finished_count(self) -> int:
        """Return 1, as one rank writes; vLLM before 0.31.0 waits for all ranks and never ends."""
        return 1

    def _submit_async_write(self, pending: Any) -> None:
        # vLLM's own writes from a GPU; on a CPU the states are written at once
        if self._kv_cache is None or self._kv_cache.device.type != "cpu":
            super()._submit_async_write(pending)
            return
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids)).contiguous()
        save_file({"hidden_states": states, "token_ids": pending.token_ids}, pending.filename)
        # in the place of the CUDA event of a copy: this copy is done
        self._req_copy_events[pending.req_id] = SimpleNamespace(query=lambda: True)
        if (lock := self._lock_fds.pop(pending.req_id, None)) is not None:
            os.close(lock)
