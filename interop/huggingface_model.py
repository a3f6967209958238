"""Convert a model to the Marian format of Hugging Face transformers.

Its `AutoModelForSeq2SeqLM` and `AutoTokenizer` load the folder. From there, other tools convert it
to further formats. PyTorch is needed to load it, not to write it.
"""

import json
from pathlib import Path

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from ids import BOS, EOS, PAD, SPECIALS, UNK
from interop.marian_names import PAD_LOGIT, layer_places, unit_order
from runtime.errors import InputError
from runtime.optional import import_optional
from variable_names import variables_by_2017_name

MAX_GENERATED_TOKENS = 512  # of a translation, unless the caller of `generate` sets a limit


def write(loaded, path):
    """Write the model as a folder that transformers loads.

    Args:
      loaded: LoadedModel.
      path: folder that does not exist yet.
    """
    hp, model, path = loaded.hp, loaded.model, Path(path)
    vocab = loaded.vocabs[1]  # that of sources has a space before symbols
    check_kind(hp)
    check_no_symbols(loaded.vocabs[0])
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


def check_kind(hp):
    """Raise InputError if Marian has no such model."""
    kind = hp.model, hp.attention_score, hp.mask_from, hp.relu_projections, hp.residual
    kind += hp.positions, hp.normalization, hp.tied_embeddings
    usual = "transformer", "scaled_dot", "ids", False, True, "paired_sinusoid", "post", True
    if kind != usual:
        raise InputError(
            "Marian has no such model. Export with --format saved_model, or train with --positions"
            " paired_sinusoid --normalization post and one vocabulary for both languages"
        )


def check_no_symbols(vocab):
    """Raise InputError if a vocabulary has words of the flag --symbols.

    Marian's tokenizer takes a word like >>de<< out of the text, and puts it first, without the
    subword of the space before it. Symbols that have the space are those of Marian itself.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(vocab.content)
    for piece in proto.pieces:
        if piece.type == piece.USER_DEFINED and not piece.piece.startswith("▁"):
            raise InputError(
                f"{vocab.path}: has the symbol {piece.piece}, which Hugging Face's tokenizer treats"
                " in another way. Export with --format saved_model"
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
            activation_function=hp.ffn_activation,
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
    return special_ids() | dict(
        num_beams=hp.beam,
        early_stopping=hp.beam > 1,
        max_length=MAX_GENERATED_TOKENS,
        bad_words_ids=[[PAD], [UNK]],
        no_repeat_ngram_size=hp.no_repeat_ngram,
    )


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

    The shared matrix is stored once: Marian ties the output layer to it.
    """
    hp, order = model.hp, unit_order(model.hp.hidden_units)
    variables = {name: v.numpy() for name, v in variables_by_2017_name(model).items()}
    table = model.enc_input.tokens.padded_table().numpy()[:, order]  # (V, C)
    bias = variables.get("dense/bias", np.zeros(len(table), np.float32))
    bias[PAD] = PAD_LOGIT
    tensors = {"model.shared.weight": table, "final_logits_bias": bias[None]}
    identity = dict(kernel=np.eye(hp.hidden_units, dtype="float32"))
    identity["bias"] = np.zeros(hp.hidden_units, "float32")
    for name, (variable, unit_axes) in layer_places(hp).items():
        # A model without an output projection lacks dense_3.
        array = variables.get(variable, identity.get(variable.rpartition("/")[2]))
        for axis in unit_axes:
            array = array.take(order, axis)
        tensors[name] = array.T
    return tensors
