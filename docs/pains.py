"""What users met, and what catches it: 63 public reports, numbered as they were collected, with the rules that answer them.

`rules` are ids of rules; `also` names what catches it where no look at files can (smoke), or what else in eaglectl answers it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pain:
    """One report: what was seen, why, where it is told, and what catches it."""

    number: int
    seen: str
    cause: str
    link: str
    rules: tuple[str, ...] = ()
    also: str = ""


# fmt: off
PAINS = (
    Pain(1, "converted cleanly, nothing is accepted", "tensors without a match kept random values", "vllm-project/speculators#1114", ("EGL201", "EGL202", "EGL207")),
    Pain(2, "nothing is accepted at any position", "`midlayer.*` was not renamed to `layers.0.*`", "vllm-project/speculators#1114", ("EGL201", "EGL209")),
    Pain(3, "a head of two layers is weaker than trained", "the converter knew one layer and dropped the other", "vllm-project/speculators#812", ("EGL105",)),
    Pain(4, "an EAGLE-3.1 head loses its norms", "the converter knew no `fc_norm` and no `input_norm`", "vllm-project/speculators#670", ("EGL501", "EGL502")),
    Pain(5, "the server is up and the acceptance length is 1.00", "no `lm_head` in the file though a draft vocabulary is declared", "sgl-project/sglang#27908", ("EGL201", "EGL1065", "EGL1107"), "smoke"),
    Pain(6, "`KeyError: midlayer.self_attn.qkv_proj.weight`", "the architecture is the target's", "sgl-project/sglang#9135", ("EGL101",)),
    Pain(7, "`KeyError: embed_tokens.weight`, then a width does not fit", "a head of another width than its target's needs its own embedding", "vllm-project/vllm#18906", ("EGL201", "EGL701")),
    Pain(8, "poor acceptance in vLLM, good in SGLang", "a random `embed_tokens` was exported; vLLM keeps it, SGLang replaces it", "lightseekorg/TorchSpec#38", ("EGL704",)),
    Pain(9, "acceptance collapses in the engine only", "`d2t` lies in a side file that engines do not read", "NVIDIA-NeMo/Automodel#2447", ("EGL310",)),
    Pain(10, "wrong drafts, no error", "what the file lacks keeps whatever the memory held", "sgl-project/sglang#16235", ("EGL201", "EGL205", "EGL206", "EGL215")),
    Pain(11, "`KeyError: fc.bias`; \"found bias in the loaded weights\"", "the flag for biases and the tensors disagree", "vllm-project/vllm#11126", ("EGL108",)),
    Pain(12, "the architecture is not supported", "`architectures` is missing", "vllm-project/vllm#30987", ("EGL101",)),
    Pain(13, "`EagleQwen2ForCausalLM` is not supported", "that release has no such class", "vllm-project/vllm#24967", ("EGL1003",)),
    Pain(14, "does not load in SGLang only", "the architecture has vLLM's name", "sgl-project/sglang#24077", ("EGL119", "EGL1102")),
    Pain(15, "SGLang cannot load a checkpoint of speculators", "it does not know that format", "sgl-project/sglang#18216", ("EGL1101",)),
    Pain(16, "an acceptance length of exactly 1.0, no warning", "an EAGLE-3 head was started as EAGLE", "sgl-project/sglang#21272", (), "smoke; `inspect` prints the command"),
    Pain(17, "the target is loaded twice, then a crash", "EAGLE-3 was asked for without a drafter", "sgl-project/sglang#36528", ("EGL103",), "`inspect` prints the command"),
    Pain(18, "\"eagle3 only supports one layer\"", "`num_hidden_layers` is the target's", "sgl-project/SpecForge#129", ("EGL105",)),
    Pain(19, "index out of bounds, or wrong tokens", "`d2t` holds ids where offsets are read", "verl-project/verl-SpeCo#67", ("EGL302", "EGL306")),
    Pain(20, "only the first tokens of the vocabulary are ever drafted", "a reduced vocabulary without a map", "verl-project/verl-SpeCo#66", ("EGL307", "EGL310")),
    Pain(21, "acceptance collapses after fine-tuning", "the map was made anew, the head was not", "sgl-project/SpecForge#534", ("EGL705",), "smoke"),
    Pain(22, "sizes 32000 and 6054 do not fit", "fewer tokens were seen than the draft vocabulary has", "sgl-project/SpecForge#76", ("EGL301",)),
    Pain(23, "\"all d2t are 0, is it broken?\"", "right for a full vocabulary only", "SafeAILab/EAGLE#222", ("EGL307",)),
    Pain(24, "a broken `d2t` has the right length", "its values were not looked at", "mobilint/mblt-model-zoo#110", ("EGL302",)),
    Pain(25, "a pruned head is useless", "rows of `lm_head` were taken by offset", "TorchSpec, tools/convert_to_hf.py", ("EGL208",)),
    Pain(26, "a mean acceptance of 1.12 in place of 2.99", "the engine did not apply `d2t`", "vllm-project/vllm#18909", (), "smoke"),
    Pain(27, "vLLM refuses, or takes wrong sizes", "`vocab_size` holds the draft vocabulary", "vllm-project/speculators#188", ("EGL702", "EGL708")),
    Pain(28, "garbled text", "the drafter and the target have other tokenizers", "SafeAILab/EAGLE#258", ("EGL703", "EGL708"), "smoke"),
    Pain(29, "the acceptance length falls by 0.10", "two conventions of layer ids; SGLang added one always", "sgl-project/sglang#25454", ("EGL405", "EGL406", "EGL1117")),
    Pain(30, "10 % accepted at the first position in place of 45 %", "the same in vLLM", "vllm-project/vllm#43671", ("EGL405", "EGL406", "EGL1036")),
    Pain(31, "1.21 % accepted", "no layer ids in the file, and a guess that was wrong", "vllm-project/vllm#50170", ("EGL409", "EGL410", "EGL1036")),
    Pain(32, "4096x16384 does not fit 4096x12288", "four aux layers, and the count is not where vLLM reads it", "vllm-project/vllm#54526", ("EGL401", "EGL408", "EGL1014")),
    Pain(33, "converted, low acceptance", "the ids at the top level and the nested ones differ", "ggml-org/llama.cpp#27040", ("EGL404",)),
    Pain(34, "8640 does not fit 5760, then low acceptance", "ids moved by one beyond the last layer; `input_norm` dropped", "sgl-project/sglang#32334", ("EGL402",)),
    Pain(35, "an aux state is missing without a word", "an id that the target's class never reaches", "vllm-project/vllm#46788", ("EGL402",)),
    Pain(36, "nobody knows which layers were trained on", "off by one when states were captured", "lightseekorg/TorchSpec#87", ("EGL405", "EGL901"), "smoke"),
    Pain(37, "a head without aux states does not load", "`use_aux_hidden_state` and `fc` disagree", "vllm-project/vllm#27688", ("EGL407",)),
    Pain(38, "the flags of EAGLE-3.1 are false without a word", "the release does not pass them on", "vllm-project/vllm#46488", ("EGL1015", "EGL1040", "EGL1041")),
    Pain(39, "a head that is neither 3 nor 3.1", "SpecForge's `norm_output` meant something else before September 2026", "sgl-project/SpecForge#879", ("EGL505",), "smoke"),
    Pain(40, "states explode, low acceptance", "`norm_before_fc` is not set, and vLLM drops `input_norm`", "vllm-project/speculators#337", ("EGL502", "EGL1024")),
    Pain(41, "the residual takes the wrong path", "`norm_before_residual` is absent, and every reader assumes another value", "vllm-project/vllm#25961", ("EGL110", "EGL1027", "EGL1104")),
    Pain(42, "63 % in training, 10 % accepted", "the targets were made with the wrong norm", "vllm-project/speculators#1038", (), "smoke"),
    Pain(43, "index 2048 out of bounds", "`max_position_embeddings` of the drafter is small and sizes a cache", "vllm-project/vllm#48894", ("EGL603", "EGL1068")),
    Pain(44, "beyond 2,000 tokens slower than without a drafter", "it was trained no further", "sgl-project/sglang#6783", ("EGL603",), "smoke"),
    Pain(45, "acceptance wears off with length", "`rope_scaling` was lost on the way", "vllm-project/speculators#574", ("EGL602",)),
    Pain(46, "the rope base becomes 10000", "transformers 5 reads it from another key", "NVIDIA-NeMo/Automodel#2920", ("EGL604", "EGL1048")),
    Pain(47, "the rope base of the file is not that of the training", "the trainer ignored it", "sgl-project/SpecForge#265", ("EGL607",), "smoke"),
    Pain(48, "accuracy falls", "the drafter's rope is not the target's, and the engine has one cache", "vllm-project/vllm-ascend#6612", ("EGL601", "EGL602")),
    Pain(49, "an MLA head with turned phases", "pairs of rope are neighbours or halves", "TorchSpec, d34954b", ("EGL605",), "smoke"),
    Pain(50, "4096x5120 does not fit 2560x5120", "`head_dim` is not width over heads", "SafeAILab/EAGLE#315", ("EGL106",)),
    Pain(51, "`KeyError: layers.0.mlp.down_proj.weight`", "the drafter took over the target's quantisation", "vllm-project/vllm#25883", ("EGL801", "EGL1069")),
    Pain(52, "a quantised drafter does not load", "its lists name modules that are not there", "vllm-project/vllm#37280", ("EGL802",)),
    Pain(53, "0 % in float16, fine in bfloat16", "bfloat16 weights cast to float16, or no dtype stated", "vllm-project/vllm#55250", ("EGL204", "EGL211", "EGL214"), "smoke"),
    Pain(54, "confusion about tensor parallelism", "heads or widths do not divide", "vllm-project/vllm#31398", ("EGL707",)),
    Pain(55, "`StrictDataclassFieldValidationError`", "`null` where a value is needed", "NVIDIA/Model-Optimizer#1417", ("EGL104", "EGL1007")),
    Pain(56, "the sliding window is not applied", "the release does not read the drafter's `layer_types`", "vllm-project/speculators#684", ("EGL1034", "EGL1116")),
    Pain(57, "\"mask_hidden not found\"", "a P-EAGLE head without the tensor, or on SGLang", "NeMo Automodel, serve_sglang", ("EGL116", "EGL201", "EGL1106")),
    Pain(58, "the wrong head", "`tie_word_embeddings` makes SGLang take the embedding", "wejoncy/sfllm#32", ("EGL107", "EGL1108")),
    Pain(59, "nobody can serve it as published", "a path of the trainer's machine in the config", "vllm-project/speculators#1065", ("EGL109", "EGL905")),
    Pain(60, "a dead drafter passes", "a baseline of 1.0097 and a gate below it", "NVIDIA/TensorRT-LLM#18905", (), "smoke"),
    Pain(61, "acceptance fell, the drafter did not change", "the engine did", "vllm-project/vllm#26191", (), "smoke"),
    Pain(62, "which numbers can be compared?", "acceptance length has four definitions", "SafeAILab/EAGLE#195", (), "smoke states its definition"),
    Pain(63, "\"how do I use it in vLLM 0.20?\"", "the card does not say", "AQ-MedAI/Qwen3.5-397B-A17B-eagle3 on the Hub", ("EGL903",), "`inspect` prints the commands"),
)
