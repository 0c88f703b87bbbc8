"""Makes a tiny Llama that a real engine can serve: two layers, random weights, a tokenizer of its own, a chat template.

Run by the *engine's* python (it has torch, transformers and tokenizers), never imported by the tests:

    python build_tiny_llama.py OUTPUT TEXT [TEXT ...]

The byte-level BPE tokenizer is trained on the files TEXT, so that common words are single tokens and prompts of an exact
length exist. Random weights answer with random tokens, the end token among them: whoever wants a given length has to ask
for it. The folder appears under its name only when it is complete.
"""

import shutil
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
CONTEXT_TOKENS = 2048
BEGIN, END, PAD, ROLE_START, ROLE_END = "<|begin|>", "<|end|>", "<|pad|>", "<|role|>", "<|/role|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    + ROLE_START
    + "{{ message['role'] }}"
    + ROLE_END
    + "{{ message['content'] }}"
    + END
    + "{% endfor %}{% if add_generation_prompt %}"
    + ROLE_START
    + "assistant"
    + ROLE_END
    + "{% endif %}"
)


def tokenizer_of(texts: list[Path]) -> PreTrainedTokenizerFast:
    """Byte-level BPE without an unknown token: every text has an encoding."""
    special = [BEGIN, END, PAD, ROLE_START, ROLE_END]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text.read_text(encoding="utf-8") for text in texts), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(
            f"the texts give a vocabulary of {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}: train on more text"
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, pad_token=PAD, model_max_length=CONTEXT_TOKENS
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def model_of(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=CONTEXT_TOKENS,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
    ).to(torch.bfloat16)


def main(output: Path, texts: list[Path]) -> None:
    unfinished = output.with_name(f"{output.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    tokenizer = tokenizer_of(texts)
    tokenizer.save_pretrained(unfinished)
    model_of(tokenizer).save_pretrained(unfinished)
    unfinished.rename(output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(text) for text in sys.argv[2:]])
