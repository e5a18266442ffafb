"""Models that we did not write: each trains three watched steps, and every number is right."""

import warnings

import pytest
import torch
import transformers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from witness import Witness

TOKENS = 40


def gpt2(layers=2):
    config = GPT2Config(vocab_size=TOKENS, n_positions=16, n_embd=16, n_layer=layers, n_head=2)
    return GPT2LMHeadModel(config), text()


def llama(layers=2):
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config), text()


def t5():
    config = T5Config(
        vocab_size=TOKENS,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_decoder_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), text()


def vit():
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    inputs = {"pixel_values": torch.randn(2, 3, 8, 8), "labels": torch.tensor([0, 2])}
    return ViTForImageClassification(config), inputs


def mixtral():
    config = MixtralConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=True,
    )
    return MixtralForCausalLM(config), text()


def whisper():
    config = WhisperConfig(
        vocab_size=TOKENS,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=8,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    inputs = {"input_features": torch.randn(2, 8, 16), "labels": torch.randint(4, TOKENS, (2, 6))}
    return WhisperForConditionalGeneration(config), inputs


def text():
    ids = torch.randint(4, TOKENS, (2, 8))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


MODELS = {f.__name__: f for f in (gpt2, llama, t5, vit, mixtral, whisper)}


@pytest.mark.parametrize("name", MODELS)
def test_every_module_of_a_real_model_is_recorded_right(watching, name):
    torch.manual_seed(0)
    transformers.utils.logging.set_verbosity_error()
    model, inputs = MODELS[name]()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    witness = Witness(model, optimizer)
    ran = set()
    for path, module in model.named_modules():
        module.register_forward_hook(lambda m, a, y, p=path: ran.add(p))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch, memory = watching(model, optimizer)
        for _ in range(3):
            model(**inputs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
    witness.check(memory)
    outputs = {i.site.module for i in memory.infos.values() if i.site.kind == "output"}
    assert outputs == ran
    assert memory.counted("skipped") == {}
    assert memory.counted("failed") == {}


def test_generation_inside_of_training_is_a_phase_of_its_own(watching):
    torch.manual_seed(0)
    model, inputs = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch, memory = watching(model, optimizer, log=["output"], max_calls=4)
    model.train()
    model(**inputs).loss.backward()
    optimizer.step()
    model.eval()
    with watch.phase("samples"):
        model.generate(inputs["input_ids"], max_new_tokens=3, do_sample=False, pad_token_id=0)
    model.train()
    model(**inputs).loss.backward()
    optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train"), (0, "samples"), (1, "train")]
    generated = memory.at(0, "samples")["lm_head/output/0"].count
    assert generated == 3 * 2 * TOKENS  # one new token per pass, two sequences


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_a_real_model_counts_once(watching, reentrant):
    def run(checkpointing):
        torch.manual_seed(0)
        model, inputs = llama()
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        watch, memory = watching(model, optimizer, log="default")
        for _ in range(2):
            model(**inputs, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
        return memory

    plain, saved = run(False), run(True)
    for step in (0, 1):
        # With inputs that want gradients, the embedding's output has one too.
        assert set(plain.at(step)) <= set(saved.at(step))
        for name, sketch in plain.at(step).items():
            assert saved.at(step)[name].count == sketch.count, name
            assert saved.at(step)[name].norm == pytest.approx(sketch.norm, rel=1e-5), name
