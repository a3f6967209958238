"""Convert a model to the Marian format of Hugging Face transformers.

Its `AutoModelForSeq2SeqLM` and `AutoTokenizer` load the folder. From there, other tools convert it
to further formats. PyTorch is needed to load it, not to write it.
"""

import json
from pathlib import Path

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from ids import BOS, EOS, PAD, SPECIALS, UNK
from interop.optional import import_optional
from runtime.errors import InputError
from variants.ensemble import check_single_model

MAX_GENERATED_TOKENS = 512  # of a translation, unless the caller of `generate` sets a limit
# So low that <PAD> has no probability, and high enough for label smoothing, whose loss contains the
# mean of all logits.
PAD_LOGIT = -100.0


def write(loaded, path):
    """Write the model as a folder that transformers loads.

    Args:
      loaded: LoadedModel.
      path: folder that does not exist yet.
    """
    hp, model, path = loaded.hp, loaded.model, Path(path)
    check_single_model(model, "Hugging Face transformers")
    vocab = loaded.vocabs[0]
    check_no_symbols(vocab)
    safetensors = import_optional("safetensors.numpy")
    path.mkdir()
    tensors = {name: np.ascontiguousarray(v) for name, v in make_tensors(model).items()}
    # transformers 4 refuses a file without this metadata.
    content = safetensors.save(tensors, metadata={"format": "pt"})
    (path / "model.safetensors").write_bytes(content)
    for name, side in zip(("source.spm", "target.spm"), loaded.vocabs, strict=True):
        (path / name).write_bytes(side.content)
    files = {
        "config.json": model_config(hp, len(vocab)),
        "generation_config.json": generation_config(hp),
        "tokenizer_config.json": tokenizer_config(hp),
        "vocab.json": {token: i for i, token in enumerate(vocab.tokens())},
    }
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=2)
        (path / name).write_text(f"{text}\n", "utf-8")


