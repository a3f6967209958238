"""Convert a model to the format of CTranslate2.

CTranslate2 (https://opennmt.net/CTranslate2) is a decoder in C++, which can also multiply in int8.
"""

from pathlib import Path

import numpy as np

from ids import BOS, EOS, SPECIALS, UNK
from inference import suppressed_ids
from modules import Normalize
from runtime.errors import InputError
from runtime.optional import import_optional

PAD_LOGIT = -1e9  # so low that the token is never chosen


def write(loaded, path, quantization="float32"):
    """Write the model as a folder that `ctranslate2.Translator` loads.

    The folder contains the vocabularies and, for a subword model, its sentencepiece model
    `bpe.model`, or one per language.

    Args:
      loaded: LoadedModel.
      path: folder that does not exist yet.
      quantization: type of the matrices, "float32" or "int8".
    """
    hp, model, vocabs = loaded.hp, loaded.model, loaded.vocabs
    check_kind(hp)
    spec = make_spec(hp, model)
    source, target = (vocab.tokens() for vocab in vocabs)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.validate()
    spec.optimize(quantization)
    Path(path).mkdir()
    spec.save(str(path))
    if hp.tokenizer == "bpe":
        for vocab in dict.fromkeys(vocabs):
            (Path(path) / vocab.path.name).write_bytes(vocab.content)


def check_kind(hp):
    """Raise InputError if CTranslate2 has no such model."""
    kind = hp.model, hp.attention_score, hp.mask_from, hp.relu_projections, hp.residual
    has_positions = hp.positions in ("learned", "sinusoid", "paired_sinusoid", "t5")
    usual = "transformer", "scaled_dot", "ids", False, True
    if kind != usual or not has_positions or hp.normalization == "none":
        raise InputError("CTranslate2 has no such model. Export with --format saved_model")


def make_spec(hp, model):
    """Convert a built `Transformer` to a `ctranslate2.specs.TransformerSpec`."""
    specs = import_optional("ctranslate2").specs
    pre_norm = hp.normalization == "pre"
    spec = specs.TransformerSpec.from_config(
        tuple(hp.block_counts.values()),
        hp.num_heads,
        pre_norm=pre_norm,
        activation=specs.common_spec.Activation[hp.ffn_activation.upper()],
        relative_attention_bias=hp.positions == "t5",
    )
    spec.config.unk_token, spec.config.eos_token = SPECIALS[UNK], SPECIALS[EOS]
    spec.config.bos_token = spec.config.decoder_start_token = SPECIALS[BOS]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = Normalize().epsilon
    set_input(spec.encoder, spec.encoder.embeddings[0], model.enc_input, hp)
    set_input(spec.decoder, spec.decoder.embeddings, model.dec_input, hp)
    encoder = spec.encoder.layer, model.enc_blocks, model.enc_positions
    decoder = spec.decoder.layer, model.dec_blocks, model.dec_positions
    for layer, block, positions in zip(*encoder, strict=True):
        set_self_attention(layer.self_attention, block.self_attention, positions)
        set_feedforward(layer.ffn, block.feedforward)
    for layer, block, positions in zip(*decoder, strict=True):
        set_self_attention(layer.self_attention, block.self_attention, positions)
        set_cross_attention(layer.attention, block.vanilla_attention)
        set_feedforward(layer.ffn, block.feedforward)
    if pre_norm:
        set_normalize(spec.encoder.layer_norm, model.enc_norm)
        set_normalize(spec.decoder.layer_norm, model.dec_norm)
    set_logits(spec.decoder.projection, model)
    return spec


def set_input(spec, embeddings, layer, hp):
    """Copy the vectors of an `InputEmbedding` into a specification.

    Args:
      spec: that of the encoder or the decoder.
      embeddings: its part for the tokens.
      layer: the `InputEmbedding`.
    """
    embeddings.weight = layer.tokens.padded_table().numpy()  # (V, C)
    if hp.positions == "t5":  # they are in self-attention
        return
    if hp.positions != "learned":
        # <S>, and the longest translation of the longest source.
        count = 1 + int(hp.max_output_tokens(hp.max_input_tokens))
    else:
        count = hp.maxlen
    zeros = np.zeros((1, count, hp.hidden_units), "float32")
    vectors, _ = layer.positions.embed(zeros, start=0, state=())  # (1, count, C)
    spec.position_encodings.encodings = vectors[0].numpy()


def set_self_attention(spec, attention, positions):
    """Set Q, K and V, which CTranslate2 fuses into one matrix, W_O and the normalization.

    Args:
      positions: T5Positions, or None for absolute positions.
    """
    if positions is not None:
        spec.relative_attention_bias = positions.table.numpy()  # (buckets, h)
        spec.relative_attention_max_distance = np.int32(positions.max_distance)
    set_dense(spec.linear[0], attention.query, attention.key, attention.value)
    set_output(spec.linear[1], attention)
    set_normalize(spec.layer_norm, attention.add_norm.normalize)


def set_cross_attention(spec, attention):
    """Set Q, then K and V as one matrix, W_O and the normalization."""
    set_dense(spec.linear[0], attention.query)
    set_dense(spec.linear[1], attention.key, attention.value)
    set_output(spec.linear[2], attention)
    set_normalize(spec.layer_norm, attention.add_norm.normalize)


def set_output(spec, attention):
    """Set W_O, or the identity matrix for a model without W_O."""
    if attention.output_projection:
        set_dense(spec, attention.output_projection)
    else:
        spec.weight = np.eye(attention.num_units, dtype=np.float32)


def set_feedforward(spec, feedforward):
    """Set both linear maps, and the normalization."""
    set_dense(spec.linear_0, feedforward.inner)
    set_dense(spec.linear_1, feedforward.outer)
    set_normalize(spec.layer_norm, feedforward.add_norm.normalize)


def set_dense(spec, *layers):
    """Set a linear map from one or more Linear layers of the same input, fused into one.

    Keras kernels have the shape (C_in, C_out), those of CTranslate2 (C_out, C_in).
    """
    spec.weight = np.concatenate([layer.kernel.numpy().T for layer in layers])
    spec.bias = np.concatenate([layer.bias.numpy() for layer in layers])


def set_normalize(spec, normalize):
    """Set the parameters of a `Normalize`."""
    spec.gamma, spec.beta = normalize.gamma.numpy(), normalize.beta.numpy()


def set_logits(spec, model):
    """Set the output layer, with a bias that excludes what our search never chooses."""
    if model.hp.tied_embeddings:
        spec.weight = model.dec_input.tokens.lookup_table.numpy()  # (V, C)
        spec.bias = np.zeros(len(spec.weight), np.float32)
        if model.hp.output_bias:
            spec.bias += model.output_bias.numpy()
    else:
        set_dense(spec, model.output_layer)
    spec.bias[suppressed_ids(model.hp, model.hp.beam)] = PAD_LOGIT
