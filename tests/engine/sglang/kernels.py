"""The compiled CPU functions that SGLang 0.5.23 needs for a chain of drafts (topk 1), in plain torch.

None of them knows of drafters: they hand out cache slots, walk a chain and attend. Whatever reads a config,
loads a tensor or chooses a layer stays SGLang's own code.
"""

from typing import Any

import torch
from torch import Tensor

# what was drafted: one row a request and a round, the verified token first
CANDIDATES: list[list[int]] = []


def assign_req_to_token_pool_cpu(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, slots: Tensor, width: int
) -> None:
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        table[row, first:last] = slots[at : at + last - first].to(table.dtype)
        at += last - first


def assign_extend_cache_locs_cpu(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, slots: Tensor, width: int
) -> None:
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        slots[at : at + last - first] = table[row, first:last].to(slots.dtype)
        at += last - first


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, table: Tensor, lengths: Tensor, slots: Tensor, width: int, topk: int, columns: int
) -> None:
    count = topk * columns
    for place, (row, first) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        slots[place * count : (place + 1) * count] = table[row, first : first + count].to(slots.dtype)


def fill_bonus_tokens_cpu(accepted: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    flat = accepted.reshape(-1)
    for place, length in enumerate(lengths.tolist()):
        bonus[place] = flat[stride * place + length - 1]


def fill_accept_out_cache_loc_cpu(index: Tensor, slots: Tensor, accepted: Tensor) -> None:
    kept = slots[index[index != -1].long()]
    accepted[: kept.numel()] = kept


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    tree_mask: Tensor | None,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    count: int,
    mode: Any,
) -> None:
    if topk != 1:
        raise NotImplementedError("chains only (topk 1)")
    for place, length in enumerate(lengths.tolist()):
        positions[place * count : (place + 1) * count] = torch.arange(length, length + count)
        index[place] = torch.arange(place * count, (place + 1) * count)
        next_token[place] = torch.tensor([*range(1, count), -1])
        next_sibling[place] = -1
    if tree_mask is not None and tree_mask.numel() == lengths.numel() * count * count:
        chain = torch.tril(torch.ones(count, count)).bool()
        tree_mask.copy_(chain.repeat(lengths.numel(), 1, 1).reshape(tree_mask.shape))


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    predicted = target_predict.reshape(candidates.shape)
    CANDIDATES.extend(candidates.tolist())
    for row in range(candidates.shape[0]):
        at, accepted = 0, 0
        accept_index[row, 0] = retrive_index[row, 0]
        while (after := int(retrive_next_token[row, at])) != -1 and accepted + 1 < accept_index.shape[1]:
            predicts[retrive_index[row, at].long()] = predicted[row, at].to(predicts.dtype)
            if int(candidates[row, after]) != int(predicted[row, at]):
                break
            accepted, at = accepted + 1, after
            accept_index[row, accepted] = retrive_index[row, after]
        accept_token_num[row] = accepted
        predicts[retrive_index[row, at].long()] = predicted[row, at].to(predicts.dtype)


def _attend(
    backend: Any,
    totals: list[int],
    counts: list[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layer: Any,
    batch: Any,
    save_kv_cache: bool = True,
    **_: Any,
) -> Tensor:
    """Causal attention of the last `counts` positions of each request over its first `totals` slots."""
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    if save_kv_cache and key is not None:
        place = KVWriteLoc(batch.out_cache_loc, backend.swa_out_cache_loc)
        backend.token_to_kv_pool.set_kv_buffer(layer, place, key, value)
    pool, table = backend.token_to_kv_pool, backend.req_to_token_pool.req_to_token
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    query = query.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
    out = query.new_empty(query.shape[0], layer.tp_q_head_num, layer.v_head_dim)
    window = layer.sliding_window_size
    at = 0
    for request, total, count in zip(batch.req_pool_indices.tolist(), totals, counts, strict=True):
        slots = table[request, :total].long()
        key, value = (held[slots].to(query.dtype).movedim(0, 1).unsqueeze(0) for held in (keys, values))
        rows, columns = torch.arange(total - count, total).unsqueeze(1), torch.arange(total).unsqueeze(0)
        mask = columns <= rows
        if window is not None and window > -1:
            mask &= columns >= rows - window
        attended = torch.nn.functional.scaled_dot_product_attention(
            query[at : at + count].movedim(0, 1).unsqueeze(0),
            key,
            value,
            attn_mask=mask,
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )
        out[at : at + count] = attended.squeeze(0).movedim(0, 1)
        at += count
    return out.reshape(-1, layer.tp_q_head_num * layer.v_head_dim)


def stand_in() -> None:
    """Put the functions where SGLang looks for compiled ones, and let torch_native verify and draft."""
    import sgl_kernel
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    for name, function in list(globals().items()):
        if name.endswith("_cpu"):
            setattr(sgl_kernel, name, function)

    class Step(TorchNativeAttnBackend):  # type: ignore[misc]
        step = 0

        def forward_extend(self, *given: Any, **named: Any) -> Tensor:
            batch = given[4]
            if batch.forward_mode.is_target_verify():
                count = batch.spec_info.draft_token_num
                totals = [length + count for length in batch.seq_lens.tolist()]
                counts = [count] * batch.batch_size
            else:
                totals, counts = batch.seq_lens.tolist(), batch.extend_seq_lens.tolist()
            return _attend(self, totals, counts, *given, **named)

        def forward_decode(self, *given: Any, **named: Any) -> Tensor:
            totals = [length + self.step for length in given[4].seq_lens.tolist()]
            return _attend(self, totals, [1] * len(totals), *given, **named)

    class Steps:
        def __init__(self, runner: Any, count: int) -> None:
            self.attn_backends = [Step(runner) for _ in range(count - 1)]
            for place, backend in enumerate(self.attn_backends):
                backend.step = place + 1

        def init_forward_metadata(self, batch: Any) -> None:
            for backend in self.attn_backends:
                backend.init_forward_metadata(batch)

    TorchNativeAttnBackend.forward_extend = Step.forward_extend
    DraftBackendFactory.create_decode_backend = lambda self: Steps(
        self.draft_model_runner, self.speculative_num_steps
    )
    DraftBackendFactory.create_draft_extend_backend = lambda self: Step(self.draft_model_runner)
