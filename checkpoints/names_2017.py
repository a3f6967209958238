"""The names that the 2017 code gave to its variables. Our checkpoints use them, too."""

from variants.rnn import RecurrentModel

# Names of variables that differ from those here. The scope "ln" is that of a `Normalize`.
NAMES = dict(beta="ln/Variable", gamma="ln/Variable_1")


def variables_by_2017_name(model) -> dict:
    """The trainable variables of a model, by their names in the 2017 code.

    Those that the 2017 code does not have get names in its style.
    """
    if isinstance(model, RecurrentModel):
        return recurrent_variables(model)
    names = token_variables(model, model.enc_input.tokens, model.dec_input.tokens)
    names |= layer_variables("encoder/enc_pe", model.enc_input.positions)
    names |= layer_variables("decoder/dec_pe", model.dec_input.positions)
    # The default scope of feedforward is "multihead_attention", too. TensorFlow 1 reused that
    # scope for the convolutions, and added a number for the normalization.
    for i, block in enumerate(model.enc_blocks):
        scope = f"encoder/num_blocks_{i}"
        names |= attention_variables(block.self_attention, f"{scope}/multihead_attention")
        names |= position_variables(model.enc_positions, i, scope)
        names |= feedforward_variables(block.feedforward, scope, "multihead_attention_1")
    for i, block in enumerate(model.dec_blocks):
        scope = f"decoder/num_blocks_{i}"
        names |= attention_variables(block.self_attention, f"{scope}/self_attention")
        names |= position_variables(model.dec_positions, i, scope)
        names |= attention_variables(block.vanilla_attention, f"{scope}/vanilla_attention")
        names |= feedforward_variables(block.feedforward, scope, "multihead_attention")
    if model.output_bias is not None:
        names["dense/bias"] = model.output_bias
    names |= layer_variables("encoder", model.enc_norm)
    return names | layer_variables("decoder", model.dec_norm)


def recurrent_variables(model) -> dict:
    """The variables of a `RecurrentModel`."""
    names = token_variables(model, model.source_tokens, model.target_tokens)
    for scope, layer in zip(("forward", "backward"), model.encoder.directions, strict=True):
        names |= layer_variables(f"encoder/{scope}", layer)
    names |= layer_variables("decoder/cell", model.decoder.cell)
    score = model.decoder.score_parameters.items()
    return names | {f"decoder/score/{name}": v for name, v in score}


def token_variables(model, source_tokens, target_tokens) -> dict:
    """The variables of two `Embedding`s and of the output layer."""
    if model.hp.tied_embeddings:
        return layer_variables("shared_embed", target_tokens)
    names = layer_variables("encoder/enc_embed", source_tokens)
    names |= layer_variables("decoder/dec_embed", target_tokens)
    return names | layer_variables("dense", model.output_layer)


def attention_variables(attention, scope) -> dict:
    """The variables of a `MultiheadAttention`."""
    names = layer_variables(scope, attention.add_norm.normalize)
    layers = attention.query, attention.key, attention.value, attention.output_projection
    for suffix, layer in zip(("", "_1", "_2", "_3"), layers, strict=True):
        names |= layer_variables(f"{scope}/dense{suffix}", layer)
    return names | {f"{scope}/{name}": v for name, v in attention.score_parameters.items()}


def position_variables(layers, i, scope) -> dict:
    """The variables of relative positions in block `i`; shared ones are in block 0."""
    return {} if layers[i] in layers[:i] else layer_variables(f"{scope}/positions", layers[i])


def feedforward_variables(feedforward, scope, normalize_scope) -> dict:
    """The variables of a `Feedforward`."""
    names = layer_variables(f"{scope}/{normalize_scope}", feedforward.add_norm.normalize)
    names |= layer_variables(f"{scope}/multihead_attention/conv1d", feedforward.inner)
    return names | layer_variables(f"{scope}/multihead_attention/conv1d_1", feedforward.outer)


def layer_variables(scope, layer) -> dict:
    """The variables of a layer, or of None."""
    weights = layer.weights if layer else ()
    return {f"{scope}/{NAMES.get(v.name, v.name)}": v for v in weights}
