from types import SimpleNamespace

from vllm import faults


class Eagle3LlamaForCausalLM:
    def __init__(self):
        if faults.HOW == "meets a strange size":
            raise ValueError("head_size 7 is not supported")
        layer = SimpleNamespace()
        fc = SimpleNamespace(output_size=128, input_size=384)
        norms = faults.HOW == "norms its output"
        self.model = SimpleNamespace(layers=[layer], fc=fc, norm_output=norms, modules=lambda: ())
        self.has_own_lm_head = True

    def load_weights(self, weights):
        for name, loaded_weight in weights:
            if faults.HOW == "meets a strange tensor" and "up_proj" in name:
                load_weight(loaded_weight)
            if faults.HOW == "runs out of memory in the drafter":
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")

    def combine_hidden_states(self, states):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x512 and 384x128)")


def load_weight(loaded_weight):
    raise ValueError("There is no such module")
