"""A stand-in of vLLM: see tests/stand_in/README.md."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace as Space

from vllm import faults
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
from vllm.v1.core import kv_cache_utils
from vllm.v1.worker import gpu_model_runner

print("what vLLM prints is no answer")
__version__ = os.environ.get("STAND_IN_RELEASE", "0.32.0")
if faults.HOW == "dies at once":
    print("Illegal instruction", file=sys.stderr, flush=True)
    os._exit(4)
if faults.HOW == "lacks a package":
    import a_package_that_nobody_has  # noqa: F401

DRAFTS, ACCEPTED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos"
WIDTH = 128


class SamplingParams:
    def __init__(self, **given):
        self.given = given


class LLM:
    def __init__(self, **given):
        self.config = given.get("speculative_config")
        stdin = str(Path("/proc/self/fd/0").readlink())
        written = Path(os.environ["STAND_IN_GIVEN"] + ("" if self.config else ".plain"))
        written.write_text(json.dumps({**given, "stdin": stdin}))
        faults.at_start(given)
        if "kv_transfer_config" in given:
            extra = given["kv_transfer_config"]["kv_connector_extra_config"]
            self.folder = extra["shared_storage_path"]
            self.ids = self.config["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
        else:
            self.folder = None
        self.missing, self.drafts, self.given = 0, 0, given
        kv_cache_utils.check_enough_kv_cache_memory()
        loader = DefaultModelLoader()
        list(loader.get_all_weights(None, None))
        drafter = None
        if self.config and self.folder is None:
            drafter = Eagle3LlamaForCausalLM()
            drafter.load_weights(loader.get_all_weights(None, drafter))
        self.worker = Space(model_runner=gpu_model_runner.make(drafter))
        speculative = Space(draft_sample_method="probabilistic")
        config = Space(
            device_config=Space(device_type=os.environ.get("STAND_IN_DEVICE", "cpu")),
            model_config=Space(dtype="torch.float32"),
            speculative_config=speculative,
        )
        scheduler = Space(has_requests=lambda: self.missing > 0)
        self.llm_engine = Space(
            vllm_config=config, engine_core=Space(engine_core=Space(scheduler=scheduler)), step=self.step
        )

    def step(self):
        self.missing -= 1

    def collective_rpc(self, function, args=()):
        return [function(self.worker, *args)]

    def get_metrics(self):
        if faults.HOW == "does not count":
            return []
        counts = [self.drafts] * self.config["num_speculative_tokens"]
        return [Space(name=DRAFTS, value=self.drafts), Space(name=ACCEPTED, values=counts)]

    def generate(self, prompts, params, use_tqdm):
        if faults.at_generation(self.config):
            return []
        if self.folder is not None:
            return self.with_states(prompts, params)
        answers = []
        for prompt in prompts:
            first = prompt["prompt_token_ids"][-1]
            tokens = [first + step + 1 for step in range(params.given["max_tokens"])]
            self.drafts += bool(self.config) * max(1, (len(tokens) - 1) // 4)
            answers.append(Space(outputs=[Space(token_ids=tokens)]))
        return answers

    def with_states(self, prompts, params):
        """A state says which layer and which token it is of."""
        import torch
        from safetensors.torch import save_file

        answers = []
        for number, prompt in enumerate(prompts):
            ids = prompt["prompt_token_ids"]
            path = f"{self.folder}/{number}.safetensors"
            Path(path + ".lock").touch()
            layers = torch.tensor(self.ids)[None, :, None] * 1000
            states = (torch.tensor(ids)[:, None, None] + layers).float().expand(-1, -1, WIDTH).contiguous()
            save_file({"hidden_states": states, "token_ids": torch.tensor(ids)}, path)
            if faults.HOW == "truncates":
                os.truncate(path, 1000)
            count = params.given["max_tokens"]
            answer = Space(token_ids=[ids[-1] + step + 1 for step in range(count)])
            answers.append(Space(outputs=[answer], kv_transfer_params={"hidden_states_path": path}))
        self.missing = 2
        return answers
