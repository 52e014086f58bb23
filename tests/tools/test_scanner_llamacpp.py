"""The table of llama.cpp's targets is read from its converter's classes and the graphs that they name."""

from pathlib import Path

from tools.scan.llamacpp_sources import targets

CONVERTER = """
@ModelBase.register("OlmoForCausalLM")
@ModelBase.register("OLMoForCausalLM", "OldOlmo")
@ModelBase.example("allenai/OLMo-1.7-7B-hf")
class OlmoModel(TextModel):
    model_arch = gguf.MODEL_ARCH.OLMO

@ModelBase.register("ChildForCausalLM")  # of another's graph
class ChildModel(OlmoModel):
    pass

@ModelBase.register("SomeTower")
class Tower(MmprojModel):
    model_arch = gguf.MODEL_ARCH.MMPROJ

class Helper:
    pass
"""
FILES = {
    "conversion/olmo.py": CONVERTER,
    "gguf-py/gguf/constants.py": 'MODEL_ARCH.OLMO: "olmo",',
    "src/llama-arch.cpp": '{ LLM_ARCH_OLMO, "olmo" },',
    "src/llama-model.cpp": "case LLM_ARCH_OLMO:\n    return new llama_model_olmo(params);",
    "src/models/models.h": "struct llama_model_olmo : public llama_model_base {\n};",
    "src/models/olmo.cpp": "llama_model_olmo::build_arch_graph() {\n    res->t_layer_inp[il] = inpL;\n}",
}


def sources(folder: Path, **changed: str) -> Path:
    """A folder with the few files of llama.cpp that the table is read from."""
    for name, text in {**FILES, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_decorator_of_a_class_registers(tmp_path: Path) -> None:
    found = list(targets(sources(tmp_path)))
    assert found == ["ChildForCausalLM", "OLMoForCausalLM", "OldOlmo", "OlmoForCausalLM"]


def test_a_class_captures_where_its_graph_keeps_the_inputs_of_layers(tmp_path: Path) -> None:
    assert targets(sources(tmp_path))["OlmoForCausalLM"] == {"captures": True, "source": "olmo.cpp:2"}


def test_a_class_without_a_graph_of_its_own_has_its_parent_s(tmp_path: Path) -> None:
    without = {"src/models/olmo.cpp": "llama_model_olmo::build_arch_graph() {\n}"}
    found = targets(sources(tmp_path, **without))
    assert found["ChildForCausalLM"] == {"captures": False, "source": "olmo.cpp"}
