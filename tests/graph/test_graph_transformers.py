"""Models that we did not write: every module that ran is there, and nothing hangs loose."""

from __future__ import annotations

import pytest
import torch
from reading import flow
from torch import nn

transformers = pytest.importorskip("transformers")

TOKENS = torch.arange(10).reshape(2, 5)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=4, n_head=2, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": TOKENS, "labels": TOKENS}


def llama():
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": TOKENS, "labels": TOKENS}


def t5():
    config = transformers.T5Config(
        vocab_size=16,
        d_model=8,
        d_kv=4,
        d_ff=16,
        num_layers=3,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config), {
        "input_ids": TOKENS,
        "labels": TOKENS,
    }


def vit():
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_channels=3,
    )
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    }


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        max_position_embeddings=8,
    )
    return transformers.MixtralForCausalLM(config), {"input_ids": TOKENS, "labels": TOKENS}


def run_modules(model: nn.Module, inputs: dict) -> set[str]:
    """The paths of all modules that are called, by hooks of our own."""
    seen: set[str] = set()
    handles = [
        m.register_forward_pre_hook(lambda _m, _a, path=path: seen.add(path))
        for path, m in model.named_modules()
    ]
    model(**inputs)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("make", [gpt2, llama, t5, vit, mixtral])
def test_every_module_that_ran_is_there_and_joined(graph_of, make):
    torch.manual_seed(0)
    model, inputs = make()
    ran = run_modules(model, inputs)
    graph = graph_of(model, call=lambda m, _: m(**inputs).logits.sum().backward(), steps=2)
    assert {n.module for n in graph.nodes if n.kind == "module"} == ran
    joined = {n for e in graph.edges for n in (e.source, e.target)}
    loose = {n.id for n in graph.nodes if n.id not in joined and n.id != "."}
    assert not loose
    assert graph.passes == 2
    assert graph.note == ""
    for node in graph.nodes:
        if node.kind == "module" and graph.inside.get(node.id):
            reached = _reached(graph, node.id)
            outputs = {n.id for n in graph.inside[node.id] if n.kind == "output"}
            assert outputs <= reached, f"nothing flows to the outputs of {node.id}"


def _reached(graph, level):
    """Everything that data from an input (or from nowhere else) reaches inside a call."""
    edges = graph.edges_inside.get(level, ())
    targets = {e.target for e in edges}
    found = {n.id for n in graph.inside[level] if n.id not in targets and n.kind != "output"}
    while True:
        more = {e.target for e in edges if e.source in found} - found
        if not more:
            return found
        found |= more


def test_a_block_of_gpt2(graph_of):
    model, inputs = gpt2()
    graph = graph_of(model, call=lambda m, _: m(**inputs))
    block = "transformer.h.1"
    assert flow(graph, block) == {
        f"{block}/input/0 -> {block}.ln_1",
        f"{block}.ln_1 -> {block}.attn",
        f"{block}.attn -> {block}.ln_2",
        f"{block}/input/0 -> {block}.ln_2",
        f"{block}.ln_2 -> {block}.mlp",
        f"{block}.mlp -> {block}/output/0",
        f"{block}.attn -> {block}/output/0",
        f"{block}/input/0 -> {block}/output/0",
    } | {e for e in flow(graph, block) if "/input/0" not in e and "/input/" in e}
    assert flow(graph, f"{block}.mlp") == {
        f"{block}.mlp/input/0 -> {block}.mlp.c_fc",
        f"{block}.mlp.c_fc -> {block}.mlp.act",
        f"{block}.mlp.act -> {block}.mlp.c_proj",
        f"{block}.mlp.c_proj -> {block}.mlp.dropout",
        f"{block}.mlp.dropout -> {block}.mlp/output/0",
    }


def test_a_block_of_llama(graph_of):
    model, inputs = llama()
    graph = graph_of(model, call=lambda m, _: m(**inputs))
    block = "model.layers.2"
    inside = flow(graph, block)
    assert f"{block}.self_attn -> {block}.post_attention_layernorm" in inside
    assert f"{block}/input/0 -> {block}.post_attention_layernorm" in inside
    assert f"{block}.mlp -> {block}/output/0" in inside
    assert f"{block}.input_layernorm -> {block}.mlp" not in inside
    assert flow(graph, f"{block}.mlp") == {
        f"{block}.mlp/input/0 -> {block}.mlp.gate_proj",
        f"{block}.mlp/input/0 -> {block}.mlp.up_proj",
        f"{block}.mlp.gate_proj -> {block}.mlp.act_fn",
        f"{block}.mlp.act_fn -> {block}.mlp.down_proj",
        f"{block}.mlp.up_proj -> {block}.mlp.down_proj",
        f"{block}.mlp.down_proj -> {block}.mlp/output/0",
    }
    attention = flow(graph, f"{block}.self_attn")
    for name in ("q_proj", "k_proj", "v_proj"):
        assert f"{block}.self_attn.{name} -> {block}.self_attn.o_proj" in attention


def test_the_decoder_of_t5_reads_the_encoder(graph_of):
    model, inputs = t5()
    graph = graph_of(model, call=lambda m, _: m(**inputs))
    assert "encoder -> decoder" in flow(graph)
    cross = "decoder.block.1"
    assert any(e.endswith(f"-> {cross}.layer.1") and "/input/" in e for e in flow(graph, cross)), (
        "cross-attention takes what the block was given"
    )


def test_repeated_blocks_fold(graph_of):
    from sonde.graph.folding import Folder

    model, inputs = llama()
    graph = graph_of(model, call=lambda m, _: m(**inputs))
    level = graph.level("model")
    folded = Folder(graph).fold(level.nodes, level.edges)
    (blocks,) = [f for f in folded.folds if len(f.members) > 1]
    assert [n.module for n in blocks.members] == [f"model.layers.{i}" for i in range(4)]
    assert blocks.flow == "chain"
    edges = {f"{e.source} -> {e.target}" for e in folded.edges}
    assert {"model.embed_tokens -> model.layers.0", "model.layers.0 -> model.norm"} <= edges