def check_no_symbols(vocab):
    """Raise InputError if a vocabulary has words of the flag --symbols.

    Marian's tokenizer takes a word like >>de<< out of the text, and puts it first, without the
    subword of the space before it.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(vocab.content)
    symbols = [piece.piece for piece in proto.pieces if piece.type == piece.USER_DEFINED]
    if symbols:
        raise InputError(
            f"{vocab.path}: has the symbols {','.join(symbols)}, which Hugging Face's tokenizer"
            " treats in another way. Export with --format saved_model"
        )


# Configuration -----------------------------------------------------------------


def special_ids() -> dict:
    """The ids of special tokens, which would differ by default."""
    ids = dict(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    return ids | dict(decoder_start_token_id=BOS)


def model_config(hp, vocab_size) -> dict:
    """The content of config.json. Defaults of Marian differ, so each key is needed."""
    sizes = {
        f"{side}_{name}": value
        for side, num_blocks in hp.block_counts.items()
        for name, value in dict(
            layers=num_blocks,
            attention_heads=hp.num_heads,
            ffn_dim=hp.ffn_units or 4 * hp.hidden_units,
        ).items()
    }
    weight_dropout = hp.attention_dropout if hp.dropout_on == "sublayers" else hp.dropout_rate
    return (
        special_ids()
        | sizes
        | dict(
            architectures=["MarianMTModel"],
            model_type="marian",
            is_encoder_decoder=True,
            vocab_size=vocab_size,
            decoder_vocab_size=vocab_size,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            d_model=hp.hidden_units,
            scale_embedding=True,
            activation_function="relu",
            # <S>, and the longest translation of the longest source.
            max_position_embeddings=1 + hp.max_output_tokens(hp.max_input_tokens),
            dropout=hp.dropout_rate,
            attention_dropout=weight_dropout,
            activation_dropout=hp.ffn_dropout,
            forced_eos_token_id=None,
            use_cache=True,
            dtype="float32",
        )
    )


def generation_config(hp) -> dict:
    """The content of generation_config.json: how `generate` searches by default."""
    config = special_ids() | dict(
        num_beams=hp.beam,
        max_length=MAX_GENERATED_TOKENS,
        bad_words_ids=[[PAD], [UNK]] if hp.suppress_unknown else [[PAD]],
        no_repeat_ngram_size=hp.no_repeat_ngram,
    )
    if hp.beam == 1:
        return config
    # transformers divides by length**length_penalty, as CTranslate2 does.
    alpha = hp.alpha if hp.length_penalty == "ctranslate2" else 1.0
    return config | dict(length_penalty=alpha, early_stopping=True)


def tokenizer_config(hp) -> dict:
    """The content of tokenizer_config.json."""
    return dict(
        tokenizer_class="MarianTokenizer",
        source_lang=hp.source_lang,
        target_lang=hp.target_lang,
        unk_token=SPECIALS[UNK],
        bos_token=SPECIALS[BOS],
        eos_token=SPECIALS[EOS],
        pad_token=SPECIALS[PAD],
        model_max_length=hp.max_input_tokens,
        separate_vocabs=False,
        clean_up_tokenization_spaces=False,  # else the space before a period would be lost
    )


# Parameters --------------------------------------------------------------------


def make_tensors(model) -> dict:
    """Convert the parameters of a built `Transformer` to those of `MarianMTModel`, by name.

    Marian has the sines of its positions in the first half of the units and the cosines in the
    second; here they alternate. So the units are sorted, in everything that reads or writes
    them. The shared matrix is stored once: Marian ties the output layer to it.
    """
    units = np.arange(model.hp.hidden_units)
    units = np.concatenate([units[::2], units[1::2]])
    table = model.enc_input.tokens.padded_table().numpy()[:, units]  # (V, C)
    bias = np.zeros((1, len(table)), np.float32)
    bias[0, PAD] = PAD_LOGIT
    tensors = {"model.shared.weight": table, "final_logits_bias": bias}
    for i, block in enumerate(model.enc_blocks):
        name = f"model.encoder.layers.{i}"
        tensors |= attention_tensors(block.self_attention, f"{name}.self_attn", units)
        tensors |= feedforward_tensors(block.feedforward, name, units)
    for i, block in enumerate(model.dec_blocks):
        name = f"model.decoder.layers.{i}"
        tensors |= attention_tensors(block.self_attention, f"{name}.self_attn", units)
        tensors |= attention_tensors(block.vanilla_attention, f"{name}.encoder_attn", units)
        tensors |= feedforward_tensors(block.feedforward, name, units)
    return tensors


def attention_tensors(attention, name, units) -> dict:
    """Convert a `MultiheadAttention` and its normalization, with the units in a new order."""
    tensors = normalize_tensors(attention.add_norm.normalize, f"{name}_layer_norm", units)
    for letter, layer in zip("qkv", (attention.query, attention.key, attention.value), strict=True):
        tensors[f"{name}.{letter}_proj.weight"] = layer.kernel.numpy()[units].T
        tensors[f"{name}.{letter}_proj.bias"] = layer.bias.numpy()
    if attention.output_projection:
        kernel = attention.output_projection.kernel.numpy()
        bias = attention.output_projection.bias.numpy()
    else:
        kernel, bias = np.eye(len(units), dtype="float32"), np.zeros(len(units), "float32")
    tensors[f"{name}.out_proj.weight"] = kernel[:, units].T
    tensors[f"{name}.out_proj.bias"] = bias[units]
    return tensors


def feedforward_tensors(feedforward, name, units) -> dict:
    """Convert a `Feedforward` and its normalization, with the units in a new order."""
    inner, outer = feedforward.inner, feedforward.outer
    return normalize_tensors(feedforward.add_norm.normalize, f"{name}.final_layer_norm", units) | {
        f"{name}.fc1.weight": inner.kernel.numpy()[units].T,
        f"{name}.fc1.bias": inner.bias.numpy(),
        f"{name}.fc2.weight": outer.kernel.numpy()[:, units].T,
        f"{name}.fc2.bias": outer.bias.numpy()[units],
    }


def normalize_tensors(normalize, name, units) -> dict:
    """Convert a `Normalize`, with the units in a new order."""
    return {
        f"{name}.weight": normalize.gamma.numpy()[units],
        f"{name}.bias": normalize.beta.numpy()[units],
    }
