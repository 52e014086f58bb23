// What llama.cpp's EAGLE-3 drafts, greedy, round by round: its own loader, graphs and common/speculative.cpp.
// drafts TARGET.gguf DRAFTER.gguf STEPS TOKENS < prompts: one line of token ids a prompt; one JSON object a
// prompt is written, with the draft tokens of each round and the tokens that were generated; `loaded` comes first.
#include "common.h"
#include "llama.h"
#include "speculative.h"

#include <iostream>
#include <sstream>

#ifndef HAS_BATCH
// the batch of later releases on the functions of earlier ones
enum { LLAMA_PROCESS_TYPE_DECODE };

struct common_batch {
    llama_batch batch;
    explicit common_batch(llama_context * ctx) : batch(llama_batch_init(llama_n_batch(ctx), 0, 1)) {}
    common_batch(const common_batch &) = delete;
    ~common_batch() { llama_batch_free(batch); }
    operator const llama_batch &() const { return batch; }
    llama_batch get() const { return batch; }
    void clear() { common_batch_clear(batch); }
    void add(llama_token id, llama_pos pos, llama_seq_id seq, bool output) { common_batch_add(batch, id, pos, {seq}, output); }
};

static int32_t llama_process(llama_context * ctx, int, llama_batch batch) {
    return llama_decode(ctx, batch);
}
#endif

static llama_token best(llama_context * ctx, int row) {
    const float * logits = llama_get_logits_ith(ctx, row);
    const int count = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    return std::max_element(logits, logits + count) - logits;
}

static std::string listed(const llama_tokens & tokens) {
    std::ostringstream out;
    for (size_t i = 0; i < tokens.size(); ++i) {
        out << (i ? ", " : "") << tokens[i];
    }
    return "[" + out.str() + "]";
}

static void run(common_params & params, llama_context * target, const llama_tokens & prompt, size_t most) {
    llama_context * drafter = params.speculative.draft.ctx_dft;
    llama_memory_clear(llama_get_memory(target), true);
    llama_memory_clear(llama_get_memory(drafter), true);
    common_speculative_ptr spec(common_speculative_init(params.speculative, 1));
    if (!spec) {
        throw std::runtime_error("no speculative decoding");
    }
    common_batch batch(target);
    for (size_t i = 0; i < prompt.size(); ++i) {
        batch.add(prompt[i], i, 0, i + 1 == prompt.size());
    }
    if (llama_process(target, LLAMA_PROCESS_TYPE_DECODE, batch.get()) || !common_speculative_process(spec.get(), batch)) {
        throw std::runtime_error("the prompt failed");
    }
    common_speculative_begin(spec.get(), 0, prompt);
    llama_tokens before = prompt, generated = {best(target, prompt.size() - 1)};
    std::string rounds;
    while (generated.size() < most) {
        llama_tokens draft;
        const llama_pos past = before.size();
        common_speculative_get_draft_params(spec.get(), 0) = {true, -1, past, generated.back(), &before, &draft};
        common_speculative_draft(spec.get());
        llama_memory_seq_rm(llama_get_memory(drafter), 0, past, -1);
        rounds += (rounds.empty() ? "" : ", ") + listed(draft);
        batch.clear();
        batch.add(generated.back(), past, 0, true);
        for (size_t i = 0; i < draft.size(); ++i) {
            batch.add(draft[i], past + 1 + i, 0, true);
        }
        if (llama_process(target, LLAMA_PROCESS_TYPE_DECODE, batch.get()) || !common_speculative_process(spec.get(), batch)) {
            throw std::runtime_error("a round failed");
        }
        size_t accepted = 0;
        before.push_back(generated.back());
        for (llama_token token; (token = best(target, accepted)), true; ++accepted) {
            generated.push_back(token);
            if (accepted == draft.size() || draft[accepted] != token) {
                break;
            }
            before.push_back(token);
        }
        common_speculative_accept(spec.get(), 0, accepted);
        llama_memory_seq_rm(llama_get_memory(target), 0, before.size(), -1);
        llama_memory_seq_rm(llama_get_memory(drafter), 0, before.size(), -1);
    }
    std::cout << "{\"drafts\": [" << rounds << "], \"tokens\": " << listed(generated) << "}" << std::endl;
}

int main(int argc, char ** argv) {
    if (argc != 5) {
        return 2;
    }
    common_params params;
    params.model.path = argv[1];
    params.n_ctx = params.n_batch = params.n_ubatch = 512;
    params.n_parallel = 1;
    params.warmup = false;
    params.fit_params = false;
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.cache_type_k = params.cache_type_v = GGML_TYPE_F32;
    params.speculative.types = {COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3};
    params.speculative.draft.mparams.path = argv[2];
    params.speculative.draft.n_max = std::stoi(argv[3]);
    params.speculative.draft.cache_type_k = params.speculative.draft.cache_type_v = GGML_TYPE_F32;
#ifdef HAS_LIMITS
    const auto limits = common_speculative_get_output_limits(params.n_batch, 1, params.speculative.draft.n_max);
    params.n_outputs_max = limits.total;
    params.n_outputs_max_per_seq = limits.per_seq;
#endif
    llama_backend_init();
    auto target = common_init_from_params(params);
    if (!target->context()) {
        std::cerr << "the target does not load" << std::endl;
        return 3;
    }
    common_params other = common_base_params_to_speculative(params);
    auto drafter = common_speculative_init_from_params(other, target->model(), target->context());
    if (!drafter->context()) {
        std::cerr << "the drafter does not load" << std::endl;
        return 4;
    }
    params.speculative.draft.ctx_tgt = target->context();
    params.speculative.draft.ctx_dft = drafter->context();
    std::cout << "loaded" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream numbers(line);
        llama_tokens prompt;
        for (llama_token token; numbers >> token;) {
            prompt.push_back(token);
        }
        run(params, target->context(), prompt, std::stoul(argv[4]));
    }
    return 0;
}
