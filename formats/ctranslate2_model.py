"""Convert a model to the format of CTranslate2 (https://opennmt.net/CTranslate2), a decoder in C++.

A package of Argos Translate has such a model.
"""

import json

import numpy as np
from babel import Locale

from modules import Normalize
from support.errors import InputError
from support.optional import import_optional
from text.ids import BOS, EOS, SPECIALS, UNK
from text.vocab import save_vocabs
from translation.inference import suppressed_ids

PAD_LOGIT = -1e9  # so low that the token is never chosen


def write(loaded, path, quantization):
    """Write a `LoadedModel` into an empty folder, with matrices in "float32" or "int8"."""
    spec = make_spec(loaded.hp, loaded.model)
    source, target = (vocab.tokens() for vocab in loaded.vocabs)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(path))
    if loaded.hp.tokenizer == "bpe":
        save_vocabs(loaded.vocabs, path)


def write_argos(loaded, path, quantization):
    """Write the folder that is zipped to a package, with one sentencepiece model for both sides."""
    hp, vocab = loaded.hp, loaded.vocabs[0]
    if hp.tokenizer != "bpe":
        raise InputError("Argos Translate needs subwords. Export with --format saved_model")
    (path / "model").mkdir()
    write(loaded, path / "model", quantization)
    (path / "model" / vocab.path.name).rename(path / "sentencepiece.model")
    names = Locale("en").languages  # which Argos Translate shows
    metadata = dict(package_version="1.0", argos_version="1.5")
    for side, code in (("from", hp.source_lang), ("to", hp.target_lang)):
        metadata |= {f"{side}_code": code, f"{side}_name": names.get(code, code)}
    (path / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", "utf-8")


def make_spec(hp, model):
    """Convert a built `Transformer` to a `ctranslate2.specs.TransformerSpec`."""
    kind = hp.model, hp.attention_score, hp.mask_from, hp.design.relu_projections, hp.residual
    has_positions = hp.positions in ("learned", "sinusoid", "paired_sinusoid", "t5")
    usual = "transformer", "scaled_dot", "ids", False, True
    if kind != usual or not has_positions or hp.normalization == "none":
        raise InputError("CTranslate2 has no such model. Export with --format saved_model")
    specs = import_optional("ctranslate2").specs
    spec = specs.TransformerSpec.from_config(
        tuple(hp.block_counts.values()),
        hp.num_heads,
        pre_norm=hp.normalization == "pre",
        activation=specs.common_spec.Activation[hp.design.ffn_activation.upper()],
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
    for layer, block, positions in [*zip(*encoder, strict=True), *zip(*decoder, strict=True)]:
        set_attention(layer.self_attention, block.self_attention)
        if positions is not None:  # T5Positions
            layer.self_attention.relative_attention_bias = positions.table.numpy()  # (buckets, h)
            limit = np.int32(positions.max_distance)
            layer.self_attention.relative_attention_max_distance = limit
        set_dense(layer.ffn.linear_0, block.feedforward.inner)
        set_dense(layer.ffn.linear_1, block.feedforward.outer)
        set_normalize(layer.ffn.layer_norm, block.feedforward.add_norm.normalize)
        if block in model.dec_blocks:
            set_attention(layer.attention, block.vanilla_attention)
    if hp.normalization == "pre":
        set_normalize(spec.encoder.layer_norm, model.enc_norm)
        set_normalize(spec.decoder.layer_norm, model.dec_norm)
    logits = spec.decoder.projection
    if hp.tied_embeddings:
        logits.weight = model.dec_input.tokens.lookup_table.numpy()  # (V, C)
        logits.bias = np.zeros(len(logits.weight), np.float32)
        if model.output_bias is not None:
            logits.bias += model.output_bias.numpy()
    else:
        set_dense(logits, model.output_layer)
    logits.bias[suppressed_ids(hp, hp.beam)] = PAD_LOGIT
    return spec


def set_input(spec, embeddings, layer, hp):
    """Copy the vectors of an `InputEmbedding`."""
    embeddings.weight = layer.tokens.padded_table().numpy()  # (V, C)
    if hp.positions != "t5":  # whose positions are in self-attention
        # Sinusoids: of <S>, and of the longest translation of the longest source.
        longest = 1 + int(hp.max_output_tokens(hp.max_input_tokens))
        count = hp.maxlen if hp.positions == "learned" else longest
        zeros = np.zeros((1, count, hp.hidden_units), "float32")
        positions = np.arange(count, dtype=np.int32)
        vectors, _ = layer.positions.embed(zeros, positions, state=())  # (1, count, C)
        spec.position_encodings.encodings = vectors[0].numpy()


def set_attention(spec, attention):
    """Set Q, K and V, of which CTranslate2 fuses all or the last two, W_O and the normalization."""
    *inputs, output = spec.linear
    layers = [attention.query, attention.key, attention.value]
    if len(inputs) == 2:  # attention to the source
        set_dense(inputs[0], layers.pop(0))
    set_dense(inputs[-1], *layers)
    if attention.output_projection:
        set_dense(output, attention.output_projection)
    else:
        output.weight = np.eye(attention.num_units, dtype=np.float32)
    set_normalize(spec.layer_norm, attention.add_norm.normalize)


def set_dense(spec, *layers):
    """Fuse the Linear layers of one input."""
    spec.weight = np.concatenate([layer.kernel.numpy().T for layer in layers])  # (C_out, C_in)
    spec.bias = np.concatenate([layer.bias.numpy() for layer in layers])


def set_normalize(spec, normalize):
    """Set the parameters of a `Normalize`."""
    spec.gamma, spec.beta = normalize.gamma.numpy(), normalize.beta.numpy()
